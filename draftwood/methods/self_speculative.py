"""Drafting with the target itself, some of its sublayers left out (Draft & Verify)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from draftwood.draft import ModelDrafter
from draftwood.methods.base import FILE, Parts
from draftwood.methods.options import Chain, Depth, Mixed, controller, listed, uncapped
from draftwood.methods.sequences import DrawnMethod, suffix_lookup
from draftwood.models.base import CausalModel
from draftwood.models.heads.skip import Skipped, load, skipping
from draftwood.runtime.session import Session


def _layers(value: object) -> object:
    """'3,5' or [3, 5]; nothing and an empty text stay what they are."""
    return () if value == "" else value if value is None else listed(value)


Layers = Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, BeforeValidator(_layers)]


class SelfSpeculative(DrawnMethod):
    """Self-speculative decoding (Zhang et al. 2023, "Draft & Verify").

    The draft model is the target without the attention of some layers and the MLP of some: no other weights, and no
    other cache. Drafts read the keys and values that the whole target left of prompt and verified tokens; what they
    write of their own is overwritten when the target verifies them. The first round reads the prompt and drafts
    nothing. Drafting ends where the draft is less sure than a threshold that follows the acceptance rate.
    """

    name = "self-spec"
    summary = "the target drafts for itself with some of its sublayers skipped"

    skip: Annotated[str | None, FILE] = Field(
        default=None,
        description="file of `draftwood tune skip`; null: the one next to the weights, else every other layer",
    )
    attention: Layers = Field(default=None, description="layers whose attention is skipped, from 0, such as 3,5,7")
    mlp: Layers = Field(default=None, description="layers whose MLP is skipped")
    gamma: Chain = 8
    lookup: Mixed = False
    depth: Depth = "adaptive-confidence"

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: object) -> object:
        return uncapped(values, "gamma")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.skip is not None and (self.attention is not None or self.mlp is not None):
            raise ValueError("skip names a file that holds a set; leave out attention and mlp, or skip")
        return self

    @property
    def drafts_from(self) -> object:
        return "skip", self.skip, self.attention, self.mlp

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        if self.attention is not None or self.mlp is not None:
            skipped: Skipped | None = Skipped(self.attention or (), self.mlp or ())
        else:
            skipped = None if self.skip is None else load(Path(self.skip), target)
        return [skipping(target, skipped)]

    def build(self, drafts: list[Session], target: Session) -> Parts:
        depth = controller(self.depth, self.gamma, drafts, target, lookup=self.lookup)
        return Parts(ModelDrafter(drafts, lookup=suffix_lookup(self.lookup)), self.verifier(), depth)
