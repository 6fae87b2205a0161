"""The application: its small endpoints, the page at / with its data, errors, and what other modules add to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from draftwood import __version__
from draftwood.engine.embedded_hint import is_embedded
from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec
from draftwood.errors import DraftwoodError
from draftwood.explain import page
from draftwood.methods import METHODS
from draftwood.serve.anthropic import add_messages
from draftwood.serve.completions import add_completions
from draftwood.serve.conversation import conversation_of
from draftwood.serve.errors import ApiError, error_response, validation_error
from draftwood.serve.front import Front
from draftwood.serve.llama_cpp import add_llama_cpp
from draftwood.serve.metrics import METRICS_TYPE, joint_text
from draftwood.serve.middleware import RequestMiddleware
from draftwood.serve.ollama import add_ollama, ollama_models
from draftwood.serve.protocol import DetokenizeRequest, TokenizeRequest
from draftwood.serve.public import public_method
from draftwood.serve.request_run import unless_gone
from draftwood.serve.responses import add_responses
from draftwood.serve.round_stream import add_load, add_rounds
from draftwood.serve.served_models import ModelDispatcher, ServedModel, ServedModels
from draftwood.serve.service import Service, check_model
from draftwood.serve.settings import ServeSettings

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": "an error, as OpenAI has them"}
    for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 503, 504)
}

ALLOWED_METHODS = {"allow": "GET, HEAD"}
FIRST_PROMPT = "Story: In Corfe there lived a sailor called"
PROMPT_LABELS = {
    "stories": "a story",
    "qa": "questions",
    "summaries": "a summary",
    "sql": "SQL",
    "math": "arithmetic",
    "code": "Python",
}


class PageFiles(StaticFiles):
    """Files of a directory; a path without a file is not found, whatever the HTTP method."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code == 405 and self.lookup_path(path)[1] is not None:
                raise HTTPException(
                    405, f"{scope['path']} takes GET, HEAD, not {scope['method']}", ALLOWED_METHODS
                ) from None
            raise HTTPException(404, f"there is no {scope['path'][:80]}; /openapi.json lists what there is") from None


def create_app(engine: Engine, settings: ServeSettings | None = None, method: MethodSpec | None = None) -> FastAPI:
    """The server as an ASGI application; `method` is what requests are decoded with that name none."""
    service = Service(engine, settings or ServeSettings(), method)
    app = _with_endpoints(service)
    methods_of = _methods_of(app)
    _add_files(app)
    _add_middleware(app, service, methods_of)
    return app


def create_models_app(models: ServedModels) -> FastAPI:
    """The same for several models."""
    endpoints = _with_endpoints(None)  # type: ignore[arg-type]  # which is not asked
    methods_of = _methods_of(endpoints)
    models.make = _model_application
    app = _application(models)
    _add_models(app, models)

    @app.api_route("/openapi.json", methods=["GET", "HEAD"])
    def openapi() -> dict[str, Any]:
        return endpoints.openapi()

    own = _methods_of(app)
    _add_files(app)
    app.add_middleware(ModelDispatcher, models=models, methods_of=lambda path: methods_of(path) - own(path))
    _add_middleware(app, models, lambda path: own(path) | methods_of(path))
    return app


def _model_application(service: Service) -> FastAPI:
    """The application of one of several models, which hands on what its endpoints did not foresee."""

    async def handed_on(request: Request, error: Exception) -> Response:
        raise error

    app = _with_endpoints(service)
    app.add_exception_handler(Exception, handed_on)
    return app


def _application(front: Front) -> FastAPI:
    """An application without endpoints; it ends with its front."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await front.aclose()

    app = FastAPI(
        title="draftwood",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses=ERRORS,
        openapi_url="/openapi.json" if isinstance(front, Service | None) else None,
    )
    app.state.service = front
    for kind in (ApiError, DraftwoodError, HTTPException, TimeoutError):
        app.add_exception_handler(kind, _client_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    return app


def _with_endpoints(service: Service) -> FastAPI:
    """The application of a service, without the page's files and what all requests go through."""
    app = _application(service)
    _add_health(app, service)
    _add_status(app, service)
    add_completions(app, service)
    add_responses(app, service)
    add_messages(app, service)
    add_ollama(app, service)
    add_llama_cpp(app, service)
    _add_tokens(app, service)
    _add_metrics(app, service)
    add_load(app, service)
    add_rounds(app, service)
    _add_page_data(app, service)
    return app


