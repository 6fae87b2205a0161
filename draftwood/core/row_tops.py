"""What a model knows of rows of logits when it has made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class RowTops(NamedTuple):
    """Of rows of logits the token of the largest, the first among equals, and the logarithm of the sum of e^logit.

    `leading` has of each row the tokens of the largest and these, where they were asked for: as many as that, best
    first, and -1 behind the last one that is possible.
    """

    best: Sequence[int]
    log_sums: Sequence[float]
    leading: Sequence[tuple[list[int], list[float]]] = ()

    def of(self, rows: slice | Sequence[int]) -> RowTops:
        """Those of some rows, in their order."""
        if isinstance(rows, slice):
            return RowTops(self.best[rows], self.log_sums[rows], self.leading[rows])
        leading = [self.leading[row] for row in rows] if self.leading else ()
        return RowTops([self.best[row] for row in rows], [self.log_sums[row] for row in rows], leading)


class LogitsRow(NamedTuple):
    """Logits [V], and the logarithm of the sum of e^logit where a model has told it."""

    logits: Tensor
    log_sum: float | None
