"""Methods with several hypotheses: beam sampling, DSBD, beam search."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from draftwood.depth import Fixed
from draftwood.draft import BeamDrafter, NoDrafter
from draftwood.draft.base import Source
from draftwood.errors import ConfigurationError
from draftwood.methods.base import Method, Parts
from draftwood.methods.options import Depth, controller
from draftwood.methods.sources import Sourced
from draftwood.params import SamplingParams
from draftwood.results import Ranking
from draftwood.runtime.session import Session
from draftwood.verify import BeamSampling, BeamSearching, Verifier
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.width import WidthRule


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
    def ranking(self) -> Ranking:
        return Ranking(self.n_best, self.length_penalty)


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

    def build(self, drafts: list[Session], target: Session) -> Parts:
        return Parts(NoDrafter(), self.verifier(), Fixed(0), self.ranking)


class DynamicWidth(Sourced, BeamSamplingMethod):
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
    depth: Depth = "fixed"

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        least = self.width or self.min_width
        if self.draft_width < least:
            what = "width" if self.width else "min_width"
            raise ValueError(f"draft_width is {self.draft_width}, but must not be below {what}, {least}")
        return self

    @property
    def widest(self) -> int:
        return self.width or self.draft_width

    def verifier(self) -> Verifier:
        rule = WidthRule(self.width, self.threshold, self.min_width)
        return BeamSampling(rule, self.warp, self.replacement, self.one_cache)

    def build(self, drafts: list[Session], target: Session) -> Parts:
        def make(source: Source) -> BeamDrafter:
            return BeamDrafter(source, self.draft_width, self.replacement, self.warp, self.root_weights)

        drafter = self.drafting(make, drafts, target)
        return Parts(
            drafter,
            self.verifier(),
            controller(self.depth, self.gamma, drafts, target, roots=self.draft_width, hidden=False),
            self.ranking,
        )


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

    def build(self, drafts: list[Session], target: Session) -> Parts:
        wide = self.draft_width or self.width
        drafter = BeamDrafter(drafts[0], wide, root_weights="target", search=BeamSearch(wide))
        return Parts(
            drafter,
            self.verifier(),
            controller(self.depth, self.gamma, drafts, target, roots=wide, hidden=False),
            self.ranking,
        )
