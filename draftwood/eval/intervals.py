"""Bootstrap intervals of means and ratios, and pass@k.

Items are drawn with all their runs, which are not independent; items that share something, such as a passage, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

RESAMPLES = 2000
CONFIDENCE = 0.95


class Interval(TypedDict):
    """A value with the ends of its 95% interval; None where there is too little to say."""

    value: float | None
    low: float | None
    high: float | None
    n: int  # items


def ratio(above: Sequence[float], below: Sequence[float], clusters: Sequence[int] | None = None) -> Interval:
    """Sum of `above` over sum of `below`, one entry of each per item. A mean has counts below."""
    return bootstrap([above, below], lambda sums: sums[0] / sums[1], clusters)


def quotient(
    above: Sequence[float],
    below: Sequence[float],
    other_above: Sequence[float],
    other_below: Sequence[float],
    clusters: Sequence[int] | None = None,
) -> Interval:
    """The ratio of two ratios of sums over the same items, which are drawn together: drift cancels."""
    columns = [above, below, other_above, other_below]
    return bootstrap(columns, lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]), clusters)


def bootstrap(
    columns: Sequence[Sequence[float]], of: Callable[[Array], Array], clusters: Sequence[int] | None = None
) -> Interval:
    """A function of sums over items, `of` [column, sample] -> [sample]; columns have one entry per item.

    `clusters` are the numbers, from 0, of what each item is drawn with; by default each is drawn alone. Percentile
    bootstrap (Efron 1979) with a fixed seed, so that equal numbers give equal intervals.
    """
    table = np.asarray(columns, dtype=float)
    n = table.shape[1]
    if not n:
        return Interval(value=None, low=None, high=None, n=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = _finite(of(table.sum(axis=1, keepdims=True))[0])
        if (weights := drawn(range(n) if clusters is None else clusters)) is None:
            return Interval(value=value, low=None, high=None, n=n)
        values = of(table @ weights.T)
    values = values[np.isfinite(values)]
    if not len(values):
        return Interval(value=value, low=None, high=None, n=n)
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value=value, low=float(low), high=float(high), n=n)


def drawn(clusters: Sequence[int], seed: int = 0) -> Array | None:
    """Counts of how often each item is drawn with its cluster, [sample, item]; None of fewer than two clusters."""
    n = max(clusters, default=-1) + 1
    if n < 2:
        return None
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
    result: Array = counts[:, np.asarray(clusters)]
    return result


def pass_at(n: int, correct: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples passes, of n of which `correct` did.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, Eq. 1), in whole numbers. Raises ValueError where k is not in 1..n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} of {n} samples, {correct} correct, means nothing")
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
