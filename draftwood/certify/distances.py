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

LEAST_EXPECTED = 5.0  # rarer outcomes are counted as one: Pearson's statistic is chi-square for larger cells only


def total_variation(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * math.fsum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys())


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

    def pearson(self) -> tuple[float, int]:
        """(statistic, degrees of freedom), rare outcomes pooled; infinite if an impossible one was seen."""
        size = self.size
        if any(self.law.get(x, 0.0) <= 0 for x in self.counts):
            return math.inf, 1
        cells: list[tuple[float, int]] = []
        rare_expected, rare_count = 0.0, 0
        for outcome, chance in self.law.items():
            expected, count = chance * size, self.counts[outcome]
            if expected < LEAST_EXPECTED:
                rare_expected, rare_count = rare_expected + expected, rare_count + count
            else:
                cells.append((expected, count))
        if rare_expected >= LEAST_EXPECTED:
            cells.append((rare_expected, rare_count))
        return math.fsum((n - expected) ** 2 / expected for expected, n in cells), max(0, len(cells) - 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of samples to their laws.

    `distance` is the mean total variation over samples, each weighed by its size. If the laws hold, it is at most
    `bound` with probability 1 - `risk`: the bound on its mean plus McDiarmid's sqrt(-ln(risk) / 2n), since one outcome
    changes it by at most 1/n. Whatever the true laws are, their own mean distance is at most `ceiling` with probability
    1 - `risk`: the mean of a distance of frequencies is no smaller than the distance of their mean (Jensen). `p_value`
    belongs to the sum of Pearson's statistics.
    """

    size: int
    distance: float
    bound: float
    ceiling: float
    chi_square: float
    freedom: int
    p_value: float
    risk: float

    @property
    def holds(self) -> bool:
        """True where neither test rejects at this risk."""
        return self.distance <= self.bound and self.p_value >= self.risk

    def as_dict(self) -> dict[str, float | int | None]:
        """Figures for a result file; an infinite statistic is null."""
        return {
            "samples": self.size,
            "total_variation": self.distance,
            "total_variation_bound": self.bound,
            "true_total_variation_at_most": self.ceiling,
            "chi_square": self.chi_square if math.isfinite(self.chi_square) else None,
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
    slack = math.sqrt(-math.log(risk) / (2 * size))
    tests = [sample.pearson() for sample in taken]
    statistic, freedom = math.fsum(value for value, _ in tests), sum(degrees for _, degrees in tests)
    p_value = 0.0 if math.isinf(statistic) else chi_square_tail(statistic, freedom)
    return Fit(size, distance, min(1.0, noise + slack), min(1.0, distance + slack), statistic, freedom, p_value, risk)
