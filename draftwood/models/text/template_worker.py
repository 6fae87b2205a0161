"""A process of its own that renders chat templates, so that none can hang or fill the process that asks.

Run as a script with the limits in bytes and seconds; it imports nothing of draftwood. Reads a JSON object with source,
origin and variables from each line of its input, and answers with a line: {"text": ...}, or {"kind", "reason", "line"}
where the template is broken, forbidden, refused (by raise_exception) or failed. It dies when a template takes too long.

Templates are untrusted: they render in jinja's sandbox, which lets them build text from plain data only.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from traceback import walk_tb
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT_CHARACTERS = 16 << 20  # characters of a rendered text


class _Refusal(Exception):
    """Raised by a template that calls raise_exception."""


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


@lru_cache(maxsize=64)
def _compiled(source: str, origin: str) -> tuple[Template, bool]:
    """The template, and whether it takes contents as lists of parts alone."""
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
    tree = environment.parse(source, filename=origin)
    parted = any(_of_content(loop.iter) for loop in tree.find_all(nodes.For))
    texts = any(test.name == "string" and _of_content(test.node) for test in tree.find_all(nodes.Test))
    code = environment.compile(tree, filename=origin)
    return Template.from_code(environment, code, environment.make_globals(None)), parted and not texts


def _of_content(expression: nodes.Node) -> bool:
    """True if an expression is about the content of a message: message.content, message["content"] or content."""
    while isinstance(expression, nodes.Filter | nodes.Call) and expression.node is not None:
        expression = expression.node
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == "content"
    if isinstance(expression, nodes.Getattr):
        return expression.attr == "content"
    return isinstance(expression, nodes.Name) and expression.name == "content"


def _in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Contents that are texts become lists of one part, as templates of models that see images want them."""

    def parts(content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    return [
        {**message, "content": parts(message["content"])} if "content" in message else message for message in messages
    ]


def answer(source: str, origin: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Render a template; the answer to one request, as the module describes it."""

    def failed(kind: str, error: BaseException, line: int | None = None) -> dict[str, Any]:
        if line is None:  # the innermost line of the template in the traceback
            frames = reversed(list(walk_tb(error.__traceback__)))
            line = next((number for frame, number in frames if frame.f_code.co_filename == origin), 0)
        reason = " ".join(str(error)[:1000].split()) or type(error).__name__
        return {"kind": kind, "reason": reason, "line": line}

    try:
        template, parted = _compiled(source, origin)
    except Exception as error:  # bad syntax, or nested too deep for Python
        return failed("broken", error, error.lineno if isinstance(error, TemplateSyntaxError) else 0)
    try:
        if parted and "messages" in variables:
            variables = {**variables, "messages": _in_parts(variables["messages"])}
        text, size = [], 0
        for piece in template.generate(variables):
            text.append(piece)
            size += len(piece)
            if size > MAX_TEXT_CHARACTERS:
                raise MemoryError(f"it writes more than {MAX_TEXT_CHARACTERS:,} characters")
        return {"text": "".join(text)}
    except _Refusal as error:
        return failed("refused", error)
    except SecurityError as error:
        return failed("forbidden", error)
    except MemoryError as error:
        return failed(
            "failed", MemoryError(str(error) or "it takes too much memory").with_traceback(error.__traceback__)
        )
    except Exception as error:  # a template can fail in any way
        return failed("failed", error)


def main(memory: int, seconds: int) -> None:
    """Answer requests until the input ends."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # Windows has none; macOS does not let it be set
        pass
    for line in sys.stdin.buffer:
        if hasattr(signal, "alarm"):  # its default action ends the process, whatever it is in
            signal.alarm(seconds)
        reply = json.dumps(answer(**json.loads(line)))
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
