"""What a model knows of rows of logits when it has made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class RowTops(NamedTuple):
    """Of rows of logits the token of the largest, the first among equals, and the logarithm of the sum of e^logit."""

    best: Sequence[int]
    log_sums: Sequence[float]

    def of(self, rows: slice | Sequence[int]) -> RowTops:
        """Those of some rows, in their order."""
        if isinstance(rows, slice):
            return RowTops(self.best[rows], self.log_sums[rows])
        return RowTops([self.best[row] for row in rows], [self.log_sums[row] for row in rows])


class LogitsRow(NamedTuple):
    """Logits [V], and the logarithm of the sum of e^logit where a model has told it."""

    logits: Tensor
    log_sum: float | None
