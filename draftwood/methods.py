"""The single registry: a method's name -> its options -> drafter, verifier and depth controller.

A method is a checked, immutable set of options that round-trips through dictionaries. Knows which parts make up a
method; refuses to know how they work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from draftwood import config
from draftwood.decode import Answers
from draftwood.depth import DepthController, Fixed, depth_text, parse_depth
from draftwood.draft import BeamDrafter, Drafter, ModelDrafter, NgramDrafter, NoDrafter
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.sampling import SamplingParams
from draftwood.session import Session
from draftwood.verify import BeamSampling, BeamSearching, Coupled, Rejection, Verifier
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.width import WidthRule


class Parts(NamedTuple):
    """What the loop needs of a method, made anew for each request."""

    drafter: Drafter
    verify: Verifier
    depth: DepthController
    answers: Answers = Answers()


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
Depth = Annotated[
    str,
    BeforeValidator(depth_text),
    Field(description="who ends drafting early: fixed, confidence:0.4, entropy, beta-ts, speedup-ts, optimal-stopping"),
]
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

    @abstractmethod
    def build(self, drafts: list[Session]) -> Parts:
        """Parts for one request; `drafts` are sessions on the draft models."""

    @abstractmethod
    def verifier(self) -> Verifier:
        """The rule that chooses the next roots."""

    @property
    def lossless(self) -> bool:
        """Whether the output follows the distribution of the method's reference exactly."""
        return self.verifier().lossless

    def twin(self, greedy: bool) -> Method | None:
        """The method without drafts whose text this one repeats under the same seed; None where seeds differ."""
        return None

    def refuse(self, params: SamplingParams) -> None:
        """Raise ConfigurationError where sampling options mean nothing to this method."""

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


class SequenceMethod(Method):
    """A method with one hypothesis; its reference is plain decoding."""

    verify: Annotated[
        Literal["rejection", "coupled"],
        Field(description="rejection sampling, or Gumbel-coupled: the same text under a seed with and without drafts"),
    ] = "rejection"

    def verifier(self) -> Verifier:
        return Coupled() if self.verify == "coupled" else Rejection()

    def twin(self, greedy: bool) -> Method | None:
        if greedy:
            return Autoregressive()
        return Autoregressive(verify="coupled") if self.verify == "coupled" else None


class Autoregressive(SequenceMethod):
    """One token per target forward."""

    name = "autoregressive"
    summary = "plain decoding, greedy or multinomial"

    def twin(self, greedy: bool) -> Method | None:
        return self

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0))


class Speculative(SequenceMethod):
    """Speculative decoding with a chain (Leviathan et al. 2023; Chen et al. 2023)."""

    name = "speculative"
    summary = "a chain of gamma tokens from a draft model"
    draft_models = (1, 1)

    gamma: Gamma = 4
    depth: Depth = "fixed"

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(ModelDrafter(drafts, (1,)), self.verifier(), parse_depth(self.depth).build(self.gamma))


class SpecInfer(SequenceMethod):
    """SpecInfer (Miao et al. 2024): a token tree from one or several draft models, multi-step speculative sampling."""

    name = "specinfer"
    summary = "a token tree, expanded as configured, from one or several draft models"
    draft_models = (1, 8)

    expansion: Widths = (1, 2, 2, 1)
    depth: Depth = "fixed"

    def build(self, drafts: list[Session]) -> Parts:
        depth = parse_depth(self.depth).build(len(self.expansion))
        return Parts(ModelDrafter(drafts, self.expansion), self.verifier(), depth)


class MultiCandidate(SequenceMethod):
    """MCSD (Yang et al. 2024): a k-configuration tree, children drawn with or without replacement."""

    name = "mcsd"
    summary = "a k-configuration tree of candidates, drawn with or without replacement"
    draft_models = (1, 1)

    tree: Widths = (4, 2, 2, 1)
    replacement: Annotated[bool, Field(description="draw siblings independently; false: distinct siblings")] = False
    depth: Depth = "fixed"

    def build(self, drafts: list[Session]) -> Parts:
        depth = parse_depth(self.depth).build(len(self.tree))
        return Parts(ModelDrafter(drafts, self.tree, self.replacement), self.verifier(), depth)


class Lookup(SequenceMethod):
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


class BeamMethod(Method):
    """A method with several hypotheses."""

    n_best: Annotated[int, Field(ge=1, description="how many beams the result holds, best first")] = 1
    length_penalty: Annotated[
        float,
        Field(allow_inf_nan=False, description="ranks by log-likelihood / length^this; 1: perplexity, 0: likelihood"),
    ] = 1.0

    @property
    @abstractmethod
    def widest(self) -> int:
        """The most beams there can be at the end."""

    @model_validator(mode="after")
    def _enough_beams(self) -> Self:
        if self.n_best > self.widest:
            raise ValueError(f"n_best is {self.n_best}, but there are at most {self.widest} beams; widen the beams")
        return self

    @property
    def answers(self) -> Answers:
        return Answers(self.n_best, self.length_penalty)


class BeamSamplingMethod(BeamMethod):
    """What beam sampling and DSBD have in common."""

    warp: Annotated[
        Literal["joint", "token"],
        Field(description="temperature and truncation on the joint of beam and token, or on each beam's tokens first"),
    ] = "joint"
    replacement: Annotated[bool, Field(description="draw beams independently; false: distinct beams")] = True


