"""Records of what happened, as pure data: rounds, emitted tokens, and the verdict on each draw and layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TopLogprobs = list[tuple[int, float]]
# A draft; after a rejection; after all drafts; no drafts; the only token that a grammar allows
Kind = Literal["accepted", "corrected", "bonus", "plain", "forced"]
Outcome = tuple[int, int]  # (node or beam, token or FINISHED)


@dataclass(slots=True)
class EmittedToken:
    """The record of one emitted token."""

    token: int
    kind: Kind
    logprob: float  # under the target's untouched softmax
    warped: float  # under T∘p; of beams: of beam and token under the layer's joint distribution
    top: TopLogprobs = field(default_factory=list)
    warped_top: TopLogprobs = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Judged:
    """The fate of one draw: q is the probability that it was drawn with, p that of the target (p' of the papers, after
    earlier rejections), and chance = min(1, p / q) its probability of being accepted.
    """

    outcome: Outcome
    fate: Literal["accepted", "rejected", "outrun", "discarded", "unreached"]
    p: float = 0.0
    q: float = 0.0
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class BeamLayer:
    """The verdict on one layer: `width` beams in order, the first `accepted` of them drafts, the rest completions.

    With replacement `beams` counts multiplicity: given the layer before and the width, it is `width` iid draws from
    p (DSBD Theorem 3.1), as of the reference; equal outcomes are one beam from here on (`distinct`). Without
    replacement it is `width` successive draws without replacement from p. The layer stands if all are accepted drafts;
    otherwise its beams end the round.
    """

    width: int
    beams: list[Outcome]
    accepted: int
    judged: list[Judged]
    stands: bool
    chance: float = 0.0  # that `width` draws are accepted, as p, q and the number of draws predict it
    least: float = 0.0  # beta: that at least the minimum width is accepted (Theorem 3.2)

    @property
    def distinct(self) -> list[Outcome]:
        """The beams as a set, in order of first appearance."""
        return list(dict.fromkeys(self.beams))

    def as_dict(self) -> dict[str, Any]:
        """Plain data; nodes are places in the round's forest."""
        return {
            "width": self.width,
            "draws": len(self.judged),
            "accepted": self.accepted,
            "stands": self.stands,
            "chance": self.chance,
            "least": self.least,
            "beams": [list(beam) for beam in self.beams],
            "judged": [
                {"node": one.outcome[0], "token": one.outcome[1], "fate": one.fate}
                | ({"p": one.p, "q": one.q, "chance": one.chance} if one.q else {})
                for one in self.judged
            ],
        }


@dataclass(slots=True)
class Beam:
    """One hypothesis of the answer. `score` is log-likelihood / length^length_penalty, by which beams are ranked."""

    tokens: list[int]
    logprobs: list[float]  # per token, under the target before warping
    log_likelihood: float  # of all tokens, as the method counts it
    score: float
    text: str = ""
    finish_reason: str = "length"
    top_logprobs: list[TopLogprobs] = field(default_factory=list)  # per token, before warping, where asked for

    @property
    def perplexity(self) -> float:
        """exp(-log-likelihood / length)."""
        return math.exp(-self.log_likelihood / len(self.tokens)) if self.tokens else math.inf


@dataclass(slots=True, repr=False)
class Round:
    """One drafting phase and one target forward. Seconds of forwards are model time only; see `Metrics` for sums."""

    position: int  # place in the sequence of the round's (first) root
    tokens: list[int]  # emitted
    logprobs: list[float]  # of the emitted tokens, under the target's untouched softmax
    warped_logprobs: list[float]  # the same under T∘p, the distribution that is decoded
    top_logprobs: list[TopLogprobs]  # most probable tokens before warping, where asked for
    warped_top_logprobs: list[TopLogprobs]  # and after warping
    kinds: list[Kind]  # of the emitted tokens
    drafted: int  # distinct draft nodes, forced ones apart
    draws: int  # draws, with multiplicity
    accepted: int  # drafts among the emitted tokens
    depth_accepted: int  # drafts on the accepted path, before EOS, stop strings and limits cut it
    attempted: int  # positions at which drafts were verified: depth_accepted, plus one when all children failed
    draft_seconds: float  # forwards of draft models
    verify_seconds: float  # forwards of the target
    sampling_seconds: float  # warping, drawing, accepting
    other_seconds: float  # bookkeeping
    target_rows: float
    draft_rows: float
    draft_forwards: int
    forest_token: list[int]  # the round's nodes
    forest_parent: list[int]
    forest_path: list[int]  # accepted path, the root first
    roots: list[int]  # tokens of the next roots, FINISHED for one that is finished and stays,
    root_parents: list[int]  # and the nodes they hang on
    siblings: list[tuple[int, int]] = field(default_factory=list)  # per layer: (place of the accepted draw, draws)
    layers: Sequence[BeamLayer] = ()  # of beams: what happened, layer by layer
    most: int = 0  # layers that a round of the method may draft, as it is configured
    beams: list[Beam] = field(default_factory=list)  # with the last round of beams: the answer, best first
    text: str = ""  # what became certain of the text; a tail that may become a stop string is held back
    finish: str | None = None  # of the last round: why the text ends
    forced: int = 0  # nodes that a grammar left no choice about
    # of some rounds: (alpha*(n), whether one was accepted) where there were n independent draws (verify/bound.py)
    bounds: Sequence[tuple[float, bool]] = ()

    def __repr__(self) -> str:
        return (
            f"Round(position={self.position}, {self.accepted} of {self.drafted} drafts accepted, tokens={self.tokens})"
        )

    def path(self, node: int, *after: int) -> list[int]:
        """Tokens from the first node behind the trunk to `node`, then `after`; FINISHED is none."""
        tokens = [token for token in reversed(after) if token >= 0]
        while node >= 0:  # parents of the first are TRUNK
            tokens.append(self.forest_token[node])
            node = self.forest_parent[node]
        return tokens[::-1]

    @property
    def seconds(self) -> float:
        """Wall time of the round that is accounted for."""
        return self.draft_seconds + self.verify_seconds + self.sampling_seconds + self.other_seconds


@dataclass(frozen=True, slots=True)
class Ranking:
    """The number of hypotheses in a result, and their rank: log-likelihood / length^length_penalty.

    1 ranks by perplexity, 0 by joint likelihood. Methods with one hypothesis return that one: n_best is 0.
    """

    n_best: int = 0
    length_penalty: float = 1.0