def _methods_of(app: FastAPI) -> Callable[[str], Set[str]]:
    """Gives the HTTP methods of a path of the application; of others none."""
    api: dict[str, set[str]] = {}
    for route in app.routes:
        api.setdefault(str(getattr(route, "path", "")), set()).update(getattr(route, "methods", None) or ())

    def methods_of(path: str) -> Set[str]:
        if path in api:
            return api[path]
        begun = (methods for name, methods in api.items() if "{" in name and path.startswith(name.split("{")[0]))
        return next(begun, frozenset())

    return methods_of


def _add_files(app: FastAPI) -> None:
    app.mount("/viewer", PageFiles(directory=str(page.VIEWER)))
    app.mount("/", PageFiles(directory=str(files("draftwood.serve") / "page"), html=True))


def _add_middleware(app: FastAPI, front: Front, methods_of: Callable[[str], Set[str]]) -> None:
    app.add_middleware(RequestMiddleware, service=front, methods_of=methods_of)
    if front.settings.allowed_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=front.settings.allowed_origin, allow_methods=["*"], allow_headers=["*"]
        )


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = request.scope["route"].body_field
    return error_response(validation_error(error, body and body.field_info.annotation))


async def _client_error(request: Request, error: Exception) -> Response:
    service: Front = request.app.state.service
    shown = service.client_error(error)
    if shown.status >= 500 and not isinstance(error, ApiError):
        raise error  # for the middleware, which logs it
    return error_response(shown)


def _add_health(app: FastAPI, front: Front) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the engine computes."""
        if broken := front.broken:
            return error_response(ApiError(503, f"the engine is broken: {broken}"))
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are taken."""
        if front.draining.is_set() or front.broken:
            return error_response(ApiError(503, "no requests are taken"))
        return JSONResponse({"status": "ready"})

    @app.get("/api/version", include_in_schema=False)  # as Ollama has it
    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}


def _add_models(app: FastAPI, models: ServedModels) -> None:
    """Endpoints that are about all models of a server, of which they load none."""
    _add_health(app, models)
    add_load(app, models)

    @app.get("/models")
    @app.get("/v1/models")
    async def all_models() -> dict[str, Any]:
        return {"object": "list", "data": [facts(model) for model in models.models.values()]}

    @app.get("/models/{name:path}")
    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return facts(models.named(name))

    def facts(model: ServedModel) -> dict[str, Any]:
        """Facts about a model; a loaded one has more."""
        loaded = model.service is not None
        more = {} if model.service is None else model_facts(model.service)
        named = {"id": model.name, "object": "model", "created": models.created, "owned_by": "draftwood"}
        return {**named, **more, "loaded": loaded, "bytes": model.bytes}

    @app.get("/api/tags")
    async def tags() -> dict[str, Any]:
        return ollama_models({model.name: model.bytes for model in models.models.values()}, models.created)

    @app.get("/api/ps")
    async def running() -> dict[str, Any]:
        return ollama_models({model.name: model.bytes for model in models.loaded}, models.created)

    @app.get("/metrics")
    async def metrics() -> Response:
        services = [model.service for model in models.loaded if model.service is not None]
        text = joint_text([service.metrics for service in services])
        return Response(text, media_type=METRICS_TYPE)


