"""Anthropic's /v1/messages: a thin form over chat completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from draftwood.serve.answers import ReplyFields
from draftwood.serve.completions import chat_parts, chat_request, prepared_chat, whole_chat
from draftwood.serve.conversation import conversation_of
from draftwood.serve.fields import Every, Loose, Name, StopText, Text
from draftwood.serve.messages import MAX_MESSAGE_PARTS, MAX_MESSAGES, MAX_TOOLS
from draftwood.serve.request_run import STREAMED, EventStream, RequestRun, unless_gone
from draftwood.serve.service import Service, check_model

Blocks = Text | Annotated[Every[dict[str, Any]], Field(max_length=MAX_MESSAGE_PARTS)]
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Turn(Loose):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class OfferedTool(Loose):
    name: Name
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class WantedTool(Loose):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(Loose):
    """The fields that become tokens of the prompt; the model sees no others."""

    model: Name | None = None
    messages: Annotated[Every[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Blocks | None = None
    tools: Annotated[Every[OfferedTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: WantedTool | None = None

    @property
    def chat(self) -> dict[str, Any]:
        """The same as fields of /v1/chat/completions."""
        fields: dict[str, Any] = {
            "messages": [] if self.system is None else [{"role": "system", "content": self.system}]
        }
        for turn in self.messages:
            fields["messages"] += _messages(turn)
        if self.messages[-1].role == "assistant":  # the reply goes on with it
            fields["continue_final_message"] = True
        if self.tools:
            fields["tools"] = [
                {
                    "type": "function",
                    "function": {**one.model_dump(exclude={"input_schema"}), "parameters": one.input_schema},
                }
                for one in self.tools
            ]
        if (choice := self.tool_choice) is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            fields["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return fields


class Thinking(Loose):
    type: Name


class OutputFormat(Loose):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Loose):
    effort: Name | None = None
    format: OutputFormat | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    speculation: Any = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @property
    def chat(self) -> dict[str, Any]:
        named = ("max_tokens", "stream", "temperature", "top_p", "top_k", "speculation")
        fields = {**super().chat, **{name: getattr(self, name) for name in named}, "stop": self.stop_sequences}
        if self.thinking is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
        if (wanted := self.output_config) is not None:
            fields["reasoning_effort"] = wanted.effort
            fields["guided_json"] = None if wanted.format is None else wanted.format.schema_
        return fields


def _messages(turn: Turn) -> list[dict[str, Any]]:
    """The messages that a turn is: results of tools are messages of their own, before the rest."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, parts, calls, thought = [], [], [], ""
    for block in turn.content:
        kind = block.get("type")
        if kind == "tool_result":
            content = block.get("content") or ""
            results.append({"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id")})
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "function": function})
        elif kind == "thinking":
            thought += str(block.get("thinking", ""))
        else:
            parts.append(block)
    said: dict[str, Any] = {"role": turn.role, "content": parts, "tool_calls": calls or None}
    return [*results, *([said | {"reasoning_content": thought or None}] if parts or calls or thought else [])]


def add_messages(app: FastAPI, service: Service) -> None:
    """Add the endpoints."""

    @app.post("/v1/messages", responses=STREAMED)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, as Anthropic's API has it."""
        form, plan = await prepared_chat(service, request, chat_request(service, body.chat, body.model))
        run = RequestRun(service, plan, request.state.logged)
        head = {"id": f"msg_{request.state.request_id}", "type": "message", "role": "assistant", "model": service.name}
        if body.stream:
            await run.start_for(request)
            return EventStream(_events(run, chat_parts(run, form), head), run)
        content, more, finish = await unless_gone(request.receive, whole_chat(run, form))
        blocks = [block | _filled(block, text) for block, text in _blocks(content, more) if block is not None]
        document = {
            **head,
            "content": blocks,
            **_end(run, finish),
            "usage": _usage(run),
            "metrics": run.summary["metrics"],
        }
        return JSONResponse(document)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        """The number of tokens of a conversation."""
        check_model(service, body.model)
        chat = chat_request(service, body.chat, body.model)
        talk, variables, _ = conversation_of(service, chat, chat.messages)
        tokens = await unless_gone(request.receive, service.read(talk, None, variables))
        return JSONResponse({"input_tokens": len(tokens)})


def _blocks(content: str, more: Mapping[str, Any]) -> list[tuple[dict[str, Any] | None, str]]:
    """The blocks of a message's part, each empty, and the text that fills it; None: the call before goes on."""
    blocks: list[tuple[dict[str, Any] | None, str]] = []
    if thought := more.get("reasoning_content"):
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, thought))
    if content:
        blocks.append(({"type": "text", "text": ""}, content))
    for call in more.get("tool_calls", ()):
        begun = None
        if "id" in call:
            begun = {"type": "tool_use", "id": f"toolu_{call['id']}", "name": call["function"]["name"], "input": {}}
        blocks.append((begun, call["function"]["arguments"]))
    return blocks


def _filled(block: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"input": json.loads(text)} if block["type"] == "tool_use" else {block["type"]: text}


def _end(run: RequestRun, finish: str | None) -> dict[str, Any]:
    reason = "stop_sequence" if run.finished[0].finish_reason == "stop" else STOP_REASONS.get(finish or "", "end_turn")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(run: RequestRun) -> dict[str, Any]:
    used = run.usage
    return {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]}


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


async def _events(run: RequestRun, parts: AsyncIterator[ReplyFields], head: dict[str, Any]) -> AsyncIterator[str]:
    """Server-sent events: each block begins, grows and stops."""
    try:
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(run)}
        yield _event("message_start", message=begun)
        index, kind, finish = -1, "", None
        async for content, more, ended in parts:
            finish = ended
            for block, text in _blocks(content, more):
                if block is not None and (block["type"] != kind or kind == "tool_use"):
                    if kind:
                        yield _event("content_block_stop", index=index)
                    index, kind = index + 1, block["type"]
                    yield _event("content_block_start", index=index, content_block=block)
                if kind == "tool_use":
                    delta = {"type": "input_json_delta", "partial_json": text}
                else:
                    delta = {"type": f"{kind}_delta", kind: text}
                yield _event("content_block_delta", index=index, delta=delta)
        if kind:
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_end(run, finish), usage=_usage(run))
        yield _event("message_stop")
    except Exception as error:
        shown = run.service.logged_error(error, "while it was streamed").document["error"]
        yield _event("error", error={"type": shown["type"], "message": shown["message"]})
