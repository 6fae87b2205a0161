"""Depth by optimal stopping: draft on while the next layer is worth its time.

Learns from rounds: its own request's, or all where shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.improvement import DraftCost
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.sampling.distributions import Streams

BINS = 8  # of confidence; one more stands for 'not known'
UNKNOWN = BINS
PRIOR, WEIGHT = 0.7, 4.0  # rate before anything was seen, rather high, so that drafting is tried; trials it counts for
LARGEST = 1e100  # unit of `Rates`
SUREST = 0.985  # most that is expected of a draft


def guessed(least: float, slope: float) -> list[float]:
    """Acceptance by the draft's confidence before any was seen."""
    return [min(SUREST, least + slope * (bin_ + 0.5) / BINS) for bin_ in range(BINS)] + [PRIOR]


CONFIDENT = guessed(0.1, 1.0)  # of best tokens: near their confidence (EAGLE-2, Li et al. 2024)
DRAWN = guessed(0.4, 0.6)  # of drawn ones, which the target may find as unlikely as the draft did


def bin_of(confidence: float) -> int:
    """The bin of a layer whose best draft has this confidence."""
    return min(BINS - 1, int(confidence * BINS))


@dataclass(slots=True)
class Rates:
    """Discounted acceptance rates by bin: later trials count for more, so that nothing need be made anew."""

    accepted: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    tried: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    unit: float = 1.0  # what a trial counts for now

    def add(self, bin_: int, accepted: bool) -> None:
        self.tried[bin_] += self.unit
        if accepted:
            self.accepted[bin_] += self.unit

    def fade(self, discount: float) -> None:
        self.unit /= discount
        if self.unit > LARGEST:
            self.accepted, self.tried = ([n / self.unit for n in each] for each in (self.accepted, self.tried))
            self.unit = 1.0

    @property
    def rate(self) -> float:
        """Of all bins together."""
        weight = WEIGHT * self.unit
        return (sum(self.accepted) + weight * PRIOR) / (sum(self.tried) + weight)

    def chances(self, guesses: Sequence[float] = (), prior: float = PRIOR) -> list[float]:
        """Of each bin, pulled towards what is guessed of it: unless told, the rate of the other bins together."""
        bins, weight = list(zip(self.accepted, self.tried, strict=True)), WEIGHT * self.unit
        accepted, tried = sum(self.accepted) + weight * prior, sum(self.tried) + weight
        guesses = guesses or [(accepted - a) / (tried - n) for a, n in bins]
        return [(a + weight * guess) / (n + weight) for (a, n), guess in zip(bins, guesses, strict=True)]


@dataclass(slots=True)
class Experience:
    """What was learned from rounds; `tokens`, `rounds` and `layers` are discounted sums."""

    own: Rates = field(default_factory=Rates)  # of layers, by their confidence
    next: Rates = field(default_factory=Rates)  # of layers, by the confidence of the layer before
    tokens: float = 1.0
    rounds: float = 1.0
    layers: float = 0.0


@dataclass(slots=True)
class Path:
    """Chances of a round's layers, by the draft's confidence in them: its probability of its token, in trees and beams
    the largest.

    A layer's chance of acceptance is that of earlier layers of about the same confidence. The next layer gets the
    chance that layers had behind one of the last layer's confidence. What lookup drafts alone has the chances that
    lookup says, and teaches nothing of the models.
    """

    own: Sequence[float] = ()  # chances by confidence
    next: Sequence[float] = ()
    drawn: list[bool] = field(default_factory=list)  # of each layer that was agreed to: whether models draft it
    reach: float = 1.0  # chance that all drafted layers are accepted
    _bins: list[int] = field(default_factory=list)  # of the round's layers so far

    @property
    def asked(self) -> int:
        """Layers that were agreed to."""
        return len(self.drawn)

    def ask(self, state: DraftState) -> None:
        """Agree to the layer after `state`."""
        self.drawn.append(not state.ahead)

    def follow(self, state: DraftState) -> float:
        """Note the layer that was drafted last, if any; the chance of the next one where all before it are accepted."""
        last = UNKNOWN
        if state.depth:
            if self.drawn[state.depth - 1]:
                last = bin_of(max(confidences)) if (confidences := state.confidences()) else UNKNOWN
                self.reach *= self.own[last]
            else:
                self.reach *= state.chances[0]
            self._bins.append(last)
        return state.ahead[0] if state.ahead else self.next[last]

    def learn(self, round_: Round, seen: Experience, discount: float) -> None:
        """Add what became of the round."""
        seen.own.fade(discount)
        seen.next.fade(discount)
        for layer, drawn in zip(range(round_.attempted), self.drawn, strict=False):
            accepted = layer < round_.depth_accepted
            if not drawn:
                continue
            if layer < len(self._bins):
                seen.own.add(self._bins[layer], accepted)
            if layer <= len(self._bins):
                seen.next.add(self._bins[layer - 1] if layer else UNKNOWN, accepted)


@dataclass(slots=True)
class OptimalStopping(DepthController):
    """Go on while (product of the layers' chances, the next one's included) > lambda c.

    Chances are those of `Path`. lambda is the running rate of tokens per target-forward time and c the cost of a layer
    in that unit: what the layer is expected to yield must exceed what the time would yield otherwise. No randomness.
    Rounds without drafts let the evidence fade, so that drafting is tried again.
    """

    most: int
    discount: float = 0.98
    cost: DraftCost = field(default_factory=DraftCost)
    shared: bool = False
    seen: Experience = field(default_factory=Experience)
    needs: frozenset[str] = LOGITS | LOAD
    _path: Path = field(init=False, default_factory=Path)

    @property
    def rate(self) -> float:
        """lambda, tokens per time of a target forward."""
        return self.seen.tokens / (self.seen.rounds + self.cost.ratio * self.seen.layers)

    def for_request(self) -> OptimalStopping:
        return replace(self, cost=replace(self.cost))

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.cost.start(load)
        self._path = Path(self.seen.own.chances(CONFIDENT), self.seen.next.chances())

    def deeper(self, state: DraftState) -> bool:
        path = self._path
        chance = path.follow(state)
        if state.depth >= self.most or path.reach * chance <= self.rate * self.cost.ratio:
            return False
        path.ask(state)
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        seen, asked = self.seen, self._path.asked
        self._path.learn(round_, seen, self.discount)
        self.cost.add(round_, asked)
        seen.tokens = self.discount * seen.tokens + round_.depth_accepted + 1
        seen.rounds = self.discount * seen.rounds + 1
        seen.layers = self.discount * seen.layers + asked
