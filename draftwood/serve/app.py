"""The endpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from draftwood import __version__
from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec
from draftwood.errors import DraftwoodError
from draftwood.methods import METHODS
from draftwood.serve import answers, site
from draftwood.serve.answers import ChatForm, CompletionForm, Form, Piece
from draftwood.serve.errors import ApiError, invalid
from draftwood.serve.middleware import Guard, response
from draftwood.serve.protocol import (
    Asked,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from draftwood.serve.public import offered
from draftwood.serve.request_mapping import Plan, plan
from draftwood.serve.responses import responses
from draftwood.serve.round_stream import Telling, told
from draftwood.serve.service import Service, answered, check_model, streamed
from draftwood.serve.settings import ServeSettings
from draftwood.serve.stream import EventStream, begun, unless_gone

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": "an error, as OpenAI has them"}
    for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 503, 504)
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def create_app(engine: Engine, settings: ServeSettings | None = None, method: MethodSpec | None = None) -> FastAPI:
    """The server as an ASGI application; `method` is what requests are decoded with that name none."""
    service = Service(engine, settings or ServeSettings(), method)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.aclose()

    app = FastAPI(
        title="draftwood",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses=ERRORS,
    )
    app.state.service = service
    _status(app, service)
    _texts(app, service)
    responses(app, service)
    _tokens(app, service)
    _insights(app, service)
    site.about(app, service)
    api: dict[str, set[str]] = {}
    for route in app.routes:
        api.setdefault(str(getattr(route, "path", "")), set()).update(getattr(route, "methods", None) or ())
    site.mount(app)
    app.add_middleware(Guard, service=service, api=api)
    if service.settings.allowed_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=service.settings.allowed_origin, allow_methods=["*"], allow_headers=["*"]
        )
    for kind in (ApiError, DraftwoodError, HTTPException, TimeoutError):
        app.add_exception_handler(kind, _told)
    app.add_exception_handler(RequestValidationError, _wrong)
    return app


async def _wrong(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = request.scope["route"].body_field
    return response(invalid(error, body and body.field_info.annotation))


async def _told(request: Request, error: Exception) -> Response:
    service: Service = request.app.state.service
    told = service.told(error)
    if told.status >= 500 and not isinstance(error, ApiError):
        raise error  # for the guard, which logs it
    return response(told)


def _status(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the engine computes."""
        if broken := service.served.broken:
            return response(ApiError(503, f"the engine is broken: {broken}"))
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are taken."""
        if service.draining.is_set() or service.served.broken:
            return response(ApiError(503, "no requests are taken"))
        return JSONResponse({"status": "ready"})

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [await model()]}

    @app.get(f"/v1/models/{service.name}")
    async def model() -> dict[str, Any]:
        """What is known of it."""
        names = service.engine.names
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "draftwood",
            "max_model_len": service.engine.target.context,
            "chat": bool(service.tokenizer.templates),
            "method": service.method.name,
            **{key: names[key] for key in ("dtype", "quantize") if key in names},
        }

    @app.get("/v1/methods")
    async def methods() -> dict[str, Any]:
        """What `speculation` may name, with options, their ranges and help; `usable` here and now."""
        found = [offered(method) | {"usable": _usable(service, name)} for name, method in METHODS.items()]
        return {"object": "list", "default": service.method.name, "data": found}


def _usable(service: Service, name: str) -> bool:
    try:
        service.engine.method(name)
    except DraftwoodError:
        return False
    return True


def _head(prefix: str, request: Request, service: Service) -> dict[str, Any]:
    return {"id": prefix + request.state.request_id, "created": int(time.time()), "model": service.name}


async def _answer(
    service: Service,
    request: Request,
    body: Asked,
    form: Form,
    made: Plan,
    echoed: Sequence[Piece] = (),
) -> Response:
    """Carry a request out, streamed or not."""
    work = service.work(made, request.state.noted)
    head = _head(form.prefix, request, service)
    if body.stream:
        await begun(request, work)
        return EventStream(streamed(work, form, head, body.stream_options, echoed), work)
    return await unless_gone(request, answered(work, form, head, echoed))


def _texts(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", responses=STREAMED)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or several."""
        check_model(service, body.model)
        form = CompletionForm(service.tokenizer, service.words, body.logprobs is not None)
        echoed: list[Piece] = []
        if body.max_tokens == 0 and (body.stream or not body.echo):
            raise ApiError(400, "max_tokens is 0, which is for echo, not streamed; ask for a token", "max_tokens")
        made = plan(service, body, body.prompts)
        if body.echo:
            scores = await unless_gone(request, service.scores(body.prompts, body.logprobs))
            texts = [
                prompt if isinstance(prompt, str) else await service.prompts.run(service.echoed, prompt)
                for prompt in body.prompts
            ]
            echoed = [answers.prompt_piece(*pair) for pair in zip(scores, texts, strict=True)]
        if body.max_tokens == 0:
            head, size = _head(form.prefix, request, service), body.choices * sum(piece.size for piece in echoed)
            return await service.answers.answer(lambda: _echo(head, form, body, echoed), size)
        return await _answer(service, request, body, form, made, echoed)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, by the checkpoint's chat template."""
        check_model(service, body.model)
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs are for logprobs; set logprobs, or leave them out", "top_logprobs")
        form = ChatForm(service.tokenizer, service.words, bool(body.logprobs))
        return await _answer(service, request, body, form, plan(service, body, [_conversation(body.messages)]))


