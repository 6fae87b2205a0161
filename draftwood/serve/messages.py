"""Conversations as clients send them: messages with calls of tools, what may be called, variables of the template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from draftwood.serve.fields import Body, Every, Loose, Name, Text, WritableSchema

MAX_MESSAGES = 1 << 14
MAX_MESSAGE_PARTS = 1 << 10  # of a message
MAX_TOOLS = 256
MAX_TEMPLATE_VARIABLES = 64


def _is_text(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file")):
        raise ValueError(f"{kind[:40]} cannot be read, since this server's models read text alone; leave it out")
    return part


class TextPart(Loose):
    type: Literal["text", "input_text", "output_text", "reasoning_text", "refusal"]
    text: Text | None = None
    refusal: Text | None = None


Content = Text | Annotated[Every[Annotated[TextPart, BeforeValidator(_is_text)]], Field(max_length=MAX_MESSAGE_PARTS)]


class CalledFunction(Loose):
    name: Name
    arguments: Text | dict[str, Any] | None = None

    @property
    def given(self) -> Any:
        """The arguments as templates take them."""
        try:
            return json.loads(self.arguments or "{}") if not isinstance(self.arguments, dict) else self.arguments
        except (ValueError, RecursionError):
            return self.arguments


class ToolCall(Loose):
    id: Name | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ChatMessage(Loose):
    """A message; answers may be sent back as they came, and as clients write them down."""

    role: Role
    content: Content | None = None
    name: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: Annotated[Every[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    function_call: CalledFunction | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        content = self.content
        if isinstance(content, list):
            content = joined(content)
        if self.role in ("assistant", "tool", "function"):
            content = content or ""  # as in an answer without text
        calls = list(self.tool_calls or ())
        if self.function_call is not None:
            calls.append(ToolCall(function=self.function_call))
        written = [
            {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": one.function.given}}
            for one in calls
        ]
        return {
            "role": {"developer": "system", "function": "tool"}.get(self.role, self.role),
            "content": content,
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": written or None,
            "tool_call_id": self.tool_call_id,
        }


class Function(Loose):
    """A function that a model may call."""

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: Text | None = None
    parameters: WritableSchema | None = None
    strict: bool | None = None


class Tool(Loose):
    type: Literal["function"]
    function: Function


class NamedFunction(Loose):
    name: Name


class ToolChoice(Loose):
    type: Literal["function"]
    function: NamedFunction


Messages = Annotated[Every[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    if len(given) > MAX_TEMPLATE_VARIABLES:
        raise ValueError(f"it has {len(given):,} entries, but at most {MAX_TEMPLATE_VARIABLES} are taken")
    if own := given.keys() & {"self", "choices", "messages", "max_tokens", "tools", "documents"}:
        raise ValueError(f"{min(own)} is no variable that can be set; leave it out")
    return given


class Conversation(Body):
    """How a conversation becomes text."""

    tools: Annotated[Every[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[WritableSchema, AfterValidator(_variables)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Name | None = None

    @property
    def functions_offered(self) -> list[dict[str, Any]]:
        """The tools as templates take them."""
        return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in self.tools or ()]

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template besides the messages."""
        kept = ("add_generation_prompt", "continue_final_message", "reasoning_effort")
        named = {name: value for name in kept if (value := getattr(self, name)) is not None}
        return {**(self.chat_template_kwargs or {}), **named}


def joined(parts: Iterable[TextPart]) -> str:
    """The text of parts."""
    return "".join(part.text or part.refusal or "" for part in parts)
