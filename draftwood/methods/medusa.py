"""Medusa: heads on the target's last hidden state draft a tree of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from draftwood.core.shape import Shape
from draftwood.draft.heads import Choices, HeadsDrafter, likeliest, regular, sparse
from draftwood.methods.base import FILE, Parts
from draftwood.methods.options import MOST_ROWS, Depth, Widths, check_rows, controller
from draftwood.methods.sequences import LOSSLESS, RULES, OneHypothesis
from draftwood.models.base import CausalModel
from draftwood.models.heads import medusa as trained
from draftwood.runtime.session import Session
from draftwood.verify import GreedyText, Typical, Verifier

UNKNOWN = (3, 2, 1)  # the tree of heads of which nothing was measured


def _paths(value: object) -> object:
    """'0,1,0.0' or [[0], [1], [0, 0]]."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return tuple(tuple(int(rank) for rank in path.split(".")) for path in str(value).split(","))
        except ValueError:
            raise ValueError("paths are ranks joined by dots, with commas between, such as 0,1,0.0") from None
    return value


class Medusa(OneHypothesis):
    """Medusa (Cai et al. 2024): head k predicts the token k places after the next one, all from one hidden state.

    A head does not see the tokens in between, so its distribution q is the same for all nodes of a layer. A lossless
    rule is exact all the same: siblings are distinct draws from q, the best tokens in greedy decoding. Heads
    come with the embedded target; for another one `draftwood train medusa` makes them, and published ones are loaded
    as a draft (`--draft`).
    """

    name = "medusa"
    summary = "a tree of candidates from trained heads on the target's last hidden state"

    heads: Annotated[str | None, FILE] = Field(
        default=None,
        min_length=1,
        description="directory of the target's heads; null: those given as a draft, else those next to its weights",
    )
    tree: Widths | None = Field(
        default=None, description="children per node, layer by layer; layer k draws from head k"
    )
    paths: Annotated[
        tuple[tuple[int, ...], ...] | None,
        BeforeValidator(_paths),
        Field(description="a sparse tree in place of `tree`: ranks along each path, such as 0,1,0.0"),
    ] = None
    nodes: int = Field(
        default=15, ge=1, lt=MOST_ROWS, description="without tree and paths: drafts per round, those most often right"
    )
    drafts: Literal["drawn", "best"] = Field(
        default="drawn",
        description="siblings: distinct draws from a head, or its most probable tokens, in sampling too",
    )
    verify: Literal["traversal", "rejection", "coupled", "typical", "greedy"] = Field(
        default="traversal", description=LOSSLESS + "; lossy: typical acceptance, greedy (greedy text in sampling)"
    )
    epsilon: float = Field(default=0.09, gt=0, le=1, description="typical: accept tokens more probable than this")
    delta: float = Field(default=0.3, gt=0, le=1, description="typical: or more probable than delta exp(-entropy)")
    depth: Depth = "fixed"

    def choices(self, ranks: Sequence[Sequence[float]] = ()) -> Choices:
        """The tree: path of ranks -> children; `ranks` are the heads' chances to be right."""
        if self.paths is not None:
            return sparse(self.paths)
        if self.tree is not None:
            return regular(self.tree)
        return likeliest(ranks, self.nodes) if ranks else regular(UNKNOWN)

    @model_validator(mode="after")
    def _one_tree(self) -> Self:
        if self.tree is not None and self.paths is not None:
            raise ValueError("tree and paths both name a tree; leave one of them out")
        check_rows(Shape(self.tree).rows if self.tree is not None else 1 + len(self.paths or ()), "the tree")
        if self.paths is not None:
            sparse(self.paths)
        return self

    def verifier(self) -> Verifier:
        if self.verify == "typical":
            return Typical(self.epsilon, self.delta)
        if self.verify == "greedy":
            return GreedyText()
        return RULES[self.verify]()

    @property
    def drafts_from(self) -> object:
        return "heads", self.heads

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        given = [model for model in drafts if isinstance(model, trained.Heads)]
        return given[:1] if given and self.heads is None else [trained.find(target, self.heads)]

    def build(self, drafts: list[Session], target: Session) -> Parts:
        heads = cast(trained.Heads, drafts[0].model)
        choices = self.choices(heads.ranks)
        most = 1 + max(map(len, choices), default=0)
        best = self.drafts == "best" or self.verify in ("typical", "greedy")
        drafter = HeadsDrafter(drafts[0], choices, best)
        return Parts(drafter, self.verifier(), controller(self.depth, min(most, heads.count), drafts, target))