class PlainBeamSampling(BeamSamplingMethod):
    """Beam sampling (DSBD Eq. 1): `width` draws from the joint of beam and token; equal draws are one beam."""

    name = "beam-sampling"
    summary = "beams drawn from the joint of beam and token, one layer per target forward"

    width: Annotated[int, Field(ge=1, description="draws per layer; distinct beams without replacement")] = 4

    @property
    def widest(self) -> int:
        return self.width

    def verifier(self) -> Verifier:
        return BeamSampling(WidthRule(fixed=self.width), self.warp, self.replacement)

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0), self.answers)


class DynamicWidth(BeamSamplingMethod):
    """DSBD (Qin et al. 2025): dynamic-width speculative beam decoding."""

    name = "dsbd"
    summary = "beam sampling with drafted layers of beams; the width of each layer adapts"
    draft_models = (1, 1)

    draft_width: Annotated[int, Field(ge=1, le=256, description="draws per drafted layer, W_S")] = 6
    gamma: Annotated[int, Field(ge=0, le=64, description="layers drafted per round")] = 3
    width: Annotated[int | None, Field(ge=1, description="a fixed width W_L; null: dynamic")] = None
    threshold: Annotated[
        float, Field(ge=0, le=1, description="t: keep as many beams as are accepted with this chance")
    ] = 0.9
    min_width: Annotated[int, Field(ge=1, description="least dynamic width, W_min")] = 1
    root_weights: Annotated[
        Literal["draft", "target"], Field(description="whose joint weighs the beams that a round begins with")
    ] = "draft"
    one_cache: Annotated[
        bool, Field(description="go on from the output beam of lowest perplexity alone; lossy, by design")
    ] = False
    drafter: Annotated[str, Field(description="who proposes beams: model, a draft model")] = "model"
    depth: Depth = "fixed"

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        least = self.width or self.min_width
        if self.draft_width < least:
            what = "width" if self.width else "min_width"
            raise ValueError(f"draft_width is {self.draft_width}, but must not be below {what}, {least}")
        if self.drafter != "model":
            raise ValueError(f"drafter {self.drafter!r} cannot propose beams, having no joint distribution; use model")
        return self

    @property
    def widest(self) -> int:
        return self.width or self.draft_width

    def verifier(self) -> Verifier:
        rule = WidthRule(self.width, self.threshold, self.min_width)
        return BeamSampling(rule, self.warp, self.replacement, self.one_cache)

    def build(self, drafts: list[Session]) -> Parts:
        drafter = BeamDrafter(drafts[0], self.draft_width, self.replacement, self.warp, self.root_weights)
        return Parts(drafter, self.verifier(), parse_depth(self.depth).build(self.gamma), self.answers)


class PlainBeamSearch(BeamMethod):
    """Beam search as Hugging Face's `generate` defines it."""

    name = "beam-search"
    summary = "the best beams, deterministic, one layer per target forward"

    width: Annotated[int, Field(ge=1, description="beams")] = 4
    early_stopping: Annotated[
        bool | Literal["never"],
        Field(description="end with `width` finished beams; false: when no live one looks better; never: can be"),
    ] = False

    @property
    def widest(self) -> int:
        return self.width

    def search(self) -> BeamSearch:
        return BeamSearch(self.width, self.length_penalty, self.early_stopping, self.n_best)

    def verifier(self) -> Verifier:
        return BeamSearching(self.search())

    def build(self, drafts: list[Session]) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0), self.answers)

    def twin(self, greedy: bool) -> Method | None:
        return PlainBeamSearch(**{key: getattr(self, key) for key in PlainBeamSearch.model_fields})

    def refuse(self, params: SamplingParams) -> None:
        if params.temperature not in (0, 1) or params.top_k or params.top_p < 1 or params.min_p:
            raise ConfigurationError(
                f"method {self.name} draws nothing, so temperature, top_k, top_p and min_p mean nothing to it; "
                "leave them out, or use beam-sampling"
            )


class SpeculativeBeamSearch(PlainBeamSearch):
    """Beam search with drafted layers: the same output as `beam-search`, in fewer target forwards (spec §3)."""

    name = "speculative-beam-search"
    summary = "beam search with drafted layers of beams; the same output"
    draft_models = (1, 1)

    draft_width: Annotated[
        int | None, Field(ge=1, le=256, description="beams per drafted layer; null: as many as width")
    ] = None
    gamma: Annotated[int, Field(ge=0, le=64, description="layers drafted per round")] = 2
    depth: Depth = "fixed"

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.draft_width is not None and self.draft_width < self.width:
            raise ValueError(f"draft_width is {self.draft_width}, but must not be below width, {self.width}")
        return self

    def build(self, drafts: list[Session]) -> Parts:
        wide = self.draft_width or self.width
        drafter = BeamDrafter(drafts[0], wide, root_weights="target", search=BeamSearch(wide))
        return Parts(drafter, self.verifier(), parse_depth(self.depth).build(self.gamma), self.answers)


METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Autoregressive,
        Speculative,
        SpecInfer,
        MultiCandidate,
        Lookup,
        PlainBeamSampling,
        DynamicWidth,
        PlainBeamSearch,
        SpeculativeBeamSearch,
    )
}
