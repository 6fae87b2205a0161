"""Intervals that only benchmarks need: of medians, ratios of perplexities, several tasks, and what was chosen first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftwood.eval.intervals import CONFIDENCE, RESAMPLES, Array, Interval, bootstrap, drawn


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


def of_tasks(
    tables: Sequence[Sequence[Sequence[float]]],
    of: Callable[[Array], Array],
    clusters: Sequence[Sequence[int]] | None = None,
) -> Interval:
    """The geometric mean over tasks of a ratio of sums, [column, sample] -> [sample]; each task weighs alike.

    `tables` has for each task columns with an entry per item, `clusters` the items' as `bootstrap` has them. Items are
    drawn within their task, so that no sample has more of one task than another.
    """
    arrays = [np.asarray(columns, dtype=float) for columns in tables]
    counts = [array.shape[1] for array in arrays]

    def mean(sums: Iterable[Array]) -> Array:
        logs = np.mean([np.log(of(each)) for each in sums], axis=0)
        result: Array = np.exp(logs)
        return result

    if not counts or not min(counts):
        return Interval(value=None, low=None, high=None, n=sum(counts))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = mean(array.sum(axis=1, keepdims=True) for array in arrays)
        weights = [drawn(each, seed) for seed, each in enumerate(clusters or map(range, counts))]
        known = [each for each in weights if each is not None]
        complete = len(known) == len(arrays)
        samples = mean(array @ each.T for array, each in zip(arrays, known, strict=True)) if complete else None
    return _interval(value, samples, sum(counts))


Choose = Callable[[Array], tuple[NDArray[np.intp], NDArray[np.intp]]]


def judged_apart(
    table: Array, choose: Choose, of: Callable[[Array, Array], Array], clusters: Sequence[int] | None = None
) -> tuple[Interval, list[tuple[int, int]]]:
    """Two candidates chosen on one half of the items and judged on the other, both ways; and which they are.

    `table` is [candidate, column, item]. `choose` is shown sums [candidate, column, sample] of the even items (those of
    even `clusters`), and of the odd ones, and returns the numbers [sample] of two candidates; `of` compares their sums
    [column, sample] over the items that each was not chosen on. Items are drawn within their half and the choice is
    made anew in each sample, so the interval has the uncertainty of the choice.
    """
    numbers = np.arange(table.shape[-1]) if clusters is None else np.asarray(clusters)
    places = [numbers[numbers % 2 == start] // 2 for start in (0, 1)]
    halves = [np.asarray(table, dtype=float)[..., numbers % 2 == start] for start in (0, 1)]
    counts = [half.shape[-1] for half in halves]
    if not min(counts):
        return Interval(value=None, low=None, high=None, n=sum(counts)), []

    def judged(weights: Sequence[Array]) -> tuple[Array, list[tuple[int, int]]]:
        sums = [half @ each.T for half, each in zip(halves, weights, strict=True)]
        choices = [choose(each) for each in sums]
        apart = [
            sum(np.take_along_axis(sums[1 - half], choices[half][side][None, None], 0)[0] for half in (0, 1))
            for side in (0, 1)
        ]
        return of(*apart), [(int(first[0]), int(second[0])) for first, second in choices]

    with np.errstate(divide="ignore", invalid="ignore"):
        value, chosen = judged([np.ones((1, count)) for count in counts])
        weights = [drawn(each.tolist(), seed) for seed, each in enumerate(places)]
        known = [each for each in weights if each is not None]
        samples = judged(known)[0] if len(known) == len(halves) else None
    return _interval(value, samples, sum(counts)), chosen


def _interval(value: Array, samples: Array | None, n: int) -> Interval:
    middle = float(value[0]) if np.isfinite(value[0]) else None
    known = np.empty(0) if samples is None else samples[np.isfinite(samples)]
    if not len(known):
        return Interval(value=middle, low=None, high=None, n=n)
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value=middle, low=float(low), high=float(high), n=n)
