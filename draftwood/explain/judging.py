"""What the target said of each draft of one hypothesis: p, q and the chance to be accepted, noted during decoding.

Rounds of beams record this themselves. Refuses to know the loop: the recorder stands in the place of a request's
verifier, passes on what that says, and works out afterwards what it must have compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from draftwood.core.forest import FINISHED, Forest, Verdict
from draftwood.decode import Request
from draftwood.results import Judged, Outcome
from draftwood.sampling import Penalties, SamplingParams, Streams, warp
from draftwood.verify import Initialised, Rejection, Verifier
from draftwood.verify.tree import acceptance, residual, without

LIKELY = 6  # tokens of a distribution that are kept


@dataclass(slots=True)
class Judgement:
    """One round: its judged drafts in order, and what the target found likely after each node of the accepted path."""

    drafts: list[Judged] = field(default_factory=list)
    chosen: tuple[Outcome, float] | None = None  # the token that ended the round, and its chance where it was drawn
    greedy: bool = False  # nothing was drawn: p is the target's untouched softmax, of which the largest wins
    likely: dict[int, list[tuple[int, float]]] = field(default_factory=dict)  # node -> (token, p), most probable first


@dataclass(slots=True)
class Recorder:
    """A verifier that notes what another one judged, one entry per round."""

    verify: Verifier
    judgements: list[Judgement] = field(default_factory=list)
    name: str = field(init=False)
    lossless: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.lossless = self.verify.name, self.verify.lossless

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict:
        verdict = self.verify(forest, logits, params, penalties, streams)
        found = Judgement()
        if not forest.layers and not verdict.layers and verdict.token[0] != FINISHED:
            self._judge(found, forest, verdict, logits, params, penalties)
        self.judgements.append(found)
        return verdict

    def _judge(
        self,
        found: Judgement,
        forest: Forest,
        verdict: Verdict,
        logits: Tensor,
        params: SamplingParams,
        penalties: Penalties | None,
    ) -> None:
        """Walk down the accepted path as spec §2 has it; where nothing was tossed for, chances are left out."""
        path = forest.path(verdict.parent[0])
        found.greedy = params.greedy
        tossed = isinstance(self.verify, Rejection | Initialised) and not params.greedy
        for place, node in enumerate(path):
            if node < forest.fresh:
                continue  # answered in an earlier round
            answer = forest.answers([node], logits)
            if penalties is not None:
                answer = penalties(answer, forest, [node])
            p = warp(answer, params)[0] if not params.greedy else answer.float().softmax(-1)[0]
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
    """Note the draws below one node; returns what the next token was drawn from [V] if none was accepted.

    `tossed` says that draws were judged one by one with a coin: then p is what is left of the target's distribution
    when a draw is met, else the distribution itself.
    """
    rest, over = p, False
    for proposal in forest.proposals.get(node, ()):
        q = proposal.q
        for child in proposal.nodes:
            token = forest.token[child]
            if over:
                found.drafts.append(Judged((node, token), "discarded"))
                continue
            if proposal.q is not None and q is None:
                break
            share = 1.0 if q is None else float(q[token])
            kept = child == accepted
            chance = acceptance(float(rest[token]), share) if tossed else math.nan
            fate: Literal["accepted", "rejected"] = "accepted" if kept else "rejected"
            found.drafts.append(Judged((node, token), fate, float(rest[token]), share, chance))
            if kept:
                over = True
            elif tossed:
                rest = residual(rest, q, token)
                if not proposal.replacement and q is not None:
                    q = without(q, token)
    return rest


def record(request: Request) -> Recorder:
    """Put a recorder in the place of a request's verifier."""
    recorder = Recorder(request.verify)
    request.verify = recorder
    return recorder
