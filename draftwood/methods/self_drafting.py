"""Methods by which the target drafts for itself: an exit, skipped sublayers, Medusa heads, heads on its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from draftwood.core.shape import Shape
from draftwood.draft import ConfidentDrafter, Drafter, ModelDrafter, drafting
from draftwood.draft.base import Source
from draftwood.draft.heads import Choices, HeadsDrafter, likeliest, regular, sparse
from draftwood.methods.base import FILE, Parts
from draftwood.methods.options import MOST_ROWS, Chain, Depth, Mixed, Widths, check_rows, controller, listed
from draftwood.methods.sequences import LOSSLESS, RULES, DrawnMethod, OneHypothesis, suffix_lookup
from draftwood.methods.sources import BlockHead, Exit, Head, Skip, heads_of, medusa_heads, mtp_heads, skipped_target
from draftwood.models.base import CausalModel
from draftwood.models.heads import dflash, eagle, medusa
from draftwood.models.heads import exit as exits
from draftwood.models.heads.skip import Skipped
from draftwood.runtime.session import Session
from draftwood.verify import GreedyText, Typical, Verifier

UNKNOWN, NODES = (3, 2, 1), 15  # the tree of Medusa heads of which nothing was measured, and its drafts


class EarlyExit(DrawnMethod):
    """EESD (Liu et al. 2024): the target's first layers and a trained exit draft, its other layers verify.

    Verification reuses what drafting computed. The embedded target includes an exit layer; for another
    target `draftwood train eesd` makes one. In the paper Thompson sampling alone ends drafts, depth=beta-ts or cali-ts;
    speedup-ts weighs what a draft costs.
    """

    name = "eesd"
    summary = "a chain or tree from an early exit of the target; needs no draft model"

    gamma: Chain = 4
    tree: Widths | None = Field(default=None, description="children per node by layer, in place of a chain of gamma")
    replacement: bool = Field(default=False, description="draw siblings independently; false: distinct siblings")
    lookup: Mixed = False
    depth: Depth = "fixed"
    exit: Exit = None

    sizes = ("gamma", "tree")

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
        return Parts(drafting(make, drafts[0], target), self.verifier(), depth)


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

    skip: Skip = None
    attention: Layers = Field(default=None, description="layers whose attention is skipped, from 0, such as 3,5,7")
    mlp: Layers = Field(default=None, description="layers whose MLP is skipped")
    gamma: Chain = 8
    lookup: Mixed = False
    depth: Depth = "adaptive-confidence"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.skip is not None and (self.attention is not None or self.mlp is not None):
            raise ValueError("skip names a file that holds a set; leave out attention and mlp, or skip")
        return self

    @property
    def drafts_from(self) -> object:
        return "skip", self.skip, self.attention, self.mlp

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        named = self.attention is not None or self.mlp is not None
        return [skipped_target(target, self.skip, Skipped(self.attention or (), self.mlp or ()) if named else None)]

    def build(self, drafts: list[Session], target: Session) -> Parts:
        depth = controller(self.depth, self.gamma, drafts, target, lookup=self.lookup)
        return Parts(ModelDrafter(drafts, lookup=suffix_lookup(self.lookup)), self.verifier(), depth)


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
    tree: Widths | None = Field(default=None, description="children per node by layer; layer k draws from head k")
    paths: Annotated[
        tuple[tuple[int, ...], ...] | None,
        BeforeValidator(_paths),
        Field(description="a sparse tree in place of `tree`: ranks along each path, such as 0,1,0.0"),
    ] = None
    nodes: int = Field(
        default=NODES,
        ge=1,
        lt=MOST_ROWS,
        description="without tree and paths: drafts per round, those most often right",
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

    def choices(self, heads: medusa.Heads) -> Choices:
        """The tree: path of ranks -> children; where no chances of the heads are known, each rank has half the last."""
        if self.paths is not None:
            return sparse(self.paths)
        if self.tree is not None:
            return regular(self.tree)
        if not heads.ranks and self.nodes == NODES:
            return regular(UNKNOWN)
        assumed = [0.5**rank for rank in range(1, self.nodes + 1)]
        return likeliest(heads.ranks or [assumed] * heads.count, self.nodes)

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
        return "medusa", self.heads

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return medusa_heads(target, self.heads, drafts)

    def build(self, drafts: list[Session], target: Session) -> Parts:
        heads = cast(medusa.Heads, drafts[0].model)
        choices = self.choices(heads)
        most = 1 + max(map(len, choices), default=0)
        best = self.drafts == "best" or self.verify in ("typical", "greedy")
        drafter = HeadsDrafter(drafts[0], choices, best)
        return Parts(drafter, self.verifier(), controller(self.depth, min(most, heads.count), drafts, target))


class StateHeadMethod(DrawnMethod):
    """A head drafts token by token from the target's states, or its own.

    With `width` above 1 drafts are a tree that grows where the head is confident (EAGLE-2): a layer has the `width`
    paths of largest confidence, the product of the head's probabilities on them. When sampling, children are distinct
    draws from the head's distribution, and how many is fixed before they are drawn, so the rule is exact; or with
    drafts=best the head's most probable tokens.
    """

    gamma: Chain = 12
    width: int = Field(default=1, ge=1, le=256, description="most paths per layer; 1: a chain")
    nodes: int = Field(default=24, ge=1, lt=MOST_ROWS, description="of a tree: most drafts per round")
    least: float = Field(default=0.05, ge=0, le=1, description="of a tree: least confidence of a drafted path")
    drafts: Literal["drawn", "best"] = Field(
        default="drawn", description="draws from the head, or its most probable tokens, in sampling too"
    )
    lookup: Mixed = False
    depth: Depth = "auto"

    sizes = ("gamma", "width", "nodes")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.drafts == "best" and self.width == 1:
            raise ValueError("drafts=best gives siblings, but width is 1; widen the tree, or leave drafts out")
        if self.lookup and self.width > 1:
            raise ValueError(f"lookup goes with a chain, but width is {self.width}; leave out lookup or width")
        return self

    def build(self, drafts: list[Session], target: Session) -> Parts:
        def make(source: Source) -> Drafter:
            if self.width > 1:
                return ConfidentDrafter(source, self.width, self.nodes, self.least, self.drafts == "best")
            return ModelDrafter([source], lookup=suffix_lookup(self.lookup))

        depth = controller(self.depth, self.gamma, drafts, target, (self.width, 1), lookup=self.lookup)
        return Parts(drafting(make, drafts[0], target), self.verifier(), depth)


class Eagle(StateHeadMethod):
    """EAGLE-3 (Li et al. 2025): a small layer drafts token by token from the target's states after three of its layers.

    Chains, or trees with `width` above 1, see `StateHeadMethod`. Heads in the format of `speculators` or of EAGLE's
    authors are loaded as a draft (`--draft`); `draftwood train eagle` makes one. P-EAGLE heads of `speculators` draft
    several tokens in one pass.
    """

    name = "eagle"
    summary = "a chain or confidence tree from a trained head on the target's hidden states"

    head: Head = None

    @property
    def drafts_from(self) -> object:
        return "eagle", self.head

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return heads_of(eagle, target, self.head, drafts)


class MultiTokenPrediction(StateHeadMethod):
    """Multi-token prediction (DeepSeek-V3, §2.2): a layer in the target's own checkpoint drafts token by token.

    Chains, or trees with `width` above 1, see `StateHeadMethod`. Qwen3-Next, Qwen3.5 and GLM-4.5 come with such a
    layer. Of several only the first is used, again and again. Gemma 4's assistants, small models that read the target's
    keys and values, are loaded as a draft (`--draft`).
    """

    name = "mtp"
    summary = "a chain or confidence tree from the checkpoint's layer of multi-token prediction, or a Gemma 4 assistant"

    @property
    def drafts_from(self) -> object:
        return "mtp"

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return mtp_heads(target, drafts)


class DFlash(StateHeadMethod):
    """DFlash (Chen et al. 2026): a small head drafts a block of tokens in one pass from the target's states.

    Each place of a block has a distribution of its own, which does not see what is drafted before it; so a chain or a
    tree costs one pass, and with `width` above 1 a tree has the paths of largest product of their chances. Heads in the
    format of `speculators` or of its authors are loaded as a draft (`--draft`); `draftwood train dflash` makes one.
    """

    name = "dflash"
    summary = "a chain or confidence tree from a trained head that drafts a block in one pass"

    gamma: Annotated[
        int | None,
        Field(ge=0, le=64, description="draft tokens per round, at most those of a block; null: all"),
    ] = 16
    block: BlockHead = None

    @property
    def drafts_from(self) -> object:
        return "dflash", self.block

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        return heads_of(dflash, target, self.block, drafts)
