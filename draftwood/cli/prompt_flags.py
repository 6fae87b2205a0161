"""The flags of commands that decode one prompt: its text, a file of it, and a conversation around it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from draftwood.cli.flags import LIMITS
from draftwood.errors import RequestError

if TYPE_CHECKING:
    from draftwood.engine import Prompt

PromptArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from standard input.", show_default=False),
]
PromptFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the prompt from a file. As with -, one line break at its end is dropped.",
        rich_help_panel=LIMITS,
        show_default=False,
    ),
]
Chat: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--chat",
        metavar="",
        help="The prompt is a user's message: put it into the checkpoint's chat template.",
        rich_help_panel=LIMITS,
    ),
]
System: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="With --chat: the system message before it.", rich_help_panel=LIMITS, show_default=False
    ),
]


def prompt_text(argument: str | None, file: Path | None) -> str:
    """The prompt from the argument, standard input or a file; never empty."""
    if argument is not None and file is not None:
        raise RequestError("give the prompt as an argument or with --prompt-file, not both")
    if argument is None and file is None:
        raise RequestError("there is no prompt; give the text as an argument, - for standard input, or --prompt-file")
    try:
        if file is not None:
            text = _without_line_end(file.read_text("utf-8"))
        else:
            text = _without_line_end(sys.stdin.read()) if argument == "-" else str(argument)
        text.encode("utf-8")  # an argument of broken bytes arrives as lone surrogates
    except UnicodeError:
        raise RequestError("the prompt is not valid UTF-8; convert it first") from None
    except OSError as error:
        raise RequestError(f"the prompt file {file} cannot be read: {error.strerror}") from None
    if not text:
        raise RequestError("the prompt is empty; give at least one token of text")
    return text


def conversation(text: str, chat: bool, system: str | None) -> Prompt:
    """The prompt as it is; with --chat as a user's message, after the system's if there is one."""
    if not chat:
        if system is not None:
            raise RequestError("--system is a message of a conversation; give --chat too")
        return text
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _without_line_end(text: str) -> str:
    return text[:-1] if text.endswith("\n") else text
