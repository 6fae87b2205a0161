"""/v1/responses: the part of OpenAI's newer interface that text generation needs; nothing is stored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import chain, starmap
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from draftwood.engine.request import Prompt
from draftwood.serve.answers import ChatForm, Piece, pieces
from draftwood.serve.protocol import ChatMessage, ChatRequest, ResponseRequest, TextRequest
from draftwood.serve.request_mapping import plan_request
from draftwood.serve.request_run import STREAMED, EventStream, RequestRun, unless_gone
from draftwood.serve.service import Service, check_model


def add_responses(app: FastAPI, service: Service) -> None:
    """Add the endpoint."""

    @app.post("/v1/responses", responses=STREAMED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Answer a text or a conversation; a model without a chat template continues the text."""
        check_model(service, body.model)
        prompt = prompt_of(service, body)
        equivalent = ChatRequest.model_construct(
            **{name: getattr(body, name) for name in TextRequest.model_fields},
            messages=[],
            max_completion_tokens=body.max_output_tokens,
            guided_json=_schema(body),
            logprobs=bool(body.include),
            top_logprobs=body.top_logprobs,
        )
        run = RequestRun(service, plan_request(service, equivalent, [prompt]), request.state.logged)
        response = ResponseDocument(run, body, request.state.request_id)
        await run.start_for(request)
        if body.stream:
            return EventStream(response.events(), run)
        return await unless_gone(request.receive, response.whole())


def _schema(body: ResponseRequest) -> dict[str, Any] | None:
    """The JSON schema that an answer has to follow, if any; that of any object for json_object."""
    form = None if body.text is None else body.text.format
    if form is None or form.type == "text":
        return None
    return {"type": "object"} if form.type == "json_object" else form.schema_


def prompt_of(service: Service, body: ResponseRequest) -> Prompt:
    """A conversation, or plain text where the model knows no conversations and none is given."""
    if isinstance(body.input, str) and not body.instructions and not service.tokenizer.templates:
        return body.input
    given = [ChatMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    first = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    return [message.plain() for message in (*first, *given)]


class ResponseDocument:
    """One response: its document so far, and the events that lead to it."""

    def __init__(self, run: RequestRun, body: ResponseRequest, request_id: str) -> None:
        self.run, self.item = run, f"msg_{request_id}"
        self.form = ChatForm(run.service.tokenizer, run.service.spell, bool(body.include), unknown=[])
        self.text, self.number = "", 0
        self.logprobs: list[dict[str, Any]] = []  # of the text so far, where they are asked for
        self.document: dict[str, Any] = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": run.service.name,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} if body.text is None else body.text.model_dump(by_alias=True),
            "tool_choice": "none",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }

    async def whole(self) -> Response:
        """The finished document."""
        service = self.run.service
        async with asyncio.timeout(service.settings.request_seconds):
            await self.run.finish()
        return await service.answers.answer(self._finished, self._size())

    def _size(self) -> int:
        return pieces(self.run.finished[0])[0].size if self.form.logprobs else 0

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _message(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self.item, "status": status, "role": "assistant", "content": content}

    def _finished(self) -> dict[str, Any]:
        (result,) = self.run.finished
        summary = self.run.summary
        used, piece = summary["usage"], pieces(result)[0]
        self.text, self.logprobs = piece.text, self._logprobs(piece)
        cut = result.finish_reason in ("length", "cancelled")
        self.document |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._message("incomplete" if cut else "completed")],
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"] | {"cache_write_tokens": 0},
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            },
            "metrics": summary["metrics"],
        }
        return self.document

    def _ends(self, place: dict[str, Any]) -> Iterator[str]:
        """The last events, all of which have the whole text."""
        document = self._finished()
        yield self._event("response.output_text.done", **place, text=self.text, logprobs=self.logprobs)
        yield self._event("response.content_part.done", **place, part=self._part())
        yield self._event("response.output_item.done", output_index=0, item=document["output"][0])
        yield self._event(f"response.{document['status']}", response=document)

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        return self.form.content(piece) if self.form.logprobs else []

    def _event(self, kind: str, **more: Any) -> str:
        data = {"type": kind, "sequence_number": self.number, **more}
        self.number += 1
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events, from response.created to response.completed."""
        place = {"item_id": self.item, "output_index": 0, "content_index": 0}
        try:
            yield self._event("response.created", response=self.document)
            yield self._event("response.in_progress", response=self.document)
            yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
            yield self._event("response.content_part.added", **place, part=self._part())
            limit = asyncio.timeout(self.run.service.settings.request_seconds)
            async with limit, aclosing(self.run.events()) as batches:
                async for events in batches:
                    for index, piece in chain.from_iterable(starmap(self.run.deltas, events)):
                        logprobs = self._logprobs(piece)
                        if index == 0 and (piece.text or logprobs):
                            yield self._event(
                                "response.output_text.delta", **place, delta=piece.text, logprobs=logprobs
                            )
            yield await self.run.service.answers.write(lambda: "".join(self._ends(place)), self._size())
        except Exception as error:
            shown = self.run.service.logged_error(error, "while it was streamed")
            self.document |= {"status": "failed", "error": {"code": "server_error", "message": str(shown)}}
            yield self._event("response.failed", response=self.document)
