"""EAGLE: a trained head on the target's states drafts chains, and trees where it is confident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self, cast

from pydantic import Field, model_validator

from draftwood.draft import ConfidentDrafter, Drafter, EagleSource, ModelDrafter, StateDrafter
from draftwood.methods.base import FILE, Parts
from draftwood.methods.options import DEEPEST, MOST_ROWS, Chain, Depth, Mixed, controller, sized
from draftwood.methods.sequences import DrawnMethod, suffix_lookup
from draftwood.models.base import CausalModel
from draftwood.models.heads import eagle
from draftwood.models.heads.eagle_head import StateReader
from draftwood.runtime.session import Session


class Eagle(DrawnMethod):
    """EAGLE-3 (Li et al. 2025): a small layer drafts token by token from the target's states after three of its layers.

    With `width` above 1 drafts are a tree that grows where the head is confident (EAGLE-2): a layer has the `width`
    paths of largest confidence, the product of the head's probabilities on them. When sampling, children are distinct
    draws from the head's distribution, and how many is fixed before they are drawn, so the rule is exact; or with
    drafts=best the head's most probable tokens. Heads in the format of `speculators` or of EAGLE's authors are loaded
    as a draft (`--draft`); `draftwood train eagle` makes one.
    """

    name = "eagle"
    summary = "a chain or confidence tree from a trained head on the target's hidden states"

    head: Annotated[str | None, FILE] = Field(
        default=None,
        min_length=1,
        description="directory of the target's head; null: the one given as a draft, else the one next to its weights",
    )
    gamma: Chain = 12
    width: int = Field(default=1, ge=1, le=256, description="most paths per layer; 1: a chain")
    nodes: int = Field(default=24, ge=1, lt=MOST_ROWS, description="of a tree: most drafts per round")
    least: float = Field(default=0.05, ge=0, le=1, description="of a tree: least confidence of a drafted path")
    drafts: Literal["drawn", "best"] = Field(
        default="drawn", description="draws from the head, or its most probable tokens, in sampling too"
    )
    lookup: Mixed = False
    depth: Depth = "auto"

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: object) -> object:
        options = sized(values, "gamma", "width", "nodes", gamma=4)
        return {"gamma": DEEPEST, **options} if isinstance(options, Mapping) and options.get("lookup") else options

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.drafts == "best" and self.width == 1:
            raise ValueError("drafts=best gives siblings, but width is 1; widen the tree, or leave drafts out")
        if self.lookup and self.width > 1:
            raise ValueError(f"lookup goes with a chain, but width is {self.width}; leave out lookup or width")
        return self

    @property
    def drafts_from(self) -> object:
        return "eagle", self.head

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        given = [model for model in drafts if hasattr(model, "reads")]
        return given[:1] if given and self.head is None else [eagle.find(target, self.head)]

    def build(self, drafts: list[Session], target: Session) -> Parts:
        source = EagleSource(target, drafts[0], cast(StateReader, drafts[0].model).reads)
        drafter: Drafter = ModelDrafter([source], lookup=suffix_lookup(self.lookup))
        if self.width > 1:
            drafter = ConfidentDrafter(source, self.width, self.nodes, self.least, self.drafts == "best")
        depth = controller(self.depth, self.gamma, drafts, target, (self.width, 1), lookup=self.lookup)
        return Parts(StateDrafter(drafter, source), self.verifier(), depth)
