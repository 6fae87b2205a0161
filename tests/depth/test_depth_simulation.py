"""The table of spec §7 again: controllers on synthetic acceptance, as tokens per time of a target forward."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth import (
    Acceptance,
    BetaThompson,
    CalibratedThompson,
    DepthController,
    DraftState,
    Fixed,
    Load,
    OptimalStopping,
    SpeedupThompson,
    improvement,
)
from draftwood.depth.calibrated import Seen
from draftwood.sampling.distributions import Streams

TOKENS, MOST = 10_000, 24
Accept = Callable[[int], float]  # place in the text -> chance that a draft is accepted


def a_round(accepted: int, drafted: int, c: float) -> Round:
    """The record of a round of a chain, a target forward taking one second."""
    attempted = min(accepted + 1, drafted)
    numbers = (drafted, drafted, accepted, accepted, attempted, c * drafted, 1.0, 0.0, 0.0, drafted + 1.0, drafted)
    return Round(0, [], [], [], [], [], [], *numbers, drafted, [], [], [], [], [])


def simulated(controller: DepthController, accept: Accept, c: float, seed: int = 0) -> tuple[float, float]:
    """(tokens per time of a target forward, drafts per round)."""
    rng, streams = random.Random(seed), Streams(seed)
    made = rounds = drafts = 0
    while made < TOKENS:
        streams.at(made)
        controller.start(streams, Load(lambda rows: c, lambda rows: 1.0))
        depth = 0
        while controller.deeper(DraftState(depth)):
            depth += 1
        accepted = 0
        while accepted < depth and rng.random() < accept(made + accepted):
            accepted += 1
        controller.observe(a_round(accepted, depth, c))
        made, rounds, drafts = made + accepted + 1, rounds + 1, drafts + depth
    return made / (rounds + c * drafts), drafts / rounds


def drifting(place: int) -> float:
    return 0.3 if place // 200 % 2 else 0.9


# c, acceptance, best fixed K, then the speed-up of: that, Beta-TS, IF-TS, IF-TS with discount 0.9
TABLE: list[tuple[float, Accept, int, float, float, float, float]] = [
    (0.05, lambda place: 0.8, 8, 3.10, 2.56, 3.10, 3.03),
    (0.15, lambda place: 0.6, 2, 1.51, 1.42, 1.51, 1.48),
    (0.05, drifting, 4, 1.76, 1.66, 1.76, 1.88),
    (0.40, lambda place: 0.9, 4, 1.59, 1.22, 1.58, 1.54),
]
ROWS = ["steady-0.8", "steady-0.6", "drifting", "dear-drafts"]


@pytest.mark.parametrize(("c", "accept", "k", "fixed", "beta", "speedup", "fading"), TABLE, ids=ROWS)
def test_table_is_reproduced(
    c: float, accept: Accept, k: int, fixed: float, beta: float, speedup: float, fading: float
) -> None:
    assert simulated(Fixed(k), accept, c)[0] == pytest.approx(fixed, rel=0.03)
    assert simulated(BetaThompson(MOST), accept, c)[0] == pytest.approx(beta, rel=0.03)
    assert simulated(SpeedupThompson(MOST, Acceptance()), accept, c)[0] == pytest.approx(speedup, rel=0.03)
    assert simulated(SpeedupThompson(MOST, Acceptance(discount=0.9)), accept, c)[0] == pytest.approx(fading, rel=0.03)


@pytest.mark.parametrize(("c", "accept", "k", "fixed", "beta", "speedup", "fading"), TABLE, ids=ROWS)
def test_optimal_stopping_is_near_the_best_fixed_depth(
    c: float, accept: Accept, k: int, fixed: float, beta: float, speedup: float, fading: float
) -> None:
    """As it comes, and 5% faster than any fixed depth where acceptance drifts and older rounds fade faster."""
    assert simulated(OptimalStopping(MOST), accept, c)[0] > 0.97 * fixed
    if accept is drifting:
        assert simulated(OptimalStopping(MOST, 0.9), accept, c)[0] > 1.05 * fixed


def test_no_other_fixed_depth_is_better() -> None:
    for c, accept, k, *_ in TABLE:
        speeds = {depth: simulated(Fixed(depth), accept, c)[0] for depth in (max(0, k - 2), k, k + 2)}
        assert max(speeds.values()) < 1.01 * speeds[k]


def test_improvement_foretells_the_simulation() -> None:
    for c, a, k in ((0.05, 0.8, 8), (0.15, 0.6, 2), (0.4, 0.9, 4), (0.3, 0.5, 0)):
        assert simulated(Fixed(k), lambda place, a=a: a, c)[0] == pytest.approx(improvement(a, k, c), rel=0.02)


@pytest.mark.parametrize("make", [SpeedupThompson, OptimalStopping])
def test_drafting_ends_where_it_does_not_pay(make: Callable[[int], DepthController]) -> None:
    """Draft tokens cost half a target forward and one in five is accepted: plain decoding, but for a few trials."""
    speed, depth = simulated(make(8), lambda place: 0.2, 0.5)
    assert depth < 0.2
    assert speed > 0.94
    assert simulated(BetaThompson(8), lambda place: 0.2, 0.5)[0] < 0.85


def test_drafting_comes_back_when_acceptance_does() -> None:
    for controller in (SpeedupThompson(8), OptimalStopping(8)):
        speed = simulated(controller, lambda place: 0.05 if place < 2500 else 0.9, 0.1)[0]
        assert speed > 0.85 * TOKENS / (2500 + (TOKENS - 2500) / improvement(0.9, 8, 0.1))


def test_chances_that_confidence_tells_beat_every_fixed_depth() -> None:
    """Per-token acceptance that the draft's own confidence predicts: only optimal stopping can use it."""
    import math

    import torch

    c, tokens = 0.1, 3000

    def speed(controller: DepthController) -> float:
        rng, streams = random.Random(3), Streams(3)
        made = rounds = drafts = 0
        while made < tokens:
            streams.at(made)
            controller.start(streams, Load(lambda rows: c, lambda rows: 1.0))
            chances: list[float] = []
            state = DraftState(0)
            while controller.deeper(state):
                easy = rng.random() < (0.9 if not chances or chances[-1] > 0.5 else 0.3)  # hard places come in runs
                chances.append(0.97 if easy else 0.2)
                logits = torch.tensor([[math.log(chances[-1]), math.log(1 - chances[-1])]])
                state = DraftState(len(chances), [0], logits, [(0, 0)])
            accepted = 0
            while accepted < len(chances) and rng.random() < chances[accepted]:
                accepted += 1
            controller.observe(a_round(accepted, len(chances), c))
            made, rounds, drafts = made + accepted + 1, rounds + 1, drafts + len(chances)
        return made / (rounds + c * drafts)

    best = max(speed(Fixed(depth)) for depth in range(2, 10))
    assert speed(OptimalStopping(16)) > 1.1 * best


