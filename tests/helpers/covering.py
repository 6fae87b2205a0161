"""Combinations of parameters: a few that cover all pairs by default, all of them with -m slow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*factors: Sequence[Any]) -> list[Any]:
    """Every combination as a parameter; those in the default tests are few, but any two levels meet in one of them."""
    rows = list(product(*(range(len(factor)) for factor in factors)))
    pairs = {row: set(combinations(enumerate(row), 2)) for row in rows}
    left: set[Any] = set().union(*pairs.values())
    chosen: set[tuple[int, ...]] = set()
    while left:  # greedily
        best = max(rows, key=lambda row: len(left & pairs[row]))
        chosen.add(best)
        left -= pairs[best]
    return [
        pytest.param(
            *(factor[level] for factor, level in zip(factors, row, strict=True)),
            marks=() if row in chosen else pytest.mark.slow,
        )
        for row in rows
    ]
