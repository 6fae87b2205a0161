"""Methods with several hypotheses: beam sampling, DSBD, beam search."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from draftwood.core.records import Ranking
from draftwood.depth import Fixed
from draftwood.draft import BeamDrafter, NoDrafter
from draftwood.draft.base import Source
from draftwood.errors import ConfigurationError
from draftwood.methods.base import Method, Parts
from draftwood.methods.options import Depth, beam_controller
from draftwood.methods.sources import SourcedMethod
from draftwood.runtime.session import Session
from draftwood.sampling.params import SamplingParams
from draftwood.verify import BeamSampling, BeamSearching, Verifier
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.width import WidthRule

DISTINCT = 0.6  # n independent draws at temperature 1 are about n to this power beams (SmolLM2: 4 are 2.4, 12 are 4.4)
MEMORY = "drafts tell what the target said after the same last tokens, maybe on another beam; lookup always does"


class BeamMethod(Method):
    """A method with several hypotheses."""

    n_best: int = Field(default=1, ge=1, description="beams in the result, best first")
    length_penalty: float = Field(
        default=1.0, ge=-10, le=10, description="ranks by log-likelihood / length^this; 1: perplexity, 0: likelihood"
    )

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
    def ranking(self) -> Ranking:
        return Ranking(self.n_best, self.length_penalty)


class BeamSamplingMethod(BeamMethod):
    """The options and parts that beam sampling and DSBD have in common."""

    warp: Literal["joint", "token"] = Field(
        default="joint",
        description="temperature and truncation on the joint of beam and token, or on each beam's tokens first",
    )
    replacement: bool = Field(default=True, description="draw beams independently; false: distinct beams")

    def distinct(self, draws: int) -> int:
        """About how many beams so many draws are."""
        return round(draws**DISTINCT) if self.replacement else draws


class PlainBeamSampling(BeamSamplingMethod):
    """Beam sampling (DSBD Eq. 1): `width` draws from the joint of beam and token; equal draws are one beam."""

    name = "beam-sampling"
    summary = "beams drawn from the joint of beam and token, one layer per target forward"

    width: int = Field(default=4, ge=1, le=256, description="draws per layer; distinct beams without replacement")

    @property
    def widest(self) -> int:
        return self.width

    def verifier(self) -> Verifier:
        return BeamSampling(WidthRule(fixed=self.width), self.warp, self.replacement)

    def build(self, drafts: list[Session], target: Session) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0), self.ranking)


class DynamicWidth(SourcedMethod, BeamSamplingMethod):
    """DSBD (Qin et al. 2025): dynamic-width speculative beam decoding."""

    name = "dsbd"
    summary = "beam sampling with drafted layers of beams; the width of each layer adapts"
    draft_models = (1, 1)

    draft_width: int = Field(default=6, ge=1, le=256, description="draws per drafted layer, W_S")
    gamma: int = Field(default=3, ge=0, le=64, description="layers drafted per round")
    width: int | None = Field(default=None, ge=1, description="a fixed width W_L; null: dynamic")
    threshold: float = Field(
        default=0.9, ge=0, le=1, description="t: keep as many beams as are accepted with this probability"
    )
    min_width: int = Field(default=1, ge=1, description="smallest dynamic width, W_min")
    width_draws: Literal["surviving", "drafted"] | None = Field(
        default=None,
        description="draws that the dynamic width counts on (Eq. 7): those whose parents were accepted, or all W_S; "
        "null: surviving with replacement, drafted without",
    )
    root_weights: Literal["draft", "target"] = Field(default="draft", description="whose joint weighs a round's beams")
    memory: bool = Field(default=False, description=f"{MEMORY}; the paper's algorithm does not")
    one_cache: bool = Field(default=False, description="go on from the best output beam only; lossy by design")
    depth: Depth = "fixed"

    sizes = ("draft_width", "gamma")

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        least = self.width or self.min_width
        if self.draft_width < least:
            what = "width" if self.width else "min_width"
            raise ValueError(f"draft_width is {self.draft_width}, but must not be below {what}, {least}")
        if self.width_draws == "surviving" and not self.replacement and self.width is None:
            raise ValueError(
                "without replacement the width must not depend on how many draws survive; use width_draws=drafted"
            )
        return self

    @classmethod
    def with_implied(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Options with depth=auto where the width alone is named: a dynamic one is found by drafts, and needs them."""
        return options if options.get("width") is None else super().with_implied(options)

    @property
    def widest(self) -> int:
        return self.width or self.draft_width

    def verifier(self) -> Verifier:
        rule = WidthRule(self.width, self.threshold, self.min_width, self.width_draws)
        return BeamSampling(rule, self.warp, self.replacement, self.one_cache)

    def build(self, drafts: list[Session], target: Session) -> Parts:
        def make(source: Source | None) -> BeamDrafter:
            return BeamDrafter(
                source, self.draft_width, self.replacement, self.warp, self.root_weights, remembers=self.memory
            )

        roots, hypotheses = (self.distinct(count) for count in (self.draft_width, self.widest))
        depth = beam_controller(self.depth, self.gamma, drafts, target, roots, hypotheses, self.memory)
        return Parts(self.drafting(make, drafts, target), self.verifier(), depth, self.ranking)


