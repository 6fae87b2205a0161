"""Top-k, top-p and min-p of one row of a large vocabulary, by the few numbers that matter: nothing is sorted whole.

Rows are NumPy's, which finds numbers of a row several times faster than PyTorch does. Whatever ties with the last one
that is kept is kept, so that nothing depends on the order of tokens.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Row: TypeAlias = npt.NDArray[Any]  # [V], float32 or float64
Places: TypeAlias = npt.NDArray[np.int64]

SORTED = 4096  # so few numbers are sorted sooner than divided further
DECADES = 8  # below the largest probability; what lies deeper is narrowed down by halves
HALVINGS = 30  # of an interval, in its logarithm: what is not divided by then is equal
GROUPS = 1024  # of numbers, whose largest tell where the largest few of a row begin


def leading(row: Row, count: int, above: float = -np.inf) -> Places:
    """The places, ascending, of the `count` largest of a row and of all that tie with the last of them.

    Fewer where the others are not above a number; all where there is a NaN or the largest is infinite.
    """
    size, groups = len(row), max(GROUPS, 4 * count)
    if count >= size:
        return np.flatnonzero(row > above)
    if not np.isfinite(row.max()):
        return np.arange(size)
    candidates = row
    if size >= 2 * groups:  # as many groups have a number as large as the least that is taken here
        largest = row[: size // groups * groups].reshape(-1, groups).max(0)
        least = np.partition(largest, groups - count)[groups - count]
        if least > above:
            candidates = row[row >= least]
        elif len(candidates := row[row > above]) <= count:
            return np.flatnonzero(row > above)
    least = np.partition(candidates, len(candidates) - count)[len(candidates) - count]
    return np.flatnonzero(row >= least if least > above else row > above)


def ranked(row: Row, count: int, above: float = -np.inf) -> Places:
    """The places of the `count` largest of a row that are above a number, the largest first, of equals the first."""
    places = leading(row, count, above)
    places = places[row[places] > above]
    return places[np.argsort(-row[places], kind="stable")[:count]]


def kept(probs: Row, count: int, top_p: float, min_p: float) -> Places | None:
    """The places, ascending, that top-p and min-p keep of probabilities; None: all, or they are not finite.

    Top-p looks at the `count` largest (0: at all), whose sum stands for 1.
    """
    peak = probs.max()
    if not 0 < peak < np.inf:
        return None
    least = probs.dtype.type(0)
    if top_p < 1:
        largest = np.partition(probs, len(probs) - count)[-count:] if 0 < count < len(probs) else probs
        least = nucleus(largest, top_p * (float(largest.sum(dtype=np.float64)) if count else 1.0))
    if min_p > 0:
        least = max(least, peak * min_p)
    return np.flatnonzero(probs >= least)


def nucleus(probs: Row, mass: float) -> Any:
    """The last probability in the smallest set of the largest whose sum reaches `mass`.

    The set is looked for from above, a power of ten at a time, and narrowed down before what is left is sorted.
    """
    left, above, high = probs, 0.0, np.inf
    low = probs.max()
    for _ in range(DECADES):
        low *= 0.1
        candidates = probs[probs >= low]
        reached = float(candidates.sum(dtype=np.float64))
        if reached >= mass:
            left = candidates[candidates < high]
            break
        above, high = reached, low
    else:
        left, low = probs[probs < high], high * 1e-30
    for _ in range(HALVINGS):
        if len(left) <= SORTED:
            break
        pivot = (low * high) ** 0.5 if high < np.inf else low * 3
        upper = left[left >= pivot]
        more = above + float(upper.sum(dtype=np.float64))
        if more >= mass:
            left, low = upper, pivot
        else:
            left, above, high = left[left < pivot], more, pivot
    if not len(left):
        return high  # the sum of all, rounded, does not reach it
    top = np.sort(left)[::-1]
    before = above + top.cumsum(dtype=np.float64) - top  # probability in front of each
    return top[max(1, int((before < mass).sum())) - 1]
