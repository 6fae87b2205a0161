"""The options of commands that several engines or processes can share, on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from draftwood.cli.groups import ModelOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.errors import ConfigurationError
from draftwood.util import config

if TYPE_CHECKING:
    from draftwood.cluster.spec import EngineSpec
    from draftwood.engine.engine_map import EngineMap
    from draftwood.methods import Method
    from draftwood.train.runs import Trainer

ENGINES = "Several engines"


class RayOptions(OptionGroup):
    """Engines in processes of Ray's."""

    model_config = ConfigDict(title=ENGINES)

    replicas: int = flag(1, "Engines, or processes that share the work. More than 1 needs --ray.", ge=1)
    ray: bool = flag(False, "Run them on Ray, started on this machine (extra scale).")
    ray_address: str | None = flag(None, "Run them on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.", "ADDRESS")
    replica_cpus: float | None = flag(None, "CPUs for each.", usual="as many as --threads, or 1", ge=0)
    replica_gpus: float | None = flag(None, "GPUs for each.", usual="1 where --device is one", ge=0)

    @property
    def wanted(self) -> bool:
        """True where the options ask for Ray; ConfigurationError where they do not, but need it."""
        if self.ray or self.ray_address is not None:
            return True
        needed = sorted(self.model_fields_set & {"autoscale", "replicas", "replica_cpus", "replica_gpus"})
        if given := [name for name in needed if getattr(self, name) not in (None, 1, [])]:
            raise ConfigurationError(f"--{given[0].replace('_', '-')} is for engines on Ray; give --ray too")
        return False

    def engine(self, models: ModelOptions, method: Method | None = None) -> dict[str, Any]:
        """The fields of an `EngineSpec`."""
        import torch

        arguments = models.arguments  # paths are made absolute: processes of Ray's may work in another directory
        arguments["target"] = arguments["target"] and _absolute(arguments["target"])
        arguments["draft"] = arguments["draft"] and [_absolute(name) for name in arguments["draft"]]
        arguments["calibration"] = models.calibration and _absolute(str(models.calibration))
        cuda = models.device.startswith("cuda") if models.device else torch.cuda.is_available()
        gpus = float(cuda) * models.tensor_parallel
        return {
            "models": arguments,
            "method": None if method is None else method.as_dict(),
            "threads": models.threads or 1,
            "cpus": self.replica_cpus,
            "gpus": gpus if self.replica_gpus is None else self.replica_gpus,
        }

    @contextmanager
    def engines(self, models: ModelOptions) -> Iterator[EngineMap | None]:
        """A context with the map over engines on Ray; None where Ray is not asked for."""
        if not self.wanted:
            yield None
            return
        with self._started(self.engine(models)) as spec:
            from draftwood.cluster.sharing import on_ray

            yield on_ray(spec, self.replicas)

    @contextmanager
    def trainer(self, model: ModelOptions) -> Iterator[Trainer]:
        """A context with the function that carries out a training run: in this process, or in processes on Ray."""
        if not self.wanted:
            from draftwood.train.runs import train

            yield train
            return
        with self._started(self.engine(model)) as spec:
            from draftwood.cluster.training import on_ray

            yield on_ray(spec, self.replicas)

    @contextmanager
    def _started(self, fields: dict[str, Any]) -> Iterator[EngineSpec]:
        """Ray with room for the replicas that the fields describe."""
        with needed("work on Ray needs", "scale"):
            from draftwood.cluster.spec import EngineSpec
            from draftwood.cluster.starting import started
        spec = config.parse(EngineSpec, fields, "engines")
        with started(self.ray_address, self.replicas * spec.resources["num_cpus"], self.replicas * spec.gpus):
            yield spec


class ServingOptions(RayOptions):
    """Engines behind one server."""

    autoscale: list[str] = flag(
        [], "An option of Ray Serve's autoscaling, such as max_replicas=8. Repeatable.", "KEY=VALUE"
    )

    @property
    def autoscaling(self) -> dict[str, Any]:
        """The options in Ray Serve's form."""
        return config.assignments(self.autoscale, "--autoscale")


def _absolute(name: str) -> str:
    path = Path(name)
    return str(path.resolve()) if path.exists() else name


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Imports of an extra: ConfigurationError says what needs it where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        fix = f"pip install 'draftwood[{extra}]'"
        raise ConfigurationError(f"{what} {error.name}, which is missing; {fix}") from None
