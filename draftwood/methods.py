"""The single registry: a method's name -> its options -> drafter, verifier and depth controller.

A method is a checked, immutable set of options that round-trips through dictionaries. Knows which parts make up a
method; refuses to know how they work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from draftwood import config
from draftwood.depth import DepthController, Fixed
from draftwood.draft import Drafter, ModelDrafter, NgramDrafter, NoDrafter
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.session import Session
from draftwood.verify import Coupled, Rejection, Verifier


class Parts(NamedTuple):
    """What the loop needs of a method, made anew for each request."""

    drafter: Drafter
    verify: Verifier
    depth: DepthController


def _widths(value: object) -> object:
    """'4,2,2,1' or [4, 2, 2, 1]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, str):
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            raise ValueError("a configuration is whole numbers with commas between, such as 4,2,2,1") from None
    return value


Gamma = Annotated[int, Field(ge=0, le=64, description="draft tokens per round")]
Width = Annotated[int, Field(ge=1)]
Widths = Annotated[
    tuple[Width, ...], BeforeValidator(_widths), Field(min_length=1, description="children per node, layer by layer")
]


class Method(BaseModel):
    """A decoding method with its options. `Method.parse` makes one from a name, a dictionary or a method file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    draft_models: ClassVar[tuple[int, int]] = (0, 0)  # fewest and most that it works with

    verify: Annotated[
        Literal["rejection", "coupled"],
        Field(description="rejection sampling, or Gumbel-coupled: the same text under a seed with and without drafts"),
    ] = "rejection"

    @abstractmethod
    def build(self, drafts: list[Session]) -> Parts:
        """Parts for one request; `drafts` are sessions on the draft models."""

    def verifier(self) -> Verifier:
        return Coupled() if self.verify == "coupled" else Rejection()

    @property
    def lossless(self) -> bool:
        """Whether the output follows the target's distribution exactly."""
        return self.verifier().lossless

    def as_dict(self) -> dict[str, Any]:
        """Name and options; `Method.parse` reads it back."""
        return {"name": self.name, **self.model_dump(mode="json")}

    @staticmethod
    def parse(spec: str | Mapping[str, Any] | Method, options: Mapping[str, Any] | None = None) -> Method:
        """A method from a name, {"name": ..., option: value}, 'file:PATH' (JSON or YAML) or a Method, plus options."""
        if isinstance(spec, Method):
            values: dict[str, Any] = spec.as_dict()
        elif isinstance(spec, str) and spec.startswith("file:"):
            path = Path(spec.removeprefix("file:"))
            if not path.is_file():
                raise ConfigurationError(f"method file {path} does not exist")
            values = config.document(path.read_text("utf-8"), str(path))
        elif isinstance(spec, str):
            values = {"name": spec}
        else:
            values = dict(spec)
        values.update(options or {})
        name = values.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError('a method needs a name, such as {"name": "speculative"}')
        if name not in METHODS:
            raise ConfigurationError(f"there is no method {name!r}" + did_you_mean(name, METHODS))
        return config.parse(METHODS[name], values, f"method {name}")


class Autoregressive(Method):
    """One token per target forward."""

    name = "autoregressive"
    summary = "plain decoding, greedy or multinomial"

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0))


class Speculative(Method):
    """Speculative decoding with a chain (Leviathan et al. 2023; Chen et al. 2023)."""

    name = "speculative"
    summary = "a chain of gamma tokens from a draft model"
    draft_models = (1, 1)

    gamma: Gamma = 4

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(ModelDrafter(drafts, (1,)), self.verifier(), Fixed(self.gamma))


class SpecInfer(Method):
    """SpecInfer (Miao et al. 2024): a token tree from one or several draft models, multi-step speculative sampling."""

    name = "specinfer"
    summary = "a token tree, expanded as configured, from one or several draft models"
    draft_models = (1, 8)

    expansion: Widths = (1, 2, 2, 1)

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(ModelDrafter(drafts, self.expansion), self.verifier(), Fixed(len(self.expansion)))


class MultiCandidate(Method):
    """MCSD (Yang et al. 2024): a k-configuration tree, children drawn with or without replacement."""

    name = "mcsd"
    summary = "a k-configuration tree of candidates, drawn with or without replacement"
    draft_models = (1, 1)

    tree: Widths = (4, 2, 2, 1)
    replacement: Annotated[bool, Field(description="draw siblings independently; false: distinct siblings")] = False

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(ModelDrafter(drafts, self.tree, self.replacement), self.verifier(), Fixed(len(self.tree)))


class Lookup(Method):
    """Prompt lookup: what followed the same n-gram before is proposed as it stands."""

    name = "lookup"
    summary = "n-grams of prompt and output as drafts; needs no draft model"

    gamma: Gamma = 6
    max_ngram: Annotated[int, Field(ge=1, le=16, description="longest match that is looked for, in tokens")] = 4
    min_ngram: Annotated[int, Field(ge=1, le=16, description="shortest match that is good enough")] = 2

    @model_validator(mode="after")
    def _ordered(self) -> Lookup:
        if self.min_ngram > self.max_ngram:
            raise ValueError("min_ngram must not be larger than max_ngram")
        return self

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(NgramDrafter(self.max_ngram, self.min_ngram), self.verifier(), Fixed(self.gamma))


METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Autoregressive, Speculative, SpecInfer, MultiCandidate, Lookup)
}
