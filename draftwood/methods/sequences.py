"""Methods with one hypothesis: plain decoding, chains, trees, forks, lookup."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from draftwood.core.shape import Shape
from draftwood.depth import Fixed
from draftwood.draft import (
    CertainDrafter,
    Drafter,
    ModelDrafter,
    NgramSource,
    SuffixLookup,
    TextDrafter,
    TranslatedSession,
)
from draftwood.draft.base import Source
from draftwood.errors import ConfigurationError
from draftwood.methods.base import FILE, Method, Parts
from draftwood.methods.options import (
    DEEPEST,
    Chain,
    Depth,
    Gamma,
    Initial,
    Mixed,
    Widths,
    check_ends,
    check_rows,
    controller,
)
from draftwood.methods.sources import SourcedMethod
from draftwood.runtime.session import Session
from draftwood.verify import Coupled, Initialised, KSeq, LongestPath, Rejection, Traversal, Verifier


def suffix_lookup(lookup: bool) -> SuffixLookup | None:
    """A source of drafts from the text of a request, if that is wanted."""
    return SuffixLookup() if lookup else None


RULES: dict[str, type[Verifier]] = {one.name: one for one in (Traversal, Rejection, KSeq, Coupled)}  # lossless
LOSSLESS = (
    "lossless: traversal judges whole paths, rejection single tokens; coupled: the sampled text of plain decoding"
)
KSEQ = "; kseq: K-SEQ for a node's independent draws"
LOSSY = (
    "; lossy, for rounds that begin with several tokens of the target: longest, MCSD's released rule (drafts judged "
    "alone, the longest of all paths), or longest-root, which loses less (the root below which rejection goes farthest)"
)
WITHOUT = {  # rule -> why a method does without it
    "traversal": "it judges paths of drawn drafts, and {name} draws none; use rejection, which accepts as much",
    "kseq": "it judges a node's independent draws, which specinfer and mcsd with replacement=true have; use one",
}


def of_target(verify: str, initial: int, replacement: bool) -> Verifier | None:
    """The rule for rounds that begin with `initial` tokens of the target; None where it is another kind of rule."""
    if verify == "longest":
        if replacement:
            raise ValueError("verify=longest is MCSD's released rule, whose draws are distinct; use replacement=false")
        return LongestPath(initial)
    return Initialised(initial, replacement) if verify == "longest-root" else None


class OneHypothesis(Method):
    """A method with one hypothesis; its reference is plain decoding."""

    @field_validator("verify", mode="before", check_fields=False)
    @classmethod
    def _has_a_use(cls, rule: object) -> object:
        if rule in WITHOUT and rule not in get_args(cls.model_fields["verify"].annotation):
            raise ValueError(WITHOUT[str(rule)].format(name=cls.name))
        return rule

    def reference(self, greedy: bool) -> Method | None:
        if greedy:
            return Autoregressive()
        return Autoregressive(verify="coupled") if isinstance(self.verifier(), Coupled) else None


class SequenceMethod(OneHypothesis):
    """One whose verification is lossless, by rejection or coupled."""

    verify: str = "rejection"

    @model_validator(mode="after")
    def _ends(self) -> Self:
        check_ends(getattr(self, "gamma", 0), getattr(self, "depth", ""))
        return self

    def verifier(self) -> Verifier:
        return RULES[self.verify]()


class UndrawnMethod(SequenceMethod):
    """One whose drafts, if any, are not drawn from a distribution: whole paths gain nothing."""

    verify: Literal["rejection", "coupled"] = Field(
        default="rejection",
        description="rejection sampling, or Gumbel-coupled: the same text under a seed with and without drafts",
    )


class DrawnMethod(SequenceMethod):
    """One whose drafts are drawn from distributions that verification is told."""

    verify: Literal["traversal", "rejection", "coupled"] = Field(default="traversal", description=LOSSLESS)

    sizes: ClassVar[tuple[str, ...]] = ("gamma",)

    @classmethod
    def with_implied(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Thompson sampling has no size, as in EESD's Algorithms 1 and 2; a chain with lookup is longer than others."""
        named = bool(options.keys() & cls.sizes)
        if not named and str(options.get("depth", "")).partition(":")[0] in ("beta-ts", "cali-ts"):
            return {"gamma": None, **options}
        if cls.model_fields["depth"].default != "auto":
            return options
        options = super().with_implied(options)
        if not named and str(options["depth"]).partition(":")[0] != "auto":
            options = {"gamma": 4, **options}
        return {"gamma": DEEPEST, **options} if options.get("lookup") else options


class Autoregressive(UndrawnMethod):
    """One token per target forward."""

    name = "autoregressive"
    summary = "plain decoding, greedy or multinomial"

    def reference(self, greedy: bool) -> Method | None:
        return self

    def build(self, drafts: list[Session], target: Session) -> Parts:
        return Parts(CertainDrafter(), self.verifier(), Fixed(0))


