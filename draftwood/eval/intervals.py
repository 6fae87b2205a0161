"""Bootstrap intervals of means and ratios. Items are drawn, with all their seeds: runs of one item are not independent.

Pure numbers. Refuses to know what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95


class Interval(TypedDict):
    """A value with the ends of its 95% interval; None where there is too little to say."""

    value: float | None
    low: float | None
    high: float | None
    n: int  # items


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Sum of `above` over sum of `below`, one entry of each per item. A mean has counts below."""
    return quotient(above, below)


def quotient(
    above: Sequence[float],
    below: Sequence[float],
    other_above: Sequence[float] | None = None,
    other_below: Sequence[float] | None = None,
) -> Interval:
    """The ratio of two ratios of sums over the same items, which are drawn together: drift cancels.

    Percentile bootstrap (Efron 1979) with a fixed seed, so that equal numbers give equal intervals.
    """
    columns = [np.asarray(each, dtype=float) for each in (above, below, other_above, other_below) if each is not None]
    n = len(columns[0])
    if not n:
        return Interval(value=None, low=None, high=None, n=0)
    table = np.stack(columns)
    value = _value(table.sum(axis=1, keepdims=True))[0]
    if n < 2:
        return Interval(value=_finite(value), low=None, high=None, n=n)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)  # how often each item
    values = _value(table @ drawn.T)
    values = values[np.isfinite(values)]
    if not len(values):
        return Interval(value=_finite(value), low=None, high=None, n=n)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=_finite(value), low=float(low), high=float(high), n=n)


def _value(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        first: NDArray[np.float64] = sums[0] / sums[1]
        second: NDArray[np.float64] = sums[2] / sums[3] if len(sums) == 4 else np.ones_like(first)
        value: NDArray[np.float64] = first / second
        return value


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
