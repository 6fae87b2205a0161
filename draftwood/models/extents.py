"""Extents of a cache: contiguous blocks of slots that requests have, and the states that are kept for their slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, eq=False)
class Extent:
    """A contiguous block of slots that one request has. The request counts its slots from 0; slot 0 is `base` here."""

    base: int
    capacity: int  # number of slots
    used: int = 0  # how many of them the request asked for


class SlotStates(Protocol):
    """States of slots, for layers that read the past through a state; see `draftwood.models.recurrent_states`."""

    interval: int

    @property
    def bytes(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def extent_bytes(self) -> int: ...

    def reserve(self, extent: Extent, trunk: int, nodes: int) -> None: ...

    def release(self, extent: Extent) -> None: ...

    def free(self, extent: Extent, slots: Iterable[int]) -> None: ...

    def clear(self, extent: Extent, first: int) -> None: ...

    def settle(self, extent: Extent) -> None: ...

    def held_bytes(self, extent: Extent) -> int: ...

    def reusable(self, extent: Extent, tokens: int) -> int: ...

    def copy(self, source: Extent, target: Extent, tokens: int) -> None: ...

    def wish(self, extent: Extent, tokens: int) -> None: ...

    def first_again(self, extent: Extent, trunk: Sequence[int], position: int) -> int: ...


def moves(before: Sequence[Extent], after: Sequence[Extent]) -> list[tuple[Extent, Extent]]:
    """Pairs (from, to) of blocks to copy; extents that stay neighbours and keep their capacity are copied as one."""
    blocks: list[tuple[Extent, Extent]] = []
    mergeable = False
    for was, now in zip(before, after, strict=True):
        same = was.capacity == now.capacity
        if mergeable and same:
            last, there = blocks[-1]
            if (last.base + last.capacity, there.base + there.capacity) == (was.base, now.base):
                last.capacity += was.capacity
                there.capacity += was.capacity
                continue
        blocks.append((Extent(was.base, was.capacity), Extent(now.base, now.capacity)))
        mergeable = same
    return blocks
