"""Key/value memory: rows of slots. What a slot means is the session's business."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

GRAIN = 32  # capacities are multiples of this many slots, so that a span can be rounded up to whole vectors


class Cache:
    """`rows` sequences with `capacity` slots each, in several planes (for a decoder: keys and values of each layer).

    A plane is one tensor [rows, heads, capacity, width], so that a head's slots lie together and rows fold into heads
    without a copy. The last slot of each row is scratch: padding writes there and nobody reads it.
    """

    def __init__(
        self,
        tails: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        rows: int = 1,
        capacity: int = 256,
    ) -> None:
        self.rows = rows
        self.capacity = _whole(capacity)
        self.device = device
        self.planes: list[Tensor] = []
        self._free_rows = list(range(rows))
        for tail in tails:
            self.add(tail, dtype)

    def add(self, tail: tuple[int, int], dtype: torch.dtype) -> None:
        """One more plane: `tail` is what a slot holds, (heads, width)."""
        heads, width = tail
        self.planes.append(torch.zeros(self.rows, heads, self.capacity, width, dtype=dtype, device=self.device))

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

    def write(self, plane: int, rows: slice, slots: Tensor, values: Tensor) -> None:
        """Store values [B, Q, heads, width] at the slots [B, Q] of some rows."""
        put(self.planes[plane][rows], slots, values)

    def of(self, rows: slice) -> list[Tensor]:
        """Views [B, heads, capacity, width] of some rows, one per plane."""
        return [plane[rows] for plane in self.planes]

    def chosen(self, planes: Sequence[int]) -> Cache:
        """The same rows with these planes only, in this order, to be read and written; nothing is copied."""
        view = copy(self)
        view.planes = [self.planes[plane] for plane in planes]
        return view

    def read(self, plane: int, rows: slice, span: int) -> Tensor:
        """A view [B, heads, span, width] of the first `span` slots of some rows; nothing is copied."""
        return self.planes[plane][rows, :, :span]

    def _resize(self, rows: int, capacity: int) -> None:
        for index, old in enumerate(self.planes):
            new = old.new_zeros(rows, old.shape[1], capacity, old.shape[3])
            new[: self.rows, :, : self.capacity] = old
            self.planes[index] = new
        for row in range(self.rows, rows):
            heapq.heappush(self._free_rows, row)
        self.rows, self.capacity = rows, capacity


def put(plane: Tensor, slots: Tensor, values: Tensor) -> None:
    """Store values [B, Q, heads, width] at slots [B, Q] of a plane [B, heads, capacity, width]."""
    values = values.transpose(1, 2)
    if len(plane) == 1:
        plane[0].index_copy_(1, slots[0], values[0])
    else:
        plane.scatter_(2, slots[:, None, :, None].expand_as(values), values)


def _whole(slots: int) -> int:
    """`slots` rounded up to whole grains."""
    return -(-slots // GRAIN) * GRAIN
