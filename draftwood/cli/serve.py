"""`draftwood serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import MODELS, MethodOptions, ModelOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.cli.running import hidden
from draftwood.cli.scaling import ServingOptions, needed
from draftwood.cli.served import served_models
from draftwood.errors import ConfigurationError
from draftwood.serve.settings import ServeSettings
from draftwood.util import config

if TYPE_CHECKING:
    from draftwood.methods import Method
    from draftwood.serve.served_models import ServedModels


class Forgiving:
    """A stream whose text is lost where it cannot be written: a full disk ends no server."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ServerOptions(OptionGroup, ServeSettings):
    """How the server behaves."""


def serve(
    *,
    server: ServerOptions,
    model: list[str] = flag(
        [],
        "One of several models: its name and checkpoint, with options such as ,draft=PATH,method=mcsd,quantize=int8. "
        "Loaded on first use. Repeatable.",
        "NAME=PATH",
        panel=MODELS,
    ),
    models_memory: int | None = flag(
        None,
        "With --model: most bytes of weights at once; models unused for longest make room. "
        "Default: half of the free memory.",
        "BYTES",
        panel=MODELS,
        ge=1,
    ),
    models: ModelOptions = ModelOptions(max_queued=256),
    decoding: MethodOptions,
    scaling: ServingOptions,
) -> None:
    """Serve a model, or several, over OpenAI's API, with a live page at the same address.

    Requests may choose a method: "speculation": {"name": "mcsd", "tree": [4, 2]}.
    --method is for those that do not. --replicas 4 --ray serves four engines at one
    address; requests go to the engine that has computed their prompt's prefix.
    """
    hidden("--api-key")
    streams: Any = sys
    streams.stdout, streams.stderr = Forgiving(sys.stdout), Forgiving(sys.stderr)
    with needed("the server needs", "serve"):
        from draftwood.serve.app import create_app, create_models_app
        from draftwood.serve.run import listen, run
    server.keys()
    method = decoding.chosen(models.drafts)
    if models_memory is not None and not model:
        raise ConfigurationError("--models-memory is for several models; name them with --model")
    if scaling.wanted and model:
        raise ConfigurationError("engines on Ray serve one model; leave out --model or --ray")
    if scaling.wanted:
        _on_ray(server, models, method, scaling)
        return
    if models.tensor_parallel > 1:
        from draftwood.models.parallel.launch import leads

        if not leads():
            models.load(method)  # this process follows, and ends here
    with listen(server) as listening:
        if server.log_json:
            _log_json()
        if model:
            app = create_models_app(_several(model, models_memory, server, models, method))
        else:
            app = create_app(models.load(method), server, method)
        run(app, server, listening)


def _several(
    entries: list[str], limit: int | None, server: ServerOptions, models: ModelOptions, method: Method | None
) -> ServedModels:
    import torch

    from draftwood.models.memory_budget import free_bytes
    from draftwood.serve.served_models import ServedModels

    device = torch.device(models.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return ServedModels(served_models(entries, models, method), server, limit or free_bytes(device) // 2)


def _on_ray(server: ServerOptions, models: ModelOptions, method: Method | None, scaling: ServingOptions) -> None:
    with needed("serving on Ray needs", "scale"):
        from draftwood.cluster import running
        from draftwood.cluster.spec import ServeSpec
    fields = {"replicas": scaling.replicas, "autoscaling": scaling.autoscaling, "server": server.model_dump()}
    running.run(config.parse(ServeSpec, {**scaling.engine(models, method), **fields}, "serve"), scaling.ray_address)


def _log_json() -> None:
    """Lines of JSON on standard error, nothing else before or behind them."""
    access = logging.getLogger("draftwood.serve.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.handlers, access.propagate = [handler], False
    access.setLevel(logging.INFO)
