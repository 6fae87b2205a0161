"""Chat templates: a conversation to the text that a chat model was trained on.

Knows where a checkpoint keeps its templates and renders them as Hugging Face does, in jinja's sandbox: a template is
untrusted code that may only build text from plain data. Refuses to know token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from traceback import walk_tb
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from draftwood.errors import ModelError, RequestError
from draftwood.models.files import read_json

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, and what else the template reads

DEFAULT, TOOLS = "default", "tool_use"  # names of templates
END = "END_OF_THE_UNFINISHED_MESSAGE "  # marks the place behind which nothing of a message to be continued may come


class _Refusal(Exception):
    """What a template says by raise_exception."""


class ChatTemplate:
    """One template; `origin` is the file that it came from. It is compiled when it is first used."""

    def __init__(self, source: str, origin: str) -> None:
        self.source = source
        self.origin = origin

    @cached_property
    def _template(self) -> Template:
        environment = _environment()
        try:
            code = environment.compile(self.source, filename=self.origin)
        except Exception as error:  # bad syntax, or nested too deep for Python
            line = error.lineno if isinstance(error, TemplateSyntaxError) else 0
            raise ModelError(f"{self._place(line)} is broken: {_line(str(error)) or type(error).__name__}") from error
        return Template.from_code(environment, code, environment.make_globals(None))

    def render(self, **variables: Any) -> str:
        """The text; refuses with the template's own words, or names the line that fails."""
        template = self._template
        try:
            return template.render(variables)
        except _Refusal as error:
            raise RequestError(f"the chat template refuses these messages: {_line(str(error))}") from error
        except SecurityError as error:
            raise ModelError(
                f"{self._place(self._failed(error))} does what a template may not: {_line(str(error))}"
            ) from error
        except Exception as error:  # a template can fail in any way
            reason = _line(str(error)) or type(error).__name__
            raise RequestError(f"{self._place(self._failed(error))} fails on these messages: {reason}") from error

    def _failed(self, error: BaseException) -> int:
        """The innermost line of the template in a traceback; 0 if there is none."""
        frames = walk_tb(error.__traceback__)
        return next((line for frame, line in reversed(list(frames)) if frame.f_code.co_filename == self.origin), 0)

    def _place(self, line: int) -> str:
        return f"the chat template of {self.origin or 'this tokenizer'}" + (f", line {line}," if line else "")


def templates(directory: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """A directory's templates by name: from .jinja files, else tokenizer_config.json, else chat_template.json."""
    found = {}
    for path in (directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))):
        if path.is_file():
            name = DEFAULT if path.parent == directory else path.stem
            try:
                found[name] = ChatTemplate(path.read_text("utf-8"), str(path))
            except (OSError, ValueError) as error:
                raise ModelError(f"{path} cannot be read as text ({error}); fetch it again") from error
    if found:
        return found
    path = directory / "chat_template.json"
    if config.get("chat_template") is None and path.is_file():
        return declared(read_json(path), str(path))
    return declared(config, str(directory / "tokenizer_config.json"))


def declared(config: Mapping[str, Any], origin: str) -> dict[str, ChatTemplate]:
    """The templates under the key chat_template: one text, or named ones as a mapping or a list of both."""
    value = config.get("chat_template")
    if value is None:
        return {}
    try:
        named = {DEFAULT: value} if isinstance(value, str) else value
        if not isinstance(named, Mapping):
            named = {entry["name"]: entry["template"] for entry in named}
        if not all(isinstance(text, str) for text in named.values()):
            raise TypeError
    except (TypeError, KeyError):
        raise ModelError(f"{origin}: chat_template is neither a text nor a list of names and templates") from None
    return {str(name): ChatTemplate(text, origin) for name, text in named.items()}


def render(
    found: Mapping[str, ChatTemplate],
    messages: Sequence[Message],
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The conversation as text, by the template for tools if there are both, else by the default one."""
    name = TOOLS if tools is not None and TOOLS in found else DEFAULT
    if name not in found:
        raise ModelError(f"there are several chat templates ({', '.join(sorted(found))}), but none is named {name}")
    plain = _conversation(messages)
    opened = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    if continue_final_message:
        if opened:
            raise RequestError("a message is either continued or followed by a new one; set one of the two options")
        if not isinstance(plain[-1].get("content"), str):
            raise RequestError("continue_final_message needs a text as the content of the last message")
        plain[-1]["content"] += END
    data = _plain({"tools": tools, "documents": None, **variables}, "the template's variables")
    text = found[name].render(messages=plain, add_generation_prompt=opened, **data)
    if not continue_final_message:
        return text
    head, mark, tail = text.rpartition(END.rstrip())
    if not mark:
        raise RequestError("the chat template drops the last message, so that it cannot be continued")
    return head if tail.startswith(" ") else head.rstrip()  # a template that strips messages would strip this one


def _conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy of plain data; keys without a value are left out, since templates ask whether there is a key."""
    if not messages:
        raise RequestError("the conversation is empty; give at least one message")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f'a message is a mapping such as {{"role": "user", "content": "..."}}, not {message!r}')
    kept = [{key: value for key, value in message.items() if value is not None} for message in messages]
    plain: list[dict[str, Any]] = _plain(kept, "messages")
    return plain


def _plain(value: Any, what: str) -> Any:
    """A copy made of JSON's types alone: objects could carry methods that the sandbox does not know."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{what} must be plain data, as JSON has it: {_line(str(error))}") from error


class _Generation(Extension):
    """{% generation %} marks an assistant's text for training; here its body alone counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Jinja's namespace; names that begin with an underscore are Python's own and not for templates."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace takes no name such as {name!r}")
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    made = _Namespace()
    for name, value in dict(*args, **kwargs).items():
        made[name] = value
    return made


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML's characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        namespace=_namespace,
        dict=lambda *args, **kwargs: dict(*args, **kwargs),  # the type itself would bring its methods
    )
    return environment


def _line(message: str) -> str:
    return " ".join(message.split())
