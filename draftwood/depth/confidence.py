"""Depth by the draft's own confidence: thresholds, one that follows the acceptance rate, and optimal stopping.

Learns from the request's own rounds, or from an engine's where shared; no randomness, no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.acceptance import GREEDY_RATES, LayerRates, RoundPath
from draftwood.depth.load import ALONE, DraftCost, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.sampling.distributions import Streams


@dataclass(slots=True)
class Confidence(DepthController):
    """Stop when the draft gave its last token less probability than `threshold` (Hugging Face's dynamic speculation).

    Of trees and beams: when it did so for every node of the last layer that is not over.
    """

    most: int
    threshold: float = 0.4
    needs: frozenset[str] = LOGITS

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        confidences = state.confidences()
        return not confidences or max(confidences) >= self.threshold


@dataclass(slots=True)
class Entropy(DepthController):
    """Stop when the draft's distribution of its last token, of all of them in trees and beams, had more nats than
    `limit`."""

    most: int
    limit: float = 2.0
    needs: frozenset[str] = LOGITS

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        entropies = state.entropies()
        return not entropies or min(entropies) <= self.limit


@dataclass(slots=True)
class AdaptiveConfidence(DepthController):
    """Stop when the draft's probability of its last token is below a threshold that is moved towards a wanted rate.

    After a round that drafted k layers, a of them accepted (Zhang et al. 2023, "Draft & Verify", adaptive exiting):

        AR <- rate_memory AR + (1 - rate_memory) a / k
        wanted <- threshold + step if AR < target, else threshold - step
        threshold <- memory threshold + (1 - memory) wanted

    so a rate below `target` makes drafting more careful. As in the authors' program the threshold stays where it is
    when the rate is high enough and all `most` layers were drafted: a lower one would change nothing. AR starts at
    `target`, which favours no direction (the program starts at 0). The threshold is kept within [0, 1].
    Of trees and beams the most probable node of the last layer counts, as in `Confidence`.
    """

    most: int
    threshold: float = 0.6
    target: float = 0.9
    step: float = 0.01
    rate_memory: float = 0.5
    memory: float = 0.9
    needs: frozenset[str] = LOGITS
    rate: float = field(init=False)
    _asked: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.rate = self.target

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._asked = 0

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        confidences = state.confidences()
        if confidences and max(confidences) < self.threshold:
            return False
        self._asked = state.depth + 1
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        drafted = max(self._asked, round_.depth_accepted)
        if not round_.attempted or not drafted:
            return
        self.rate = self.rate_memory * self.rate + (1 - self.rate_memory) * round_.depth_accepted / drafted
        if self.rate < self.target:
            wanted = self.threshold + self.step
        elif drafted < self.most:
            wanted = self.threshold - self.step
        else:
            wanted = self.threshold
        self.threshold = min(1.0, max(0.0, self.memory * self.threshold + (1 - self.memory) * wanted))


@dataclass(slots=True)
class StoppingEvidence:
    """Discounted sums over the rounds of a request or, where shared, of an engine."""

    rates: LayerRates = field(default_factory=LayerRates)
    tokens: float = 1.0
    rounds: float = 1.0
    layers: float = 0.0


@dataclass(slots=True)
class OptimalStopping(DepthController):
    """Go on while (product of the layers' chances, the next one's included) > lambda c.

    Chances are those of `RoundPath`. lambda is the running rate of tokens per time of a target forward and c the cost
    of a layer in that unit: what the layer is expected to yield must exceed what the time would yield otherwise. Uses
    no random numbers. Rounds without drafts let the evidence fade, so that drafting is tried again.
    """

    most: int
    discount: float = 0.98
    cost: DraftCost = field(default_factory=DraftCost)
    shared: bool = False
    seen: StoppingEvidence = field(default_factory=StoppingEvidence)
    needs: frozenset[str] = LOGITS | LOAD
    _path: RoundPath = field(init=False, default_factory=RoundPath)

    @property
    def rate(self) -> float:
        """lambda, tokens per time of a target forward."""
        return self.seen.tokens / (self.seen.rounds + self.cost.ratio * self.seen.layers)

    def for_request(self) -> OptimalStopping:
        return replace(self, cost=replace(self.cost))

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.cost.start(load)
        rates = self.seen.rates
        self._path = RoundPath(rates.own.chances(GREEDY_RATES), rates.next.chances())

    def deeper(self, state: DraftState) -> bool:
        path = self._path
        chance = path.next_chance(state)
        if state.depth >= self.most or path.reach * chance <= self.rate * self.cost.ratio:
            return False
        path.agree(state)
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        seen, layers = self.seen, len(self._path.by_model)
        self._path.learn(round_, seen.rates, self.discount)
        self.cost.add(round_, layers)
        seen.tokens = self.discount * seen.tokens + round_.depth_accepted + 1
        seen.rounds = self.discount * seen.rounds + 1
        seen.layers = self.discount * seen.layers + layers