class Speculative(DrawnMethod):
    """Speculative decoding with a chain (Leviathan et al. 2023; Chen et al. 2023)."""

    name = "speculative"
    summary = "a chain of gamma tokens from a draft model"
    draft_models = (1, 1)

    gamma: Chain = 12
    lookup: Mixed = False
    vocabulary: Literal["shared", "text"] | None = Field(
        default=None,
        description="of a draft with another tokenizer: draw tokens that both have, or cut what it writes; null: by "
        "their overlap",
    )
    depth: Depth = "auto"

    def build(self, drafts: list[Session], target: Session) -> Parts:
        (draft,) = drafts
        depth = controller(self.depth, self.gamma, drafts, target, lookup=self.lookup)
        lookup = suffix_lookup(self.lookup)
        drafter: Drafter = ModelDrafter(drafts, lookup=lookup)
        if not isinstance(draft, TranslatedSession):
            if self.vocabulary is not None:
                raise ConfigurationError(
                    "vocabulary is for a draft with another tokenizer, but draft and target have the same; leave it out"
                )
        elif (self.vocabulary or draft.words.better) == "text":
            drafter = TextDrafter(draft, lookup)
        return Parts(drafter, self.verifier(), depth)


class SpecInfer(SequenceMethod):
    """SpecInfer (Miao et al. 2024): a token tree from one or several draft models, multi-step speculative sampling."""

    name = "specinfer"
    summary = "a token tree, expanded as configured, from one or several draft models"
    draft_models = (1, 8)

    verify: Literal["traversal", "rejection", "kseq", "coupled"] = Field(
        default="traversal", description=LOSSLESS + KSEQ
    )
    expansion: Widths = (1, 2, 2, 1)
    lookup: Mixed = False
    depth: Depth = "auto"

    sizes = ("expansion",)

    def build(self, drafts: list[Session], target: Session) -> Parts:
        depth = controller(
            self.depth, len(self.expansion), drafts, target, self.expansion, len(drafts), lookup=self.lookup
        )
        return Parts(ModelDrafter(drafts, self.expansion, lookup=suffix_lookup(self.lookup)), self.verifier(), depth)


class MultiCandidate(SourcedMethod, SequenceMethod):
    """MCSD (Yang et al. 2024): a k-configuration tree, children drawn with or without replacement."""

    name = "mcsd"
    summary = "a k-configuration tree of candidates, drawn with or without replacement"
    draft_models = (1, 1)

    verify: Literal["traversal", "rejection", "kseq", "coupled", "longest", "longest-root"] = Field(
        default="traversal", description=LOSSLESS + KSEQ + LOSSY
    )
    tree: Widths = (4, 2, 2, 1)
    initial: Initial = 1
    replacement: bool = Field(default=False, description="draw siblings independently; false: distinct siblings")
    lookup: Mixed = False
    draws: Literal["sampled", "greedy"] = Field(
        default="sampled", description="greedy: all siblings but one are the draft's most probable tokens"
    )
    depth: Depth = "auto"

    sizes = ("tree",)

    @classmethod
    def with_implied(cls, options: dict[str, Any]) -> dict[str, Any]:
        several = str(options.get("initial", 1)) != "1"
        return ({"verify": "longest-root"} if several else {}) | super().with_implied(options)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        tree = f"a tree {','.join(map(str, self.tree))} with initial {self.initial}"
        check_rows(Shape(self.tree, self.initial).rows, tree)
        if self.initial > 1 and self.verify not in ("longest", "longest-root"):
            raise ValueError(
                f"verify={self.verify} judges the paths of one root, so rounds cannot begin with several; use "
                "initial 1, or verify=longest-root or longest, which are lossy"
            )
        if self.verify == "longest" and self.draws == "greedy":
            raise ValueError("verify=longest is MCSD's released rule, whose siblings are all drawn; use draws=sampled")
        of_target(self.verify, self.initial, self.replacement)
        if self.initial > 1 and self.lookup:
            raise ValueError("lookup goes on from one token, but a round begins with several; use initial 1")
        if self.lookup and self.drafter == "lookup":
            raise ValueError("drafter=lookup draws from the text what lookup=true copies from it; leave one out")
        if self.verify == "kseq" and not (self.replacement and self.draws == "sampled"):
            raise ValueError("verify=kseq judges independent draws; set replacement=true and draws=sampled")
        if self.draws == "greedy" and (self.replacement or self.verify == "coupled"):
            fix = "replacement=false" if self.replacement else "verify=traversal or rejection"
            raise ValueError(f"draws=greedy gives distinct siblings, all but one without chance; use it with {fix}")
        return self

    def verifier(self) -> Verifier:
        return of_target(self.verify, self.initial, self.replacement) or super().verifier()

    def build(self, drafts: list[Session], target: Session) -> Parts:
        def make(source: Source | None) -> ModelDrafter:
            return ModelDrafter(
                [source or NgramSource(target.model)],
                self.tree,
                self.replacement,
                suffix_lookup(self.lookup),
                self.draws == "greedy",
            )

        depth = controller(self.depth, len(self.tree), drafts, target, self.tree, self.initial, lookup=self.lookup)
        return Parts(self.drafting(make, drafts, target), self.verifier(), depth)