def _conversation(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [message.plain() for message in messages]


def _echo(
    head: dict[str, Any], form: CompletionForm, body: CompletionRequest, echoed: Sequence[Piece]
) -> dict[str, Any]:
    """Prompts alone, with their log-probabilities."""
    for piece in echoed:
        piece.finish = "length"
    whole = [piece for piece in echoed for _ in range(body.choices)]
    choices = [form.choice(index, piece) for index, piece in enumerate(whole)]
    read = sum(len(piece.tokens) for piece in echoed)
    usage = {"prompt_tokens": read, "completion_tokens": 0, "total_tokens": read}
    return {**head, "object": form.object, "choices": choices, "usage": usage}


def _tokens(app: FastAPI, service: Service) -> None:
    context, vocab = service.engine.target.context, service.engine.target.vocab_size

    async def ids(body: TokenizeRequest) -> list[int]:
        if body.messages is not None:
            opened, talk = body.add_generation_prompt is not False, _conversation(body.messages)
            read = partial(service.tokenizer.chat, most=context, add_generation_prompt=opened)
            return await service.conversations.run(read, talk)
        return await service.texts.run(
            service.tokenizer.encode, body.prompt or "", body.add_special_tokens is not False, context
        )

    async def tokenized(body: TokenizeRequest) -> Response:
        tokens, strings = await ids(body), None
        if body.return_token_strs:
            if len(tokens) > context:
                raise ApiError(
                    400,
                    f"the text has {len(tokens):,} tokens, more than the context of {context:,}, for which there are "
                    "strings; leave out return_token_strs",
                    "return_token_strs",
                )
            strings = await service.texts.run(lambda: [service.words([token]) for token in tokens])
        document = {"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": strings}
        return await service.answers.answer(lambda: document, len(tokens))

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Ids of a text or a conversation."""
        check_model(service, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give prompt, a text, or messages, a conversation", "prompt")
        return await unless_gone(request, tokenized(body))

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of ids."""
        check_model(service, body.model)
        if len(body.tokens) > context:
            told = f"there are {len(body.tokens):,} ids, more than the model's context of {context:,}; send fewer"
            raise ApiError(400, told, "tokens")
        if (last := max(body.tokens, default=0)) >= vocab:
            raise ApiError(400, f"there is no token {last}; ids go from 0 to {vocab - 1}", "tokens")
        return JSONResponse({"prompt": await unless_gone(request, service.texts.run(service.text, body.tokens))})


def _insights(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Give back the keys and values that finished requests left for others."""
        await service.texts.run(service.engine.reset_prefix_cache)
        return JSONResponse({"status": "ok"})

    @app.get("/v1/forest")
    async def load() -> Response:
        """Server-sent events: the load, each second."""
        return EventStream(service.load())

    @app.post("/v1/forest")
    async def forest(body: CompletionRequest, request: Request) -> Response:
        """Continue a text as /v1/completions does, told round by round with what became of each draft."""
        check_model(service, body.model)
        if not body.limit or body.echo:
            raise ApiError(400, "rounds are those of new tokens: leave out echo, and ask for a token", "max_tokens")
        telling = Telling(service)
        work = service.work(plan(service, body, body.prompts), request.state.noted, telling.prepare)
        await begun(request, work)
        return EventStream(told(work, telling), work)
