"""Depth by optimal stopping: draft on while the next layer is worth its time.

Learns from rounds: its own request's, or all where shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.improvement import DraftCost
from draftwood.depth.rules import LOGITS, Growth
from draftwood.sampling import Streams

BINS = 8  # of confidence; one more stands for 'not known'
UNKNOWN = BINS
WEIGHT = 4.0  # trials that the overall rate counts for in each bin
PRIOR, PRIOR_WEIGHT = 0.7, 2.0  # rate before anything was seen; rather high, so that drafting is tried


@dataclass(slots=True)
class Rates:
    """Discounted acceptance rates by bin, each pulled towards the rate of all bins together."""

    accepted: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    tried: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))

    def add(self, bin_: int, accepted: bool) -> None:
        self.tried[bin_] += 1
        self.accepted[bin_] += accepted

    def fade(self, discount: float) -> None:
        self.accepted = [discount * n for n in self.accepted]
        self.tried = [discount * n for n in self.tried]

    def chances(self) -> list[float]:
        overall = (sum(self.accepted) + PRIOR_WEIGHT * PRIOR) / (sum(self.tried) + PRIOR_WEIGHT)
        return [(a + WEIGHT * overall) / (n + WEIGHT) for a, n in zip(self.accepted, self.tried, strict=True)]


@dataclass(slots=True)
class Experience:
    """What was learned from rounds; `tokens`, `rounds` and `layers` are discounted sums."""

    own: Rates = field(default_factory=Rates)  # of layers, by their confidence
    next: Rates = field(default_factory=Rates)  # of layers, by the confidence of the layer before
    tokens: float = 1.0
    rounds: float = 1.0
    layers: float = 0.0


@dataclass(slots=True)
class OptimalStopping:
    """Go on while (product of the layers' chances, the next one's included) > lambda c.

    A drafted layer's chance of acceptance is that of earlier layers of about the same confidence: the draft's
    probability of its token, in trees and beams the largest. The next layer, whose confidence is not known
    yet, gets the chance that layers had behind one of the last layer's confidence. lambda is the running rate of tokens
    per target-forward time and c the cost of a layer in that unit: what the layer is expected to yield must exceed
    what the time would yield otherwise. No randomness. Rounds without drafts let the evidence fade, so that drafting
    is tried again.
    """

    most: int
    discount: float = 0.98
    cost: DraftCost = field(default_factory=DraftCost)
    shared: bool = False
    seen: Experience = field(default_factory=Experience)
    needs: frozenset[str] = LOGITS
    _own: list[float] = field(init=False, default_factory=list)  # the chances, made once per round
    _next: list[float] = field(init=False, default_factory=list)
    _bins: list[int] = field(init=False, default_factory=list)  # of the round's layers so far
    _asked: int = field(init=False, default=0)
    _reach: float = field(init=False, default=1.0)  # chance that all drafted layers are accepted

    @property
    def rate(self) -> float:
        """lambda, tokens per time of a target forward."""
        return self.seen.tokens / (self.seen.rounds + self.cost.ratio * self.seen.layers)

    def for_request(self) -> OptimalStopping:
        return replace(self, cost=self.cost.for_request())

    def start(self, streams: Streams) -> None:
        self._own, self._next = self.seen.own.chances(), self.seen.next.chances()
        self._bins, self._asked, self._reach = [], 0, 1.0

    def deeper(self, growth: Growth) -> bool:
        before = UNKNOWN
        if growth.depth:
            confidences = growth.confidences()
            before = min(BINS - 1, int(max(confidences) * BINS)) if confidences else UNKNOWN
            self._bins.append(before)
            self._reach *= self._own[before]
        if growth.depth >= self.most or self._reach * self._next[before] <= self.rate * self.cost.ratio:
            return False
        self._asked = growth.depth + 1
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        seen = self.seen
        seen.own.fade(self.discount)
        seen.next.fade(self.discount)
        for layer in range(round_.attempted):
            accepted = layer < round_.depth_accepted
            if layer < len(self._bins):
                seen.own.add(self._bins[layer], accepted)
            if layer <= len(self._bins):
                seen.next.add(self._bins[layer - 1] if layer else UNKNOWN, accepted)
        self.cost.add(round_, self._asked)
        seen.tokens = self.discount * seen.tokens + round_.depth_accepted + 1
        seen.rounds = self.discount * seen.rounds + 1
        seen.layers = self.discount * seen.layers + self._asked
