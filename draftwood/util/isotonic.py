"""Isotonic regression: the nearest sequence that does not fall."""

from __future__ import annotations

from collections.abc import Sequence


def isotonic(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The non-decreasing sequence with the least weighted squared distance to `values` (pool adjacent violators).

    `weights` are positive and 1 by default. Neighbours that fall are replaced by their weighted mean.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for mean, weight in zip(values, weights or [1.0] * len(values), strict=True):
        count = 1
        while blocks and blocks[-1][0] >= mean:
            before, heavy, length = blocks.pop()
            mean = (before * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, length + count
        blocks.append((mean, weight, count))
    return [mean for mean, _, count in blocks for _ in range(count)]
