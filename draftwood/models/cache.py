"""Key/value memory: rows of slots.

Knows which row belongs to whom and how to write and read slots. Refuses to know tokens, trees, masks or
positions: what a slot means is the session's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """`rows` sequences with `capacity` slots each, in several planes (for a decoder: keys and values of each layer).

    A plane is one contiguous tensor [rows * capacity, *tail]; slot s of row r is flat slot r * capacity + s, so that
    one `index_copy_` writes any mixture of rows. The last slot of each row is scratch: padding writes there and
    nobody reads it.
    """

    def __init__(
        self,
        tails: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
        rows: int = 1,
        capacity: int = 256,
    ) -> None:
        self.rows = rows
        self.capacity = capacity
        self.planes = [torch.zeros(rows * capacity, *tail, dtype=dtype, device=device) for tail in tails]
        self._free_rows = list(range(rows))

    @property
    def bytes(self) -> int:
        """Bytes held by all planes."""
        return sum(plane.numel() * plane.element_size() for plane in self.planes)

    def acquire(self) -> int:
        """Lend the lowest free row; the number of rows doubles when none is free."""
        if not self._free_rows:
            self._resize(self.rows * 2, self.capacity)
        return heapq.heappop(self._free_rows)

    def release(self, row: int) -> None:
        """Take a row back; its contents are simply overwritten later."""
        heapq.heappush(self._free_rows, row)

    def reserve(self, slots: int) -> None:
        """Make sure that every row has room for `slots` slots besides the scratch slot."""
        if slots >= self.capacity:
            capacity = self.capacity
            while slots >= capacity:
                capacity *= 2
            self._resize(self.rows, capacity)

    def write(self, plane: int, flat_slots: Tensor, values: Tensor) -> None:
        """Store values [n, *tail] at flat slots [n]."""
        self.planes[plane].index_copy_(0, flat_slots, values)

    def read(self, plane: int, rows: slice, span: int) -> Tensor:
        """A view [rows, span, *tail] of the first `span` slots of some rows; nothing is copied."""
        data = self.planes[plane]
        return data.view(self.rows, self.capacity, *data.shape[1:])[rows, :span]

    def _resize(self, rows: int, capacity: int) -> None:
        for index, old in enumerate(self.planes):
            new = old.new_zeros(rows, capacity, *old.shape[1:])
            new[: self.rows, : self.capacity] = old.view(self.rows, self.capacity, *old.shape[1:])
            self.planes[index] = new.view(rows * capacity, *old.shape[1:])
        for row in range(self.rows, rows):
            heapq.heappush(self._free_rows, row)
        self.rows, self.capacity = rows, capacity