class PlainBeamSearch(BeamMethod):
    """Beam search as Hugging Face's `generate` defines it."""

    name = "beam-search"
    summary = "the best beams, deterministic, one layer per target forward"

    width: int = Field(default=4, ge=1, le=256, description="beams")
    early_stopping: bool | Literal["never"] = Field(
        default=False,
        description="stop at `width` finished beams; false: when no live beam looks better; never: when none can",
    )

    @property
    def widest(self) -> int:
        return self.width

    def search(self) -> BeamSearch:
        return BeamSearch(self.width, self.length_penalty, self.early_stopping, self.n_best)

    def verifier(self) -> Verifier:
        return BeamSearching(self.search())

    def build(self, drafts: list[Session], target: Session) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0), self.ranking)

    def reference(self, greedy: bool) -> Method | None:
        return PlainBeamSearch(**{key: getattr(self, key) for key in PlainBeamSearch.model_fields})

    def check(self, params: SamplingParams) -> None:
        if params.temperature not in (0, 1) or params.top_k or params.top_p < 1 or params.min_p:
            raise ConfigurationError(
                f"method {self.name} draws nothing, so temperature, top_k, top_p and min_p mean nothing to it; "
                "leave them out, or use beam-sampling"
            )


class SpeculativeBeamSearch(SourcedMethod, PlainBeamSearch):
    """Beam search with drafted layers: the same output as `beam-search`, in fewer target forwards (spec §3)."""

    name = "speculative-beam-search"
    summary = "beam search with drafted layers of beams; the same output"
    draft_models = (1, 1)

    draft_width: int | None = Field(default=None, ge=1, le=256, description="beams per drafted layer; null: width")
    gamma: int = Field(default=2, ge=0, le=64, description="layers drafted per round")
    depth: Depth = "auto"
    memory: bool = Field(default=True, description=MEMORY)

    sizes = ("draft_width", "gamma")

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.draft_width is not None and self.draft_width < self.width:
            raise ValueError(f"draft_width is {self.draft_width}, but must not be below width, {self.width}")
        return self

    def build(self, drafts: list[Session], target: Session) -> Parts:
        wide = self.draft_width or self.width

        def make(source: Source | None) -> BeamDrafter:
            return BeamDrafter(source, wide, root_weights="target", search=BeamSearch(wide), remembers=self.memory)

        depth = beam_controller(self.depth, self.gamma, drafts, target, wide, self.width, self.memory)
        return Parts(self.drafting(make, drafts, target), self.verifier(), depth, self.ranking)
