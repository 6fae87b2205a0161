"""The body of /v1/responses, and the conversation that it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from draftwood.serve.fields import MAX_TOP_LOGPROBS, Body, Every, Loose, Name, Text, max_entries, refused
from draftwood.serve.messages import MAX_MESSAGES, MAX_TOOLS, Content, Function, Role, joined
from draftwood.serve.protocol import IgnoredFields, JsonSchema, NoPadding, TextRequest


class TextFormat(JsonSchema):
    """The `ResponseFormat` of /v1/responses."""

    type: Literal["text", "json_object", "json_schema"]


class TextSettings(Body):
    format: TextFormat | None = None
    verbosity: Any = None


class ResponseItem(Loose):
    """A message of a response's input, a call, what it returned, or thoughts; answers may be sent back as they came."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Role | None = None
    content: Content | None = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: Text | None = None
    output: Content | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {"function_call": "name", "function_call_output": "call_id", "reasoning": "type"}
        if getattr(self, name := needed.get(self.type or "", "role")) is None:
            raise ValueError(f"an item of type {self.type or 'message'} needs {name}")
        return self


def _is_function(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"{kind[:40]!r} is a tool of OpenAI's own servers; here only functions are called")
    return tool


class ResponseTool(Function):
    type: Literal["function"]


class ResponseToolChoice(Loose):
    type: Literal["function"]
    name: Name


class Reasoning(Loose):
    effort: Name | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: NoPadding = None


Stored = Annotated[None, refused("nothing is stored here; send all of it as input")]


class ResponseRequest(TextRequest, IgnoredFields):
    """The part of OpenAI's /v1/responses that text generation needs; nothing is stored."""

    input: Text | Annotated[Every[ResponseItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    text: TextSettings | None = None
    include: Annotated[list[Name], Field(max_length=16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[dict[Text, Text], max_entries(64)] | None = None
    tools: Annotated[Every[Annotated[ResponseTool, BeforeValidator(_is_function)]], Field(max_length=MAX_TOOLS)] | (
        None
    ) = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Literal[False] | None = None
    stream_options: ResponseStreamOptions | None = None
    previous_response_id: Stored = None
    conversation: Stored = None
    prompt: Stored = None

    @property
    def logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def chat(self) -> dict[str, Any]:
        """The same as fields of /v1/chat/completions."""
        given: dict[str, Any] = {name: getattr(self, name) for name in TextRequest.model_fields}
        given |= {"messages": self.messages, "max_completion_tokens": self.max_output_tokens}
        given |= {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs if self.logprobs else None}
        given["parallel_tool_calls"] = self.parallel_tool_calls
        given["stream_options"] = None if self.stream_options is None else self.stream_options.model_dump()
        form = None if self.text is None else self.text.format
        if form is not None and form.type == "json_schema":
            given["guided_json"] = form.schema_
        elif form is not None and form.type == "json_object":
            given["response_format"] = {"type": "json_object"}
        if self.tools:
            given["tools"] = [
                {"type": "function", "function": one.model_dump(exclude={"type"}, exclude_none=True)}
                for one in self.tools
            ]
        choice = self.tool_choice
        if isinstance(choice, ResponseToolChoice):
            given["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            given["tool_choice"] = choice
        given["reasoning_effort"] = None if self.reasoning is None else self.reasoning.effort
        return given

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation; thoughts, text and calls of one reply are one message."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            content = item.content if item.content is None or isinstance(item.content, str) else joined(item.content)
            if item.type == "function_call_output":
                output = item.output if isinstance(item.output, str) else joined(item.output or ())
                messages.append({"role": "tool", "content": output, "tool_call_id": item.call_id})
                continue
            said: dict[str, Any] = {"role": item.role or "assistant"}
            if item.type == "function_call":
                said["tool_calls"] = [
                    {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
                ]
            else:
                said["reasoning_content" if item.type == "reasoning" else "content"] = content
            last = messages[-1] if messages else {}
            if last.get("role") == said["role"] == "assistant" and "tool_calls" in last and "tool_calls" in said:
                last["tool_calls"] += said["tool_calls"]
            elif last.get("role") == said["role"] == "assistant" and not last.keys() & (said.keys() - {"role"}):
                last |= said
            else:
                messages.append(said)
        return messages
