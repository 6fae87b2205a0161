"""The speed-up of drafting by a formula (MCSD Eq. 1), and the cost of a drafted layer at a load."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwood.core.records import Round
from draftwood.depth.load import NOMINAL_RATIO, Load

FIRST_LAYERS = 4  # that a round is taken to draft before one has


def improvement(rate: float, gamma: int, c: float) -> float:
    """IF(a, gamma, c) = (1 - a^(gamma+1)) / ((1 - a)(c gamma + 1)), MCSD Eq. 1; a is `rate`.

    The expected speed-up of rounds of `gamma` drafts over plain decoding, where each draft is accepted with the
    chance `rate`, independently, and takes `c` target forwards.
    """
    if not 0 <= rate <= 1 or gamma < 0 or c < 0:
        raise ValueError(f"rate must be in 0..1, gamma and c at least 0, not {rate}, {gamma}, {c}")
    tokens = gamma + 1.0 if rate == 1 else (1 - rate ** (gamma + 1)) / (1 - rate)
    return tokens / (c * gamma + 1)


def best_depth(rate: float, most: int, c: float) -> int:
    """The gamma in 0..most of the largest IF(a, gamma, c), of equals the smallest.

    IF rises and then falls: its numerator is concave in gamma, its denominator linear. So the first fall ends it.
    """
    tokens = best = reach = 1.0
    for gamma in range(1, most + 1):
        reach *= rate
        tokens += reach
        gain = tokens / (c * gamma + 1)
        if gain <= best:
            return gamma - 1
        best = gain
    return most


@dataclass(slots=True)
class DraftCost:
    """c: what a drafted layer costs in target forwards: `fixed`, or the marginal time at the present load."""

    fixed: float | None = None
    ratio: float = field(init=False, default=NOMINAL_RATIO)
    _rows: int = field(init=False, default=1)  # of a layer
    _layers: int = field(init=False, default=FIRST_LAYERS)  # that a round is likely to draft

    def __post_init__(self) -> None:
        self.ratio = NOMINAL_RATIO if self.fixed is None else self.fixed

    def start(self, load: Load) -> None:
        """A round begins at a load."""
        if self.fixed is None:
            self.ratio = load.ratio([self._rows] * self._layers)

    def add(self, round_: Round, layers: int) -> None:
        """Follow a round that drafted `layers` layers."""
        if layers:
            self._rows, self._layers = max(1, round(round_.drafted / layers)), layers
