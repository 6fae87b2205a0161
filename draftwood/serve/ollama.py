"""Ollama's /api/chat, /api/generate and what lists models: a thin form over chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import AfterValidator, Field
from starlette.responses import JSONResponse, Response

from draftwood.engine.request import Prompt
from draftwood.serve.answers import ReplyFields
from draftwood.serve.completions import chat_form, chat_parts, chat_request, prepared_chat, whole_chat
from draftwood.serve.fields import Every, Loose, Name, Text
from draftwood.serve.infill import infill_prompt
from draftwood.serve.messages import MAX_MESSAGES, MAX_TOOLS, Tool
from draftwood.serve.request_mapping import plan_request
from draftwood.serve.request_run import EventStream, RequestRun, unless_gone
from draftwood.serve.service import Service, check_model

OPTIONS = {  # of Ollama's `options` -> ours; the others are about how a model is loaded
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "speculation")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
}
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}


def no_images(images: Any) -> Any:
    """Raise ValueError where there are any."""
    if images:
        raise ValueError("images cannot be read, since this server's models read text alone; leave them out")


class OllamaRequest(Loose):
    """Fields of both requests for text."""

    model: Name
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    system: Text | None = None
    images: Annotated[Any, AfterValidator(no_images)] = None

    def chat(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The same as fields of /v1/chat/completions."""
        fields = {OPTIONS[name]: value for name, value in (self.options or {}).items() if name in OPTIONS}
        if fields.get("max_tokens") in (0, -2):  # as many as fit, as -1: Ollama limits nothing below 1
            fields["max_tokens"] = -1
        if isinstance(self.format, dict):
            fields["response_format"] = {"type": "json_schema", "schema": self.format}
        elif self.format:
            fields["response_format"] = {"type": "json_object"}
        if isinstance(self.think, bool):
            fields["chat_template_kwargs"] = {"enable_thinking": self.think}
        elif self.think is not None:
            fields["reasoning_effort"] = self.think
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        if messages[-1].get("role") == "assistant":  # the reply goes on with it
            fields["continue_final_message"] = True
        return {**fields, "messages": [*system, *messages]}


class OllamaChatRequest(OllamaRequest):
    messages: Annotated[
        Every[Annotated[dict[str, Any], AfterValidator(lambda one: no_images(one.get("images")) or one)]],
        Field(min_length=1, max_length=MAX_MESSAGES),
    ]
    tools: Annotated[Every[Tool], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaRequest):
    prompt: Text = ""
    suffix: Text | None = None
    raw: bool | None = None


class ShowRequest(Loose):
    model: Name


def add_ollama(app: FastAPI, service: Service) -> None:
    """Add the endpoints."""

    @app.post("/api/chat", responses=LINES)
    async def chat(body: OllamaChatRequest, request: Request) -> Response:
        """Answer a conversation, as Ollama's API has it."""
        messages = [{**one, "reasoning_content": one.get("thinking")} for one in body.messages]
        tools = None if body.tools is None else [tool.model_dump() for tool in body.tools]
        return await answer(body, request, {**body.chat(messages), "tools": tools}, "message")

    @app.post("/api/generate", responses=LINES)
    async def generate(body: OllamaGenerateRequest, request: Request) -> Response:
        """Answer a text, as Ollama's API has it."""
        prompt: Prompt | None = None
        if body.suffix:
            prompt = await service.texts.run(infill_prompt, service.tokenizer, body.prompt, body.suffix)
        elif body.raw or not service.tokenizer.templates:
            prompt = body.prompt
        return await answer(body, request, body.chat([{"role": "user", "content": body.prompt}]), "response", prompt)

    async def answer(
        body: OllamaRequest, request: Request, given: dict[str, Any], key: str, prompt: Prompt | None = None
    ) -> Response:
        """Answer the conversation that is given, or continue a prompt."""
        same = chat_request(service, given, named(body.model))
        if prompt is None:
            form, plan = await prepared_chat(service, request, same)
        else:
            form, plan = chat_form(service, same), plan_request(service, same, [prompt])
        form.piecewise = False
        run = RequestRun(service, plan, request.state.logged)
        if body.stream:
            await run.start_for(request)
            return EventStream(_lines(run, chat_parts(run, form), key), run, "application/x-ndjson")
        parts = await unless_gone(request.receive, whole_chat(run, form))
        return JSONResponse({**_line(run, key, parts), **_end(run)})

    @app.get("/api/tags")
    async def tags() -> dict[str, Any]:
        """The one model that is served."""
        return ollama_models({service.name: 0}, service.created)

    @app.get("/api/ps")
    async def running() -> dict[str, Any]:
        """The same: it is loaded."""
        return await tags()

    @app.post("/api/show")
    async def show(body: ShowRequest) -> dict[str, Any]:
        """The facts of that model."""
        check_model(service, named(body.model))
        template = next((one.source for one in service.tokenizer.templates.values()), "")
        facts = {"general.architecture": "draftwood", "draftwood.context_length": service.engine.target.context}
        return {"template": template, "details": {}, "model_info": facts, "capabilities": ["completion", "tools"]}

    def named(model: str) -> str:
        """A model's name without the tag that Ollama's clients add."""
        return model if model == service.name else model.removesuffix(":latest")


def ollama_models(sizes: Mapping[str, int], created: int) -> dict[str, Any]:
    """The list of models by name, with the bytes of each, as Ollama has it."""
    changed = datetime.fromtimestamp(created, UTC).isoformat()
    named = [{"name": name, "model": name, "size": size} for name, size in sizes.items()]
    return {"models": [{**one, "modified_at": changed, "digest": "", "details": {}} for one in named]}


def _line(run: RequestRun, key: str, parts: ReplyFields) -> dict[str, Any]:
    content, more, _ = parts
    line: dict[str, Any] = {"model": run.service.name, "created_at": datetime.now(UTC).isoformat(), "done": False}
    thought = {"thinking": more["reasoning_content"]} if "reasoning_content" in more else {}
    if key == "response":
        return {**line, "response": content, **thought}
    message: dict[str, Any] = {"role": "assistant", "content": content, **thought}
    if calls := [one["function"] for one in more.get("tool_calls", ())]:
        message["tool_calls"] = [
            {"function": {"name": one["name"], "arguments": json.loads(one["arguments"])}} for one in calls
        ]
    return {**line, "message": message}


def _end(run: RequestRun) -> dict[str, Any]:
    """Fields of the last line alone; durations in nanoseconds."""
    used, spent = run.usage, int(1e9 * (time.perf_counter() - run.start_time))
    return {
        "done": True,
        "done_reason": "length" if run.finished[0].finish_reason == "length" else "stop",
        "total_duration": spent,
        "prompt_eval_count": used["prompt_tokens"],
        "eval_count": used["completion_tokens"],
        "eval_duration": spent,
        "metrics": run.summary["metrics"],
    }


async def _lines(run: RequestRun, parts: AsyncIterator[ReplyFields], key: str) -> AsyncIterator[str]:
    """Lines of JSON as the reply grows."""
    try:
        async for part in parts:
            yield json.dumps(_line(run, key, part)) + "\n"
        yield json.dumps({**_line(run, key, ("", {}, None)), **_end(run)}) + "\n"
    except Exception as error:
        yield json.dumps({"error": str(run.service.logged_error(error, "while it was streamed"))}) + "\n"