class Fork(OneHypothesis):
    """The fork-shaped dynamic tree (MCSD §3.1, Figure 2): W candidates, each continued as a chain to depth D at most.

    With a lossless rule the W candidates are drafts of one node. With `longest`, the paper's form, and `longest-root`
    they are the target's own draws, and the longest accepted chain wins: lossy.
    """

    name = "mcsd-fork"
    summary = "W chains of candidates, each as deep as the depth controller finds worthwhile"
    draft_models = (1, 1)

    width: int = Field(default=4, ge=1, le=256, description="chains, W")
    gamma: int = Field(default=4, ge=1, le=64, description="most drafted tokens per chain, D")
    verify: Literal["traversal", "rejection", "coupled", "longest", "longest-root"] = Field(
        default="traversal", description=LOSSLESS + LOSSY
    )
    replacement: bool = Field(default=False, description="draw candidates independently; false: distinct candidates")
    depth: Depth = "auto"

    sizes = ("width", "gamma")

    @model_validator(mode="after")
    def _few_rows(self) -> Self:
        what = f"a tree of {self.width} chains of {self.gamma} tokens"
        check_rows(1 + self.width * self.gamma, what, "lower width or gamma")
        of_target(self.verify, self.width, self.replacement)
        return self

    def verifier(self) -> Verifier:
        return of_target(self.verify, self.width, self.replacement) or RULES[self.verify]()

    def build(self, drafts: list[Session], target: Session) -> Parts:
        first = 1 if self.verify in ("longest", "longest-root") else self.width
        widths = (first, *(1,) * (self.gamma - 1))
        depth = controller(self.depth, self.gamma, drafts, target, widths)
        return Parts(ModelDrafter(drafts, widths, self.replacement), self.verifier(), depth)


class Lookup(SequenceMethod):
    """Prompt lookup: drafts the tokens that followed the longest earlier match of the last tokens.

    A suffix automaton of prompt and output finds matches of any length, at negligible cost. The match's length and how
    often each continuation followed it give the confidence of a draft, by which depth=auto (where no gamma is named)
    decides how much of it is worth verifying. With `shared`, earlier answers of the engine are searched too;
    verification is then coupled, since an earlier answer under the same seed would know what is drawn. A `corpus` is
    searched likewise, and by any rule: it knows nothing of what is drawn.

    A sampled text often goes on in another way than it did before. With drafts=drawn tokens are drawn from counts of
    what followed such matches, and verified by these chances: exact, and more of them are accepted.
    """

    name = "lookup"
    summary = "n-gram matches in prompt and output as drafts; needs no draft model"

    gamma: Gamma = DEEPEST
    verify: Literal["traversal", "rejection", "coupled"] = Field(
        default="rejection", description=LOSSLESS + "; traversal for drawn drafts alone"
    )
    drafts: Literal["copied", "drawn"] = Field(
        default="copied", description="the likeliest continuation, or draws from counts of all that were seen"
    )
    min_ngram: int = Field(default=1, ge=1, le=16, description="shortest match to use, in tokens")
    shared: bool = Field(default=False, description="also search earlier answers of the engine, and add this one")
    corpus: Annotated[str | None, FILE] = Field(
        default=None, min_length=1, description="a file of text to search too, such as documentation or earlier logs"
    )
    depth: Depth = "auto"

    sizes = ("gamma",)

    @classmethod
    def with_implied(cls, options: dict[str, Any]) -> dict[str, Any]:
        verify = {"verify": "coupled"} if options.get("shared") else {}
        verify = {"verify": "traversal"} if options.get("drafts") == "drawn" else verify
        return verify | super().with_implied(options)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.drafts == "drawn":
            if self.shared or self.corpus is not None or self.min_ngram > 1:
                raise ValueError(
                    "drafts=drawn counts all matches in prompt and output; leave out shared, corpus and min_ngram"
                )
            return self
        if self.verify == "traversal":
            raise ValueError(WITHOUT["traversal"].format(name="lookup with drafts=copied"))
        if self.shared and self.verify != "coupled":
            raise ValueError(
                "an earlier answer under the same seed would be a draft that knows what is drawn, so shared=true goes "
                "with verify=coupled"
            )
        if self.depth.startswith("entropy"):
            raise ValueError("depth=entropy reads a draft model's distribution; use auto, confidence or fixed")
        return self

    def build(self, drafts: list[Session], target: Session) -> Parts:
        if self.drafts == "drawn":
            depth = controller(self.depth, self.gamma, (), target, hidden=False)
            return Parts(ModelDrafter([NgramSource(target.model)]), self.verifier(), depth)
        lookup = SuffixLookup(self.min_ngram, self.shared, self.corpus)
        depth = controller(self.depth, self.gamma, (), target, lookup=True)
        return Parts(ModelDrafter((), lookup=lookup), self.verifier(), depth)
