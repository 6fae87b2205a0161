"""Distances of samples from a law, and their distribution by chance.

Pure arithmetic over counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

OutcomeT = TypeVar("OutcomeT", bound=Hashable)

LEAST_EXPECTED = 5.0  # rarer outcomes are counted as one, because a law of many cells hides a deviation in a few


def total_variation(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * math.fsum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys())


def divergence_tail(divergence: float, freedom: int) -> float:
    """A bound on the chance that samples diverge that far (in nats, of all outcomes) from laws that hold.

    A sample of k outcomes has the moments exp(t D) of a gamma variable of shape k - 1 at most (Agrawal 2020, Finite-
    sample concentration of the multinomial in relative entropy); those of several samples multiply, which by Chernoff
    gives (e D / f)^f exp(-D) where D is above `freedom`, the sum f of k - 1. It holds for laws with rare outcomes, too.
    """
    if math.isinf(divergence):
        return 0.0
    if not freedom or divergence <= freedom:
        return 1.0
    return math.exp(freedom * (1 + math.log(divergence / freedom)) - divergence)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Chance that a chi-square variable with `freedom` degrees is larger: Q(freedom / 2, statistic / 2)."""
    if freedom < 1:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@dataclass(slots=True)
class Sample(Generic[OutcomeT]):
    """Outcomes that were seen where one law holds."""

    law: Mapping[OutcomeT, float]
    counts: Counter[OutcomeT] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return self.counts.total()

    @property
    def distance(self) -> float:
        """Total variation between the frequencies and the law."""
        size = self.size
        return total_variation({x: n / size for x, n in self.counts.items()}, self.law)

    @property
    def noise(self) -> float:
        """A bound on the mean of `distance` if the law holds: half the sum of the frequencies' standard deviations."""
        return 0.5 * math.fsum(math.sqrt(max(0.0, p * (1 - p)) / self.size) for p in self.law.values())

    @property
    def impossible(self) -> bool:
        """Whether an outcome was seen that the law does not have."""
        return any(self.law.get(x, 0.0) <= 0 for x in self.counts)

    def cells(self) -> list[tuple[float, int]]:
        """(expected, seen) of each outcome; the rare ones are the last cell, together."""
        size = self.size
        expected = [(chance * size, self.counts[x]) for x, chance in self.law.items() if chance > 0]
        rare = [cell for cell in expected if cell[0] < LEAST_EXPECTED]
        together = [(math.fsum(chance for chance, _ in rare), sum(count for _, count in rare))] if rare else []
        return [cell for cell in expected if cell[0] >= LEAST_EXPECTED] + together

    def divergence(self) -> tuple[float, int]:
        """(size times the relative entropy of the cells' frequencies, in nats; cells less one)."""
        if self.impossible:
            return math.inf, 1
        cells = self.cells()
        return math.fsum(n * math.log(n / expected) for expected, n in cells if n), len(cells) - 1

    def pearson(self) -> tuple[float, int]:
        """(statistic, degrees of freedom) of cells that are large enough; infinite if an impossible one was seen."""
        if self.impossible:
            return math.inf, 1
        cells = [cell for cell in self.cells() if cell[0] >= LEAST_EXPECTED]
        return math.fsum((n - expected) ** 2 / expected for expected, n in cells), max(0, len(cells) - 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of samples to their laws.

    `distance` is the mean total variation over samples, each weighed by its size. If the laws hold, it is at most
    `bound` with probability 1 - `risk` / 2: the bound on its mean plus McDiarmid's sqrt(-ln(risk / 2) / 2n), as one
    outcome changes it by at most 1/n. Whatever the true laws are, their own mean distance is at most `ceiling` with
    probability 1 - `risk` / 2: the mean of a distance of frequencies is no smaller than the distance of their mean
    (Jensen). `p_value` bounds the chance of a `divergence` as large. The two tests share the risk.
    """

    size: int
    distance: float
    bound: float
    ceiling: float
    divergence: float
    freedom: int
    p_value: float
    risk: float

    @property
    def holds(self) -> bool:
        """True where neither test rejects at this risk."""
        return self.distance <= self.bound and self.p_value >= self.risk / 2

    def as_dict(self) -> dict[str, float | int | None]:
        """Figures for a result file; an infinite divergence is null."""
        return {
            "samples": self.size,
            "total_variation": self.distance,
            "total_variation_bound": self.bound,
            "true_total_variation_at_most": self.ceiling,
            "divergence_nats": self.divergence if math.isfinite(self.divergence) else None,
            "degrees_of_freedom": self.freedom,
            "p_value": self.p_value,
            "risk": self.risk,
        }


def fit(samples: list[Sample[Any]], risk: float) -> Fit:
    """Judge samples together: each was drawn independently from its own law, if the laws hold.

    Samples are the layers of a tree of choices, each given what came before, or a single one.
    """
    taken = [sample for sample in samples if sample.size]
    size = sum(sample.size for sample in taken)
    if not size:
        raise ValueError("there are no samples; run at least one generation")
    distance = math.fsum(sample.size * sample.distance for sample in taken) / size
    noise = math.fsum(sample.size * sample.noise for sample in taken) / size
    slack = math.sqrt(-math.log(risk / 2) / (2 * size))
    tests = [sample.divergence() for sample in taken]
    divergence, freedom = math.fsum(value for value, _ in tests), sum(degrees for _, degrees in tests)
    p_value = divergence_tail(divergence, freedom)
    return Fit(size, distance, min(1.0, noise + slack), min(1.0, distance + slack), divergence, freedom, p_value, risk)
