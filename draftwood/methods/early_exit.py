"""EESD: drafts from an exit of the target itself (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from draftwood.core.shape import Shape
from draftwood.draft import ModelDrafter
from draftwood.draft.base import Source
from draftwood.methods.base import Parts
from draftwood.methods.options import Chain, Depth, Mixed, Widths, check_rows, controller, uncapped
from draftwood.methods.sequences import DrawnMethod, suffix_lookup
from draftwood.methods.sources import Exit, from_exit
from draftwood.models.base import CausalModel
from draftwood.models.heads import exit as exits
from draftwood.runtime.session import Session


class EarlyExit(DrawnMethod):
    """EESD (Liu et al. 2024): the target's first layers and a trained exit draft, its other layers verify.

    Verification reuses what drafting computed. The embedded target includes an exit layer; for another
    target `draftwood train eesd` makes one. In the paper Thompson sampling alone ends drafts, depth=beta-ts or cali-ts;
    speedup-ts weighs what a draft costs.
    """

    name = "eesd"
    summary = "a chain or tree from an early exit of the target; needs no draft model"

    gamma: Chain = 4
    tree: Widths | None = Field(
        default=None, description="children per node, layer by layer, in place of a chain of gamma tokens"
    )
    replacement: bool = Field(default=False, description="draw siblings independently; false: distinct siblings")
    lookup: Mixed = False
    depth: Depth = "fixed"
    exit: Exit = None

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: object) -> object:
        return uncapped(values, "gamma", "tree")

    @model_validator(mode="after")
    def _few_rows(self) -> Self:
        if self.tree is not None:
            check_rows(Shape(self.tree).rows, f"a tree {','.join(map(str, self.tree))}")
        return self

    @property
    def drafts_from(self) -> object:
        return "exit", self.exit

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return [exits.find(target, self.exit)]

    def build(self, drafts: list[Session], target: Session) -> Parts:
        widths = self.tree or (1,)

        def make(source: Source) -> ModelDrafter:
            return ModelDrafter([source], widths, self.replacement, suffix_lookup(self.lookup))

        most = len(self.tree) if self.tree else self.gamma
        depth = controller(self.depth, most, drafts, target, widths, lookup=self.lookup)
        return Parts(from_exit(make, drafts, target), self.verifier(), depth)
