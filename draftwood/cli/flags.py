"""The flags that commands share, and what they mean: an engine, methods and sampling options.

Imports no torch until a function is called. Refuses to know what a command does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwood.engine import Engine
    from draftwood.methods import Method
    from draftwood.sampling import SamplingParams

MODELS, METHOD, SAMPLING, LIMITS, OUTPUT = "Models", "Method", "Sampling", "Prompt and limits", "Output"
OF_EVERY_METHOD = "An option of every method that has it, or METHOD.KEY=VALUE for one. Repeatable."


def setting(help: str, panel: str = METHOD) -> Any:
    """The option --set of a command."""
    return typer.Option("--set", metavar="KEY=VALUE", help=help, rich_help_panel=panel, show_default=False)


def prompts_file(help: str, panel: str) -> Any:
    """The option --prompts of a command that reads them with `draftwood.cli.prompts`."""
    return typer.Option(metavar="FILE", help=help, rich_help_panel=panel, show_default=False)


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
MethodName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="How to decode, see 'draftwood methods'; file:PATH reads name and options from JSON or YAML. "
        "Default: speculative with a draft model, else autoregressive.",
        rich_help_panel=METHOD,
        show_default=False,
    ),
]
MethodOptions: TypeAlias = Annotated[
    list[str] | None, setting("An option of the method, such as gamma=6 or tree=4,2,2,1. Repeatable.")
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
        from draftwood.loading import load

        drafts = list(self.draft) if self.draft else None
        return load(self.target, drafts, self.dtype, self.device, self.quantize, self.compile)


def sampling(
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Iterable[str] | None = None,
) -> SamplingParams:
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
    values = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": bias,
    }
    return config.parse(SamplingParams, values, "sampling")


def method(name: str | None, settings: Iterable[str] | None, drafts: int) -> Method:
    """The method of --method and --set; without a name the engine's own default for so many draft models."""
    from draftwood import config
    from draftwood.methods import Method

    if name is None:
        name = "speculative" if drafts else "autoregressive"
    return Method.parse(name, config.assignments(settings or ()))
