"""An experiment as its YAML file declares it: a kind of measurement, its settings, and runs on models."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util import config
from draftwood.util.safe_parsing import parse_yaml, read_text

if TYPE_CHECKING:
    from benchmarks.bench import Bench

HERE = Path(__file__).parent
Rows = list[dict[str, Any]]  # flat: labels, numbers, and intervals {value, low, high, n}

KINDS = {  # kind -> the class below benchmarks.kinds that measures it
    "methods": "methods:Methods",
    "loop": "loop:Loop",
    "forwards": "forwards:Forwards",
    "contexts": "contexts:Contexts",
    "serving": "serving:Serving",
    "fairness": "fairness:Fairness",
    "peers": "peers:Peers",
    "quantisation": "quantisation:Quantisation",
    "scores": "scores:MethodScores",
    "files": "files:Files",
    "draft-price": "draft_price:DraftPrice",
    "source-choice": "source_choice:SourceChoice",
    "chat-prompts": "chat_prompts:ChatPrompts",
}


class Strict(BaseModel):
    """Plain data whose unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(Strict):
    """The settings of one kind of measurement, and how it is made."""

    @abstractmethod
    def measure(self, bench: Bench) -> dict[str, Rows]:
        """Measure everything with `bench` and return named tables of rows."""


class ExperimentRun(Strict):
    """One result file: the models, and settings that differ from the experiment's."""

    pair: str = "embedded"
    dtype: str = "float32"
    quantize: str | None = None
    threads: int = Field(1, ge=1)
    settings: dict[str, Any] = Field(default_factory=dict)


class Experiment(Strict):
    """A YAML file of benchmarks/experiments: runs of one kind. `smoke` has settings of runs that take seconds."""

    title: str
    kind: str
    settings: dict[str, Any] = Field(default_factory=dict)
    smoke: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, ExperimentRun]

    def measure(self, run: ExperimentRun, smoke: bool = False) -> Kind:
        """The measurement of a run; raises ConfigurationError for settings that its kind does not have."""
        if self.kind not in KINDS:
            raise ConfigurationError(f"there is no kind of experiment {self.kind!r}" + did_you_mean(self.kind, KINDS))
        module, _, name = KINDS[self.kind].partition(":")
        made: type[Kind] = getattr(import_module(f"benchmarks.kinds.{module}"), name)
        settings = merged(self.settings, run.settings)
        return config.parse(made, merged(settings, self.smoke) if smoke else settings, f"settings of {self.title!r}")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`one` with the values of `other`, mappings merged in depth."""
    result = dict(one)
    for key, value in other.items():
        mine = result.get(key)
        result[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return result


def find(name: str) -> Path:
    """The file of an experiment, given as a path or a name; raises ConfigurationError where there is none."""
    file = HERE / "experiments" / f"{name}.yaml"
    if file.is_file() or Path(name).suffix:
        return file if file.is_file() else Path(name)
    known = sorted(path.stem for path in file.parent.glob("*.yaml"))
    raise ConfigurationError(f"there is no experiment {name!r}" + did_you_mean(name, known))


def load(path: Path) -> Experiment:
    """The experiment of a YAML file; raises ConfigurationError where it is none."""
    try:
        document = parse_yaml(read_text(path))
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give a file such as benchmarks/experiments/engine.yaml"
        raise ConfigurationError(f"{path} {reason}") from None
    except ValueError:
        raise ConfigurationError(f"{path} is not YAML; see benchmarks/experiments/engine.yaml for one") from None
    return config.parse(Experiment, document, str(path))


def data_sets() -> Path:
    """The directory of the data sets that lie outside the project."""
    return Path(os.environ.get("DRAFTWOOD_DATA") or HERE.parents[1] / "shared" / "data")


def placed(value: Any) -> Any:
    """An option of a method; what begins with trained/ as a path."""
    return str(HERE / value) if isinstance(value, str) and value.startswith("trained/") else value