def model_facts(service: Service) -> dict[str, Any]:
    """The facts of a model: types, sizes, methods."""
    names = service.engine.names
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "draftwood",
        "max_model_len": service.engine.target.context,
        "chat": bool(service.tokenizer.templates),
        "method": service.method.name,
        **{key: names[key] for key in ("dtype", "quantize", "draft_quantize", "kv_dtype") if key in names},
    }


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/models", include_in_schema=False)
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [await model(service.name)]}

    @app.get("/models/{name:path}", include_in_schema=False)
    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The facts of that model: types, sizes, methods."""
        check_model(service, name)
        return model_facts(service)

    @app.get("/v1/methods")
    async def methods() -> dict[str, Any]:
        """The methods that `speculation` may name, with options, their ranges and help; `usable` with this `model`."""
        methods = [public_method(method) | {"usable": _usable(service, name)} for name, method in METHODS.items()]
        return {"object": "list", "model": service.name, "default": service.method.name, "data": methods}


def _usable(service: Service, name: str) -> bool:
    try:
        service.engine.method(name)
    except DraftwoodError:
        return False
    return True


def _add_tokens(app: FastAPI, service: Service) -> None:
    async def ids(body: TokenizeRequest) -> list[int]:
        context = service.engine.target.context
        if body.messages is not None:
            conversation, variables, _ = conversation_of(service, body, body.messages)
            read = partial(service.tokenizer.chat, max_tokens=context, **variables)
            return await service.conversations.run(read, conversation)
        if body.content is not None:  # without special tokens, unless they are asked for
            return await service.texts.run(service.tokenizer.encode, body.content, body.add_special is True, context)
        return await service.texts.run(
            service.tokenizer.encode, body.prompt or "", body.add_special_tokens is not False, context
        )

    def piece(token: int) -> dict[str, Any]:
        """A token with its text, or the bytes of a part of a character."""
        known = service.tokenizer.known(token)
        return {"id": token, "piece": known.text if known.part is None else list(known.part)}

    async def tokenized(body: TokenizeRequest) -> Response:
        tokens = await ids(body)
        about = {"count": len(tokens), "max_model_len": service.engine.target.context}

        def document() -> dict[str, Any]:
            return {**about, "tokens": [piece(token) for token in tokens] if body.with_pieces else tokens}

        return await service.answers.answer(document, len(tokens))

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Ids of a text or a conversation."""
        check_model(service, body.model)
        if [body.prompt, body.messages, body.content].count(None) != 2:
            raise ApiError(400, "give prompt, a text, or messages, a conversation", "prompt")
        return await unless_gone(request.receive, tokenized(body))

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of ids."""
        check_model(service, body.model)
        context, vocab = service.engine.target.context, service.engine.target.vocab_size
        if len(body.tokens) > context:
            many = f"there are {len(body.tokens):,} ids, more than the model's context of {context:,}; send fewer"
            raise ApiError(400, many, "tokens")
        if (last := max(body.tokens, default=0)) >= vocab:
            raise ApiError(400, f"there is no token {last}; ids go from 0 to {vocab - 1}", "tokens")
        text = await unless_gone(request.receive, service.texts.run(service.tokenizer.decode, body.tokens))
        return JSONResponse({"prompt": text, "content": text})


def _add_metrics(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type=METRICS_TYPE)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Give back the keys and values that finished requests left for others."""
        await service.texts.run(service.engine.reset_prefix_cache)
        return JSONResponse({"status": "ok"})


def _add_page_data(app: FastAPI, service: Service) -> None:
    @app.get("/page.json", include_in_schema=False)
    def page_json() -> dict[str, Any]:
        """Version, the served model, its parts, prompts, whether it chats, and the viewer of shared runs.

        `sampling` is how the model's makers draw tokens, where the checkpoint says so.
        """
        return {
            "version": __version__,
            "model": service.name,
            "models": service.public.value(service.engine.names),
            "prompts": _embedded_prompts(service.engine),
            "chat": bool(service.tokenizer.templates),
            "sampling": service.engine.generation_config,
            "viewer": page.template(),
        }


def _embedded_prompts(engine: Engine) -> list[dict[str, str]]:
    """Prompts of documents of the embedded corpus that no model was trained on; none for other models."""
    from draftwood.corpus import documents

    if not is_embedded(engine.names.get("target")):
        return []
    held_out = [
        {"label": label, "prompt": next(documents(domain, "held-out")).prompt}
        for domain, label in PROMPT_LABELS.items()
    ]
    return [{"label": "a sailor", "prompt": FIRST_PROMPT}, *held_out]
