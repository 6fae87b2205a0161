"""What the target thought of each draft of one hypothesis: p, q and the chance to be accepted, recorded on the way.

Rounds of beams record this themselves. The recorder stands in the place of a request's verifier, passes its verdict on,
and walks down the accepted path as the verifier did, with the outcomes known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from draftwood.core.forest import FINISHED, Forest, Verdict
from draftwood.core.records import Judged, Outcome
from draftwood.sampling import Distributions, Streams
from draftwood.verify import Initialised, Rejection, Verifier
from draftwood.verify.tree import acceptance, resolve

LIKELY = 6  # tokens of a distribution that are kept


@dataclass(slots=True)
class Judgement:
    """One round: its judged drafts in order, and what the target found likely after each node of the accepted path."""

    drafts: list[Judged] = field(default_factory=list)
    chosen: tuple[Outcome, float] | None = None  # the token that ended the round, and its chance where it was drawn
    greedy: bool = False  # nothing was drawn: p is the target's untouched softmax, of which the largest wins
    likely: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # node -> (token, p), most probable first
    scores: Sequence[float] = ()  # log-likelihoods of the hypotheses that the next round begins with (beams)


@dataclass(slots=True)
class Recorder:
    """A verifier that records what another one judged, one entry per round."""

    verify: Verifier
    judgements: list[Judgement] = field(default_factory=list)
    name: str = field(init=False)
    lossless: bool = field(init=False)
    coupled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.lossless, self.coupled = self.verify.name, self.verify.lossless, self.verify.coupled

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        verdict = self.verify(forest, target, streams)
        found = Judgement(scores=verdict.score)
        if not forest.layers and not verdict.layers and verdict.token[0] != FINISHED:
            self._judge(found, forest, verdict, target)
        self.judgements.append(found)
        return verdict

    def _judge(self, found: Judgement, forest: Forest, verdict: Verdict, target: Distributions) -> None:
        """Walk down the accepted path as spec §2 has it; where nothing was tossed for, chances are left out."""
        path = forest.path(verdict.parent[0])
        found.greedy = target.params.greedy
        tossed = isinstance(self.verify, Rejection | Initialised) and not found.greedy
        for place, node in enumerate(path):
            if node < forest.fresh:
                continue  # answered in an earlier round
            p = target.edited([node])[0].float().softmax(-1) if found.greedy else target.probs(node)
            best = p.topk(min(LIKELY, p.shape[-1]))
            found.likely[node] = [
                (token, value)
                for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                if value
            ]
            following = path[place + 1] if place + 1 < len(path) else None
            rest = siblings(found, forest, node, following, p, tossed)
            if following is None:
                found.chosen = (node, verdict.token[0]), float(rest[verdict.token[0]])


def siblings(found: Judgement, forest: Forest, node: int, accepted: int | None, p: Tensor, tossed: bool) -> Tensor:
    """Record the draws below one node; returns what the next token was drawn from [V] if none was accepted.

    `tossed` says that draws were judged one by one with a coin: then p is what is left of the target's distribution
    when a draw is met, else the distribution itself.
    """
    proposals = forest.proposals.get(node, ())
    drawn = iter([(child, proposal.q) for proposal in proposals for child in proposal.nodes])

    def judge(child: int, p_x: float, q_x: float, chance: float) -> bool:
        fate: Literal["accepted", "rejected"] = "accepted" if child == accepted else "rejected"
        found.drafts.append(Judged((node, forest.token[child]), fate, p_x, q_x, chance))
        return child == accepted

    rest = p
    if tossed:
        _, rest = resolve(
            p, proposals, forest.token, lambda p_x, q_x: judge(next(drawn)[0], p_x, q_x, acceptance(p_x, q_x))
        )
    else:
        for child, q in drawn:
            token = forest.token[child]
            if judge(child, float(p[token]), 1.0 if q is None else float(q[token]), math.nan):
                break
    if accepted is not None:
        found.drafts += [Judged((node, forest.token[child]), "discarded") for child, _ in drawn]
    return rest
