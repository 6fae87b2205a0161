"""/v1/forest: a request told round by round, every draft with its fate, its p and its q; and the server's load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Request
from pydantic import WrapValidator
from starlette.responses import Response

from draftwood.engine.embedded_hint import hint
from draftwood.engine.engine import StreamEvent
from draftwood.engine.generation import Generation
from draftwood.explain import page
from draftwood.explain.explanation import RecordedGeneration
from draftwood.explain.tree import Grower
from draftwood.serve import answers
from draftwood.serve.answers import ChatForm
from draftwood.serve.completions import prepared_chat
from draftwood.serve.errors import ApiError
from draftwood.serve.front import Front
from draftwood.serve.protocol import ChatRequest, CompletionRequest
from draftwood.serve.request_mapping import plan_request
from draftwood.serve.request_run import EventStream, RequestRun
from draftwood.serve.service import Service, check_model


def _by_field(body: Any, handler: object) -> CompletionRequest | ChatRequest:
    """The body as what it is meant to be: a conversation where it has messages, else a text."""
    kind = ChatRequest if isinstance(body, dict) and "messages" in body else CompletionRequest
    return kind.model_validate(body)


RoundsRequest: TypeAlias = Annotated[CompletionRequest | ChatRequest, WrapValidator(_by_field)]


def add_load(app: FastAPI, front: Front) -> None:
    """Add the endpoint that tells of the load."""

    @app.get("/v1/forest")
    async def load() -> Response:
        """Server-sent events: the load, each second."""
        return EventStream(front.load_events())


def add_rounds(app: FastAPI, service: Service) -> None:
    """Add the endpoint that tells of a request."""

    @app.post("/v1/forest")
    async def forest(body: RoundsRequest, request: Request) -> Response:
        """Continue a text, as /v1/completions, or answer a conversation, as /v1/chat/completions, round by round.

        Each round says what became of every draft.
        """
        check_model(service, body.model)
        if body.limit == 0 or getattr(body, "echo", None):
            raise ApiError(400, "rounds are those of new tokens: leave out echo, and ask for a token", "max_tokens")
        for name in ("suffix", "prompt_logprobs", "truncate_prompt_tokens"):
            if getattr(body, name, None) is not None:
                raise ApiError(400, f"{name} is for /v1/completions; leave it out", name)
        form = None
        if isinstance(body, ChatRequest):
            form, plan = await prepared_chat(service, request, body)
        else:
            plan = plan_request(service, body, body.prompts)
        rounds = RoundStream(service, form)
        run = RequestRun(service, plan, request.state.logged, rounds.prepare)
        await run.start_for(request)
        return EventStream(rounds.text(run), run)


class RoundStream:
    """The generations of a request as events: `start`, a `round` for each round and `end`, with data of `explain.page`.

    The `end` of an answer to a conversation has its `message`, written by `form`, to be sent back in the next request.
    Recording a generation changes no text.
    """

    def __init__(self, service: Service, form: ChatForm | None = None) -> None:
        self.service, self.form = service, form
        self._recorded: list[_RecordedGeneration] = []

    def prepare(self, generation: Generation) -> None:
        """Have the next generation recorded, before it is queued."""
        self._recorded.append(_RecordedGeneration(self.service, generation))

    async def text(self, run: RequestRun) -> AsyncIterator[str]:
        """Server-sent events of a request that was started; an `error`, in OpenAI's form, is the last one."""
        pool = self.service.answers

        def starts() -> str:
            return "".join(_event("start", index, one.start()) for index, one in enumerate(self._recorded))

        def round_text(index: int, event: StreamEvent) -> str:
            text = _event("round", index, self._recorded[index].round(event))
            if event.result is not None:
                joules = run.summary["metrics"].get("joules")
                end = {**page.end(event.result), "joules": joules}
                if self.form is not None:
                    end["message"] = self.form.choice(index, answers.pieces(event.result)[0])["message"]
                text += _event("end", index, end)
            return text

        try:
            yield await pool.run(starts)
            async with asyncio.timeout(self.service.settings.request_seconds), aclosing(run.events()) as batches:
                async for batch in batches:
                    for index, event in batch:
                        yield await pool.run(round_text, index, event)
        except Exception as error:
            shown = self.service.logged_error(error, "while its rounds were told").document
            yield f"event: error\ndata: {json.dumps(shown, ensure_ascii=False)}\n\n"


class _RecordedGeneration:
    def __init__(self, service: Service, generation: Generation) -> None:
        engine = self._engine = service.engine
        models = {**service.public.value(engine.names), "device": str(engine.target.device)}
        self._recording = RecordedGeneration.of(generation, engine.tokenizer, models)
        self._tokens = list(generation.request.prompt)  # all so far
        self._grower = Grower([generation.request.prompt[-1:]])
        self._rounds = 0

    def start(self) -> dict[str, Any]:
        recording = self._recording
        return {**page.start(recording.about, self._tokens, recording.words), "hint": hint(self._engine, self._tokens)}

    def round(self, event: StreamEvent) -> dict[str, Any]:
        recording, round_ = self._recording, event.round
        judgement, pieces = recording.judgements[self._rounds], recording.pieces(round_)
        tree, ends = self._grower.tree(round_, judgement), recording.generation.request.end_tokens
        document = page.round_document(tree, judgement, self._tokens, recording.words, ends, pieces)
        self._tokens += event.tokens
        self._rounds += 1
        return document


def _event(name: str, index: int, data: dict[str, Any]) -> str:
    """A server-sent event of the generation of an index."""
    return f"event: {name}\ndata: {json.dumps({'generation': index, **data}, ensure_ascii=False)}\n\n"
