"""Several models behind one server: each is loaded when it is first asked for, and unloaded where others need its room.

Every model has an engine, a method, drafts and an application of its own; `ModelDispatcher` hands a request to the
application of the model that its body names.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec
from draftwood.errors import ConfigurationError
from draftwood.serve.errors import RETRY_AFTER, ApiError
from draftwood.serve.front import Front
from draftwood.serve.metrics import joint_load
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeSettings
from draftwood.util.resident import give_back

log = logging.getLogger(__name__)

MakeApplication = Callable[[Service], ASGIApp]


@dataclass(slots=True, eq=False)
class ServedModel:
    """A model by its name, and how it is loaded; `bytes` are those of its weights and its drafts', as far as known."""

    name: str
    load: Callable[[], Engine]
    bytes: int
    method: MethodSpec | None = None
    service: Service | None = None  # where it is loaded
    application: ASGIApp | None = None
    users: int = 0  # requests that it works on
    last_used: float = 0.0
    leaving: bool = False  # whether it is to be unloaded when nobody uses it


class ServedModels(Front):
    """The models of a server, by name; the first one answers requests that name none.

    The weights of those that are loaded take `limit` bytes at most.
    """

    def __init__(self, models: Sequence[ServedModel], settings: ServeSettings, limit: int) -> None:
        super().__init__(settings)
        if settings.served_model_name is not None:
            raise ConfigurationError("--served-model-name is for one model; name each by --model NAME=PATH")
        self.models = {model.name: model for model in models}
        if len(self.models) < len(models):
            raise ConfigurationError("two models have the same name; give each its own")
        for model in models:
            if model.bytes > limit:
                raise ConfigurationError(
                    f"the model {model.name!r} takes {model.bytes:,} bytes, but --models-memory is {limit:,}; raise it"
                )
        self.limit, self.created = limit, int(time.time())
        self.name = ", ".join(self.models)
        self.make: MakeApplication | None = None  # set by the application
        self._changing = asyncio.Lock()  # held while a model comes or goes
        self._released = asyncio.Event()

    @property
    def loaded(self) -> list[ServedModel]:
        """Those that are loaded, the one that was unused for longest first."""
        return sorted((one for one in self.models.values() if one.service), key=lambda one: one.last_used)

    @property
    def broken(self) -> str | None:
        return next((one.service.broken for one in self.loaded if one.service and one.service.broken), None)

    async def aclose(self) -> None:
        self.ended = True
        for model in self.loaded:
            assert model.service is not None
            await model.service.aclose()

    def load(self) -> dict[str, float]:
        return joint_load([model.service.metrics for model in self.loaded if model.service is not None])

    def named(self, name: str | None) -> ServedModel:
        """The model of a name, with or without the tag that Ollama's clients add; ApiError where there is none."""
        if name is None:
            return next(iter(self.models.values()))
        model = self.models.get(name) or self.models.get(name.removesuffix(":latest"))
        if model is None:
            known = ", ".join(map(repr, self.models))
            raise ApiError(404, f"there is no model {name[:80]!r}; this server has {known}", "model", "model_not_found")
        return model

    @asynccontextmanager
    async def use(self, model: ServedModel) -> AsyncIterator[ASGIApp]:
        """The application of a model, which is loaded for it and stays meanwhile."""
        if model.application is None or model.leaving:
            async with self._changing:
                if model.application is None:
                    await self._load(model)
                model.users += 1
        else:
            model.users += 1
        application = model.application
        assert application is not None
        try:
            yield application
        finally:
            model.users -= 1
            model.last_used = time.monotonic()
            self._released.set()

    async def _load(self, model: ServedModel) -> None:
        await self._make_room(model)
        log.info("loading the model %s", model.name)
        try:
            engine = await asyncio.to_thread(model.load)
            settings = self.settings.model_copy(update={"served_model_name": model.name})
            service = Service(engine, settings, model.method, self)
        except Exception as error:
            log.error("the model %s cannot be loaded", model.name, exc_info=error)
            raise ApiError(500, f"the model {model.name!r} cannot be loaded; the server's log says why") from None
        assert self.make is not None
        model.bytes = engine.weight_bytes or model.bytes
        model.service, model.application, model.last_used = service, self.make(service), time.monotonic()
        await self._make_room(model)  # it may take more than its file

    async def _make_room(self, model: ServedModel) -> None:
        """Unload models unused for longest, once they have answered, until one has room beside the others."""
        others = [one for one in self.loaded if one is not model]
        going: list[ServedModel] = []
        while others and model.bytes + sum(one.bytes for one in others) > self.limit:
            going.append(others.pop(0))
        for one in going:
            one.leaving = True
        try:
            async with asyncio.timeout(self.settings.request_seconds):
                for one in going:
                    await self._unused(one)
                    await self._unload(one)
        except TimeoutError:
            busy = "the models in memory are at work, and there is no room for another one; ask again"
            raise ApiError(503, busy, headers=RETRY_AFTER) from None
        finally:
            for one in going:
                one.leaving = False

    async def _unused(self, model: ServedModel) -> None:
        while model.users:
            self._released.clear()
            await self._released.wait()

    async def _unload(self, model: ServedModel) -> None:
        log.info("unloading the model %s", model.name)
        service, model.service, model.application = model.service, None, None
        assert service is not None
        await service.aclose()
        vars(service).clear()  # FastAPI's caches keep endpoints for long, and these the service
        del service
        gc.collect()
        give_back()


class ModelDispatcher:
    """Hands requests to the application of their model, those with `methods_of` their path; all others go to `app`.

    A body names its model in the field `model`, an address as ?model=NAME.
    """

    def __init__(self, app: ASGIApp, models: ServedModels, methods_of: Callable[[str], Collection[str]]) -> None:
        self.app, self.models, self.methods_of = app, models, methods_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self.methods_of(scope["path"]):
            await self.app(scope, receive, send)
            return
        body, name = None, parse_qs(scope["query_string"].decode("latin-1")).get("model", [None])[-1]
        if scope["method"] == "POST":
            body = await _body(receive)
            name = _model_named(body) or name
        given = False

        async def replayed() -> Message:
            nonlocal given
            if body is None or given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        model = self.models.named(name)
        async with self.models.use(model) as application:
            await application(scope, replayed, send)


async def _body(receive: Receive) -> bytes:
    """The whole body of a request; what is too long or late is refused by `receive`."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _model_named(body: bytes) -> str | None:
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None  # for the application to refuse
    name = given.get("model") if isinstance(given, Mapping) else None
    return name if isinstance(name, str) else None
