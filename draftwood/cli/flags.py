"""The flags that commands share, and what they mean: an engine, a prompt, methods and sampling options.

Imports no torch until a function is called. Refuses to know what a command does with them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from draftwood.engine import Engine, Prompt
    from draftwood.methods import Method
    from draftwood.sampling import SamplingParams

MODELS, METHOD, SAMPLING, LIMITS, OUTPUT = "Models", "Method", "Sampling", "Prompt and limits", "Output"

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
Target: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|ID",
        help="Target model: a Hugging Face checkpoint directory or a hub id. Default: the embedded pair.",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Draft: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR|ID",
        help="Draft model with the target's tokenizer. Repeat it for several (specinfer).",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Dtype: TypeAlias = Annotated[
    str, typer.Option(metavar="TYPE", help="float32, bfloat16, float16 or float64.", rich_help_panel=MODELS)
]
Quantize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="int8: a quarter of float32's bytes, faster on CPUs; the model's answers change a little.",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Compile: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--compile",
        metavar="",
        help="torch.compile for small models; slow to start, needs a C++ compiler.",
        rich_help_panel=MODELS,
    ),
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, ... Default: CUDA where there is one.",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Seed: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="The same seed gives the same text.", rich_help_panel=SAMPLING)
]
Temperature: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="T",
        help="0: greedy; 1: the target as it is.",
        rich_help_panel=SAMPLING,
    ),
]
TopK: TypeAlias = Annotated[
    int, typer.Option(metavar="K", help="Keep the K most probable; 0: all.", rich_help_panel=SAMPLING)
]
TopP: TypeAlias = Annotated[
    float,
    typer.Option(metavar="P", help="Keep probability mass P; 1: all.", rich_help_panel=SAMPLING),
]
MinP: TypeAlias = Annotated[
    float,
    typer.Option(metavar="P", help="Drop below P times the largest.", rich_help_panel=SAMPLING),
]
RepetitionPenalty: TypeAlias = Annotated[
    float, typer.Option(metavar="X", help="Above 1: seen tokens count less.", rich_help_panel=SAMPLING)
]
PresencePenalty: TypeAlias = Annotated[
    float, typer.Option(metavar="X", help="Subtracted from seen tokens.", rich_help_panel=SAMPLING)
]
FrequencyPenalty: TypeAlias = Annotated[
    float, typer.Option(metavar="X", help="The same, per occurrence.", rich_help_panel=SAMPLING)
]
LogitBias: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=X", help="Add X to a token's logit. Repeatable.", rich_help_panel=SAMPLING, show_default=False
    ),
]
MaxNewTokens: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Most tokens to generate.", rich_help_panel=LIMITS)
]
Stop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="End before this text; it is never shown. Repeatable.",
        rich_help_panel=LIMITS,
        show_default=False,
    ),
]
IgnoreEos: TypeAlias = Annotated[
    bool, typer.Option("--ignore-eos", metavar="", help="Go on after the end-of-text token.", rich_help_panel=LIMITS)
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
]
Color: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--color/--no-color",
        metavar="",
        help="Default: colour on a terminal, unless NO_COLOR is set.",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """Which models to load, and how."""

    target: str | None
    draft: Sequence[str] | None
    dtype: str
    device: str | None
    quantize: str | None = None
    compile: bool = False

    @property
    def drafts(self) -> int:
        """How many draft models there will be; the embedded target brings one."""
        return len(self.draft or ()) or int(self.target is None)

    def load(self) -> Engine:
        from draftwood.engine import load

        drafts = list(self.draft) if self.draft else None
        return load(self.target, drafts, self.dtype, self.device, self.quantize, self.compile)


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


def sampling(logit_bias: Iterable[str] | None, **values: Any) -> SamplingParams:
    """Checked sampling options; `logit_bias` are ID=X flags."""
    from draftwood import config
    from draftwood.sampling import SamplingParams

    bias: dict[int, float] = {}
    for flag in logit_bias or ():
        token, sign, value = flag.partition("=")
        try:
            if not sign:
                raise ValueError
            bias[int(token)] = float(value)
        except ValueError:
            raise ConfigurationError(f"--logit-bias takes ID=X, such as 42=-5, not {flag!r}") from None
    return config.parse(SamplingParams, {**values, "logit_bias": bias}, "sampling")


def method(name: str | None, settings: Iterable[str] | None, drafts: int) -> Method:
    """The method of --method and --set; without a name the engine's own default for so many draft models."""
    from draftwood import config
    from draftwood.methods import Method

    if name is None:
        name = "speculative" if drafts else "autoregressive"
    return Method.parse(name, config.assignments(settings or ()))
