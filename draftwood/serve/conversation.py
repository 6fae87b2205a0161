"""A request's conversation as its chat template takes it, and how the reply is read: thoughts, calls of tools."""

from __future__ import annotations

from typing import Any

from draftwood.models.text.replies import ReplyForm
from draftwood.serve.errors import ApiError
from draftwood.serve.messages import ChatMessage, Conversation, ToolChoice
from draftwood.serve.protocol import ChatRequest
from draftwood.serve.service import Service


def conversation_of(
    service: Service, body: Conversation, messages: list[ChatMessage], called: bool = True
) -> tuple[list[dict[str, Any]], dict[str, Any], ReplyForm]:
    """Messages and variables for the template, and the form of replies; without tools where they are not `called`."""
    tools = body.functions_offered if called else []
    form = ReplyForm(service.tokenizer, tools)
    variables = body.variables | ({"tools": tools} if tools and form.native else {})
    return form.told([message.plain() for message in messages]), variables, form


def checked_choice(body: ChatRequest) -> list[str]:
    """Names of the tools of which one has to be called, if any has; ApiError where there is no such tool."""
    choice, names = body.tool_choice, [tool.function.name for tool in body.tools or ()]
    if choice == "required" or isinstance(choice, ToolChoice):
        if not names:
            raise ApiError(400, "tool_choice asks for a call, but there are no tools; give tools", "tool_choice")
        if isinstance(choice, ToolChoice) and choice.function.name not in names:
            known = ", ".join(names)[:200]
            raise ApiError(400, f"there is no tool {choice.function.name!r}; the tools are {known}", "tool_choice")
        return [choice.function.name] if isinstance(choice, ToolChoice) else names
    return []


async def constraints_of(
    service: Service, body: ChatRequest, form: ReplyForm, messages: list[dict[str, Any]], variables: dict[str, Any]
) -> list[dict[str, Any]]:
    """Constraints on the text: what the request asks for, and the calls that it must have, or may where all are strict.

    Where the prompt has opened a thought, they are on what follows it.
    """
    several, names, asked = body.parallel_tool_calls is not False and body.functions is None, checked_choice(body), None
    constraints = body.structured
    if names or constraints:
        opened = form.thought is not None and form.opened(await service.read(messages, None, variables))
        if names:
            asked = form.grammar(names, several, opened)
        elif opened and len(constraints) == 1:
            constraints = [form.behind_thought(constraints[0])]
    elif form.tools and form.free and all(tool.function.strict for tool in body.tools or ()):
        asked = form.grammar([tool.function.name for tool in body.tools or ()], several, free=True)
    return constraints if asked is None else [*constraints, {"grammar": asked}]