@dataclass(slots=True)
class PrintedAcceptance(Acceptance):
    """EESD Eq. 3-4: r = |Q_v| - 1 successes, n - r failures of n = min(|Q_v| + 1, |Q_d|). With a <= 0 its mean is 0."""

    @property
    def mean(self) -> float:
        return max(0.0, self.a) / (max(0.0, self.a) + max(1e-9, self.b))

    def add(self, round_: Round) -> None:
        r = round_.depth_accepted - 1
        self.accepted += r
        self.rejected += round_.attempted - r


@dataclass(slots=True)
class PrintedSeen(Seen):
    """EESD Eq. 8: as many trials as there are successes."""

    tried: int = field(init=False, default=0)


class PrintedCalibrated(CalibratedThompson):
    """Cali-TS whose running mean is that of Eq. 8, which can only rise to 1."""

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        super().observe(round_, state)
        self.seen.tried += round_.depth_accepted - round_.attempted  # what super() counted, put back to the successes


@pytest.mark.parametrize(("c", "accept", "k", "fixed", "beta", "speedup", "fading"), TABLE, ids=ROWS)
def test_updates_as_printed_fail(
    c: float, accept: Accept, k: int, fixed: float, beta: float, speedup: float, fading: float
) -> None:
    """Spec §9: Eq. 3-4 give up drafting after one token, Eq. 8 drafts on as if everything were accepted."""
    rng = random.Random(1)

    def predict(state: DraftState, target: object) -> float:
        return min(1.0, max(0.0, (0.6 if accept is drifting else accept(0)) + rng.gauss(0, 0.15)))

    printed = simulated(BetaThompson(MOST, PrintedAcceptance()), accept, c)
    assert printed[1] < 1.2
    rising = simulated(PrintedCalibrated(MOST, predict, seen=PrintedSeen()), accept, c)
    right = simulated(CalibratedThompson(MOST, predict), accept, c)
    assert rising[1] > 20 > right[1] and min(printed[0], rising[0]) < 0.9 * fixed
