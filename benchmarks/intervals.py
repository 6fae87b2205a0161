"""Intervals that only benchmarks need: of medians, and of ratios of perplexities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwood.eval.intervals import CONFIDENCE, RESAMPLES, Interval, bootstrap


def perplexity_ratio(
    nats: Sequence[float], tokens: Sequence[float], other_nats: Sequence[float], other_tokens: Sequence[float]
) -> Interval:
    """exp of the difference of nats per token over the same items."""
    columns = [nats, tokens, other_nats, other_tokens]
    return bootstrap(columns, lambda sums: np.exp(sums[0] / sums[1] - sums[2] / sums[3]))


def median(values: Sequence[float]) -> Interval:
    """The median of values with its interval."""
    array = np.asarray(values, dtype=float)
    n = len(array)
    if n < 2:
        return Interval(value=float(array[0]) if n else None, low=None, high=None, n=n)
    samples = np.median(array[np.random.default_rng(0).integers(n, size=(RESAMPLES, n))], axis=1)
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value=float(np.median(array)), low=float(low), high=float(high), n=n)
