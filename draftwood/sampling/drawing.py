"""Drawing tokens from weights by inverse CDF, with one pass over a large vocabulary for all draws of a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from draftwood.errors import NonFiniteError
from draftwood.sampling.rows import NOT_FINITE, block_sums

BLOCK = 512  # tokens that are summed up together
SMALL = 4096  # so few tokens are one block


class Weights:
    """Weights [V] >= 0 of any sum, from which tokens are drawn; one that was drawn can be taken out.

    Sums are float64: first those of blocks of tokens, then within the block that a number points to.
    """

    __slots__ = ("_block", "_parts", "_sums", "_total", "_weights", "mass")

    def __init__(self, weights: Tensor) -> None:
        """NonFiniteError where the weights are no distribution."""
        weights = weights.cpu()
        size = weights.shape[0]
        self._weights: npt.NDArray[Any] = weights.numpy()
        self._parts: dict[int, tuple[npt.NDArray[Any], npt.NDArray[np.float64]]] = {}  # blocks' weights, running sums
        self._block = size if size <= SMALL else BLOCK
        self._sums = block_sums(weights, BLOCK) if size > SMALL else self._part(0)[1][-1:].copy()
        self._add_up()
        if not 0 < self.mass < math.inf:
            raise NonFiniteError(NOT_FINITE)

    def _add_up(self) -> None:
        self._total = self._sums.cumsum()
        self.mass = float(self._total[-1])

    def _part(self, block: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        part = self._parts.get(block)
        if part is None:
            weights = self._weights[block * self._block : (block + 1) * self._block]
            part = self._parts[block] = weights, weights.cumsum(dtype=np.float64)
        return part

    def draw(self, u: float) -> int:
        """The token at u in [0, 1); one of weight 0 is never drawn. The mass must be positive."""
        sought = u * self.mass
        block = int(self._total.searchsorted(sought, "right"))
        within = self._part(block)[1]
        whole, rest = float(within[-1]), sought - float(self._total[block - 1]) if block else sought
        rest *= whole / float(self._sums[block])  # the same sum in another order
        return block * self._block + int(within.searchsorted(min(rest, math.nextafter(whole, 0.0)), "right"))

    def remove(self, token: int) -> None:
        """Let a token have weight 0 from now on; the mass is 0 when none is left."""
        block, place = divmod(token, self._block)
        weights = self._part(block)[0].copy()
        weights[place] = 0.0
        self._parts[block] = weights, weights.cumsum(dtype=np.float64)
        self._sums[block] = self._parts[block][1][-1]
        self._add_up()
