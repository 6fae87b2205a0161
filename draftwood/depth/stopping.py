"""Depth by optimal stopping: draft on while the next layer is worth its time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.acceptance import GREEDY_RATES, LayerRates, RoundPath
from draftwood.depth.improvement import DraftCost
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.sampling.distributions import Streams


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
