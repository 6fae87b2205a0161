"""/v1/responses: the part of OpenAI's newer interface that text generation needs; nothing is stored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import chain, starmap
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from starlette.responses import Response

from draftwood.serve.answers import ChatForm, Piece, pieces
from draftwood.serve.completions import chat_form, chat_request, prepared_chat
from draftwood.serve.request_mapping import RequestPlan, plan_request
from draftwood.serve.request_run import STREAMED, EventStream, RequestRun, unless_gone
from draftwood.serve.response_request import ResponseRequest
from draftwood.serve.service import Service

ResponseEvent: TypeAlias = dict[str, Any]
ITEM_IDS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}  # how ids of items begin


def add_responses(app: FastAPI, service: Service) -> None:
    """Add the endpoint."""

    @app.post("/responses", include_in_schema=False)
    @app.post("/v1/responses", responses=STREAMED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Answer a text or a conversation; a model without a chat template continues the text."""
        form, plan = await prepared(service, request, body)
        run = RequestRun(service, plan, request.state.logged)
        response = ResponseDocument(run, form, body, request.state.request_id)
        await run.start_for(request)
        if body.stream:
            return EventStream(response.events(), run)
        return await unless_gone(request.receive, response.whole())


async def prepared(service: Service, request: Request, body: ResponseRequest) -> tuple[ChatForm, RequestPlan]:
    """As `prepared_chat`; plain text goes on as it is where the model knows no conversations and none is given."""
    chat = chat_request(service, body.chat, body.model)
    if isinstance(body.input, str) and not body.instructions and not service.tokenizer.templates:
        form, plan = chat_form(service, chat), plan_request(service, chat, [body.input])
    else:
        form, plan = await prepared_chat(service, request, chat)
    form.unknown = []
    return form, plan


class ResponseDocument:
    """One response: its document so far, and the events that lead to it.

    Its output has items, one after the other: thoughts, text, a call each.
    """

    def __init__(self, run: RequestRun, form: ChatForm, body: ResponseRequest, request_id: str) -> None:
        self.run, self.form, self.id, self.number = run, form, request_id, 0
        self.output: list[dict[str, Any]] = []
        self.open = False  # whether the last item may grow
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
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} if body.text is None else body.text.model_dump(by_alias=True),
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [one.model_dump() for one in body.tools or ()],
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
        (piece,) = (piece for index, piece in self.run.choices() if index == 0)

        def document() -> dict[str, Any]:
            for _ in chain(self._grown(piece), self._ended()):
                pass
            return self.document

        return await service.answers.answer(document, self._size())

    def _size(self) -> int:
        return pieces(self.run.finished[0])[0].size if self.form.logprobs else 0

    def _event(self, kind: str, **more: Any) -> ResponseEvent:
        self.number += 1
        return {"type": f"response.{kind}", "sequence_number": self.number - 1, **more}

    def _begin(self, kind: str, **more: Any) -> Iterator[ResponseEvent]:
        """Open an item of a kind, after closing the last one."""
        yield from self._close()
        item = {"id": f"{ITEM_IDS[kind]}_{self.id}_{len(self.output)}", "type": kind, "status": "in_progress", **more}
        self.output.append(item)
        self.open = True
        yield self._event("output_item.added", output_index=len(self.output) - 1, item=dict(item))
        if kind == "function_call":
            return
        item["content"] = [self._part(item)]
        yield self._event("content_part.added", **self._place(True), part=self._part(item))

    def _part(self, item: dict[str, Any]) -> dict[str, Any]:
        if item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": ""}
        return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

    def _place(self, content: bool) -> dict[str, Any]:
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return place | ({"content_index": 0} if content else {})

    def _close(self, status: str = "completed") -> Iterator[ResponseEvent]:
        """Close the last item, if it is open."""
        if not self.open:
            return
        item, self.open = self.output[-1], False
        item["status"] = status
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("function_call_arguments.done", **self._place(False), **done)
        else:
            (part,) = item["content"]
            text = {key: part[key] for key in ("text", "logprobs") if key in part}
            yield self._event(f"{part['type']}.done", **self._place(True), **text)
            yield self._event("content_part.done", **self._place(True), part=part)
        yield self._event("output_item.done", output_index=len(self.output) - 1, item=item)

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> Iterator[ResponseEvent]:
        """Go on with an item of text."""
        if not self.open or self.output[-1]["type"] != kind:
            more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
            yield from self._begin(kind, content=[], **more)
        (part,) = self.output[-1]["content"]
        part["text"] += text
        more = {}
        if kind == "message":
            part["logprobs"] += logprobs
            more["logprobs"] = logprobs
        yield self._event(f"{part['type']}.delta", **self._place(True), delta=text, **more)

    def _grown(self, piece: Piece) -> Iterator[ResponseEvent]:
        """Events of the next part of the text."""
        content, more, _ = self.form.parts(0, piece)
        logprobs = self.form.content(piece) if self.form.logprobs else []
        if thought := more.get("reasoning_content"):
            yield from self._text("reasoning", thought, [])
        if content or (logprobs and self.form.reply is None):
            yield from self._text("message", content, logprobs)
        for call in more.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                named = {"call_id": f"call_{call['id']}", "name": function["name"], "arguments": ""}
                yield from self._begin("function_call", **named)
            self.output[-1]["arguments"] += function["arguments"]
            yield self._event("function_call_arguments.delta", **self._place(False), delta=function["arguments"])

    def _ended(self) -> Iterator[ResponseEvent]:
        """The last events."""
        (result,) = self.run.finished
        summary = self.run.summary
        used, cut = summary["usage"], result.finish_reason in ("length", "cancelled")
        if not self.output:
            yield from self._text("message", "", [])
        yield from self._close("incomplete" if cut else "completed")
        self.document |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.output,
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"] | {"cache_write_tokens": 0},
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            },
            "metrics": summary["metrics"],
        }
        yield self._event(self.document["status"], response=self.document)

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events, from response.created to response.completed."""
        try:
            yield _written([self._event("created", response=self.document)])
            yield _written([self._event("in_progress", response=self.document)])
            limit = asyncio.timeout(self.run.service.settings.request_seconds)
            async with limit, aclosing(self.run.events()) as batches:
                async for events in batches:
                    for index, piece in chain.from_iterable(starmap(self.run.deltas, events)):
                        if index == 0 and (lines := _written(self._grown(piece))):
                            yield lines
            yield await self.run.service.answers.write(lambda: _written(self._ended()), self._size())
        except Exception as error:
            shown = self.run.service.logged_error(error, "while it was streamed")
            self.document |= {"status": "failed", "error": {"code": "server_error", "message": str(shown)}}
            yield _written([self._event("failed", response=self.document)])


def _written(events: list[ResponseEvent] | Iterator[ResponseEvent]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
