"""`draftwood serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import MethodOptions, ModelOptions
from draftwood.cli.options import OptionGroup
from draftwood.cli.running import hidden
from draftwood.cli.scaling import ServingOptions, needed
from draftwood.serve.settings import ServeSettings
from draftwood.util import config

if TYPE_CHECKING:
    from draftwood.methods import Method


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
    models: ModelOptions = ModelOptions(max_queued=256),
    decoding: MethodOptions,
    scaling: ServingOptions,
) -> None:
    """Serve a model over OpenAI's API, with a live page at the same address.

    Requests may choose a method: "speculation": {"name": "mcsd", "tree": [4, 2]}.
    --method is for those that do not. --replicas 4 --ray serves four engines at one
    address; requests go to the engine that has computed their prompt's prefix.
    """
    hidden("--api-key")
    streams: Any = sys
    streams.stdout, streams.stderr = Forgiving(sys.stdout), Forgiving(sys.stderr)
    with needed("the server needs", "serve"):
        from draftwood.serve.run import listen, run
    server.keys()
    method = decoding.chosen(models.drafts)
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
        run(models.load(method), server, method, listening)


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
