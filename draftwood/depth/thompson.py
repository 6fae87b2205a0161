"""Depth by Thompson sampling: over acceptance (EESD Algorithm 2), and over the speed-up itself.

All randomness is the stream 'depth', which drafting and acceptance do not touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from numpy.random import default_rng
from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.load import ALONE, DraftCost, Load, best_depth
from draftwood.depth.rules import LOAD, NOTHING, DepthController, DraftState
from draftwood.sampling.distributions import Streams

Uniform = Callable[[], float]  # numbers in [0, 1)
_STANDARD = NormalDist()
_TINY = 2.0**-49  # half of the streams' resolution: keeps inverse CDFs away from 0


def draw_normal(uniform: Uniform) -> float:
    """A standard normal number, through the inverse CDF."""
    return _STANDARD.inv_cdf(uniform() + _TINY)


def draw_beta(a: float, b: float, uniform: Uniform) -> float:
    """A Beta(a, b) number, by numpy's generator, which one number in [0, 1) seeds."""
    return float(default_rng(int(uniform() * 2**48)).beta(a, b))


@dataclass(slots=True)
class Acceptance:
    """Beta posterior of the chance that a verified draft is accepted; older rounds count less with a discount below 1.

    A success is an accepted draft, a failure the one rejected draft (spec §9.4: EESD Algorithm 2 counts rejections
    twice, and -1 successes when all are rejected). Drafts behind a rejection were not tried and count as nothing.
    """

    a0: float = 1.0
    b0: float = 1.0
    discount: float = 1.0
    accepted: float = field(init=False, default=0.0)
    rejected: float = field(init=False, default=0.0)

    @property
    def a(self) -> float:
        return self.a0 + self.accepted

    @property
    def b(self) -> float:
        return self.b0 + self.rejected

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def add(self, round_: Round) -> None:
        self.accepted = self.discount * self.accepted + round_.depth_accepted
        self.rejected = self.discount * self.rejected + round_.attempted - round_.depth_accepted


@dataclass(slots=True)
class BetaThompson(DepthController):
    """Beta-TS (EESD Algorithm 2): after each drafted layer draw theta ~ Beta(a, b) and go on with the chance theta.

    theta is drawn anew for every layer and used once, so that going on has the chance E[theta] = a / (a + b), each time
    independently: that is drawn. What a layer costs is not looked at. As in the paper one layer is always drafted; with
    `zero` the coin is thrown before it too, so that a round may draft nothing.
    """

    most: int
    acceptance: Acceptance = field(default_factory=Acceptance)
    zero: bool = False
    shared: bool = False
    needs: frozenset[str] = NOTHING
    _streams: Streams = field(init=False, compare=False, default_factory=lambda: Streams(0))

    def for_request(self) -> BetaThompson:
        return replace(self)

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._streams = streams

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        first = state.depth == 0 and not self.zero
        return first or self._streams.uniform("depth") < self.acceptance.mean

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        self.acceptance.add(round_)


@dataclass(slots=True)
class SpeedupThompson(DepthController):
    """Draw a ~ Beta(posterior) once per round and draft K = argmax IF(a, K, c) layers, 0 <= K <= most.

    Where drafting does not pay K becomes 0; the discount then lets the evidence fade towards the prior, so that
    drafting is tried again from time to time.
    """

    most: int
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(discount=0.95))
    cost: DraftCost = field(default_factory=DraftCost)
    shared: bool = False
    needs: frozenset[str] = LOAD
    _depth: int = field(init=False, default=0)
    _asked: int = field(init=False, default=0)

    def for_request(self) -> SpeedupThompson:
        return replace(self, cost=replace(self.cost))

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.cost.start(load)
        a = draw_beta(self.acceptance.a, self.acceptance.b, lambda: streams.uniform("depth"))
        self._depth = best_depth(a, self.most, self.cost.ratio)
        self._asked = 0

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self._depth:
            return False
        self._asked = state.depth + 1
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        self.acceptance.add(round_)
        self.cost.add(round_, self._asked)
