"""Records the verdict on each draft of one hypothesis: p, q and the chance to be accepted.

Rounds of beams record this themselves. The recorder stands in the place of a request's verifier, passes its verdict on,
and goes where the verifier went, with the outcomes known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from draftwood.core.forest import FINISHED, Forest, Verdict
from draftwood.core.records import Judged, Outcome
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import Initialised, LongestPath, Rejection, Traversal, VerifierProxy
from draftwood.verify.bound import bounds
from draftwood.verify.traversal import traverse
from draftwood.verify.tree import Resolve, acceptance, resolve

LIKELY_TOKENS = 6  # tokens of a distribution that are kept


@dataclass(slots=True)
class RoundJudgement:
    """One round: its judged drafts in order, and what the target found likely after each node of the accepted path."""

    drafts: list[Judged] = field(default_factory=list)
    chosen: tuple[Outcome, float] | None = None  # the token that ended the round, and its chance where it was drawn
    greedy: bool = False  # nothing was drawn: p is the target's untouched softmax, of which the largest wins
    bounds: list[tuple[float, bool]] = field(default_factory=list)  # of independent draws: alpha*(n), one was accepted
    likely: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # node -> (token, p), most probable first
    scores: Sequence[float] = ()  # log-likelihoods of the hypotheses that the next round begins with (beams)


@dataclass(slots=True)
class VerdictRecorder(VerifierProxy):
    """A verifier that records what another one judged, one entry per round."""

    judgements: list[RoundJudgement] = field(default_factory=list)

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        verdict = self.verify(forest, target, streams)
        result = RoundJudgement(scores=verdict.score)
        if not forest.layers and not verdict.layers and verdict.token[0] != FINISHED:
            self._judge(result, forest, verdict, target)
        self.judgements.append(result)
        return verdict

    def _judge(self, result: RoundJudgement, forest: Forest, verdict: Verdict, target: Distributions) -> None:
        """Walk down the accepted path as spec §2 has it; where nothing was tossed for, chances are left out."""
        path = forest.path(verdict.parent[0])
        result.greedy = target.params.greedy
        result.bounds = bounds(forest, path, target)
        rule: Resolve | None = None  # where drafts were judged one by one
        if isinstance(self.verify, Rejection | Initialised) and not result.greedy:
            rule = self.verify.rule if isinstance(self.verify, Rejection) else resolve
        all_paths = isinstance(self.verify, Traversal | LongestPath) and not result.greedy
        for place, node in enumerate(path):
            if node < forest.fresh:
                continue  # answered in an earlier round
            p = target.edited([node])[0].float().softmax(-1) if result.greedy else target.probs(node)
            best = p.topk(min(LIKELY_TOKENS, p.shape[-1]))
            result.likely[node] = [
                (token, value)
                for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                if value
            ]
            following = path[place + 1] if place + 1 < len(path) else None
            if not all_paths:
                rest = siblings(result, forest, node, following, p, rule)
                if following is None:
                    result.chosen = (node, verdict.token[0]), float(rest[verdict.token[0]])
        if all_paths:
            if isinstance(self.verify, LongestPath):
                coins(result, forest, path, target, self.verify.accepted)
                rest = self.verify.behind(forest, path, target)
            else:
                rest = paths(result, forest, path, target)
            result.chosen = (path[-1], verdict.token[0]), float(rest[verdict.token[0]])


def paths(result: RoundJudgement, forest: Forest, path: Sequence[int], target: Distributions) -> Tensor:
    """Record the drafts that traversal visited before it accepted `path`; returns what came next was drawn from [V].

    The chance of a draft is that of the whole path down to it; p is what is left of the target's distribution there.
    """

    def note(child: int, p: float, q: float, chance: float) -> None:
        fate: Literal["accepted", "rejected"] = "accepted" if child in path else "rejected"
        result.drafts.append(Judged((forest.parent[child], forest.token[child]), fate, p, q, chance))

    end = traverse(forest, forest.roots[0], target.probs, lambda node, chance: node == path[-1], note)
    assert end is not None
    rest = end[1]
    for node in path[:-1]:
        drawn = [child for proposal in forest.proposals[node] for child in proposal.nodes]
        after = next(place for place, child in enumerate(drawn) if child in path)
        result.drafts += [Judged((node, forest.token[child]), "discarded") for child in drawn[after + 1 :]]
    return target.probs(path[-1]) if rest is None else rest / rest.sum()


def coins(
    result: RoundJudgement, forest: Forest, path: Sequence[int], target: Distributions, accepted: Sequence[int]
) -> None:
    """Record the drafts that were judged alone, each by its coin: those below roots and `accepted` ones."""
    for node in dict.fromkeys((*forest.roots, *accepted)):
        if not (proposals := forest.proposals.get(node)):
            continue
        p = target.probs(node)
        for proposal in proposals:
            for child in proposal.nodes:
                token = forest.token[child]
                p_x, q_x = float(p[token]), 1.0 if proposal.q is None else float(proposal.q[token])
                won: Literal["accepted", "outrun"] = "accepted" if child in path else "outrun"
                fate = won if child in accepted else "rejected"
                result.drafts.append(Judged((node, token), fate, p_x, q_x, acceptance(p_x, q_x)))


def siblings(
    result: RoundJudgement, forest: Forest, node: int, accepted: int | None, p: Tensor, rule: Resolve | None
) -> Tensor:
    """Record the draws below one node; returns what the next token was drawn from [V] if none was accepted.

    With a `rule` draws were judged one by one with a coin: then p is what is left of the target's distribution when a
    draw is met, else the distribution itself.
    """
    proposals = forest.proposals.get(node, ())
    drawn = iter([(child, proposal.q) for proposal in proposals for child in proposal.nodes])

    def judge(child: int, p_x: float, q_x: float, chance: float) -> bool:
        fate: Literal["accepted", "rejected"] = "accepted" if child == accepted else "rejected"
        result.drafts.append(Judged((node, forest.token[child]), fate, p_x, q_x, chance))
        return child == accepted

    rest = p
    if rule is not None:
        _, rest = rule(
            p, proposals, forest.token, lambda p_x, q_x: judge(next(drawn)[0], p_x, q_x, acceptance(p_x, q_x))
        )
    else:
        for child, q in drawn:
            token = forest.token[child]
            if judge(child, float(p[token]), 1.0 if q is None else float(q[token]), math.nan):
                break
    if accepted is not None:
        result.drafts += [Judged((node, forest.token[child]), "discarded") for child, _ in drawn]
    return rest
