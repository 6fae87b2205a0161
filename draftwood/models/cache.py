"""The key/value cache of one model: slots for tokens, lent to requests in contiguous blocks ("extents").

A slot holds the keys and values of one token in every layer. Which token of a sequence or draft tree lies in which slot
is decided by the session (draftwood.runtime.session); the cache only allocates, moves, copies and clears slots.

The cache allocates what is lent and a few percent more. Memory of requests that are gone is given back by compaction:
all extents are moved together (`_move`). On a CPU planes are as large as the budget allows, so that they grow in place:
pages that were never written take no physical memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, chain
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import OutOfMemory
from draftwood.models.extents import Extent, SlotStates, moves
from draftwood.models.memory_budget import MemoryBudget
from draftwood.util.resident import UNTOUCHED, room_for

SPAN_MULTIPLE = 32  # capacities are multiples of this many slots, so that attention can round spans up to whole vectors
CAPACITY_STEP = 32  # slots by which short extents grow; extents of equal capacity are read in one product
CPU_ROOM_FACTOR = 2  # how many times the slots in use planes have room for on a CPU at least, so that they seldom move
IDLE_BYTES = 32 << 20  # of main memory that stay where they are when nothing is lent: to give them back takes longer

Plane: TypeAlias = tuple[int, int, torch.dtype]  # (heads, width, dtype) of what a slot holds


def round_up(slots: int) -> int:
    """`slots` rounded up to a multiple of CAPACITY_STEP."""
    return -(-slots // CAPACITY_STEP) * CAPACITY_STEP


class ChangeKind(IntEnum):
    """Kinds of changes of a cache's memory; the comments list the numbers that follow the kind in a change."""

    MOVED = 0  # slots of the new planes; then old base, old capacity, new base, new capacity of each extent
    CLEARED = 1  # base and capacity of the extent, the first slot that was set to zero
    COPIED = 2  # base and capacity of the source, base and capacity of the target, number of slots


@dataclass(slots=True, eq=False, weakref_slot=True)
class ChangeLog:
    """The changes of a cache's memory that the other processes of a split model have not repeated yet.

    Each change is a list of integers, a `ChangeKind` first, that `Cache.replay` understands.
    """

    cache: int  # the number by which the other processes know the cache
    changes: list[list[int]] = field(default_factory=list)


class Cache:
    """Slots, each with a row in several planes (for a decoder: the keys and the values of each layer).

    A plane is a tensor [slots * heads, width]. The rows of an extent form a block [heads, capacity, width], so that the
    slots of one head lie together. Neighbouring extents of equal capacity form a block [count, heads, capacity, width],
    which attention reads in one product.
    """

    def __init__(
        self,
        planes: Sequence[Plane],
        device: torch.device,
        slots: int = 0,
        budget: MemoryBudget | None = None,
        fixed: int | None = None,
        copies: int = 1,
        change_log: ChangeLog | None = None,
    ) -> None:
        """Allocate `slots` slots to begin with.

        `fixed`: capacities of extents are multiples of it, for compiled programs, which are made for one shape.
        `copies`: in how many processes each slot is stored; all count against the budget. `change_log`: where changes
        are recorded for these processes.
        """
        self.layout = list(planes)
        self.device = device
        self.budget = budget or MemoryBudget()
        self.fixed, self.change_log = fixed, change_log
        self.states: SlotStates | None = None  # of layers that read the past through a state
        self.slot_bytes = copies * sum(heads * width * dtype.itemsize for heads, width, dtype in self.layout)
        self.planes = [torch.zeros(0, width, dtype=dtype, device=device) for _, width, dtype in planes]
        self.pointers = data_pointers(self.planes)
        self.slots = 0  # allocated: lent ones and a few more; what counts against the budget
        self.room = 0  # slots that the planes have memory for
        self._lent: list[Extent] = []  # sorted by base
        if slots:
            self._move(slots)

    @property
    def bytes(self) -> int:
        """The bytes that count against the budget."""
        return self.slots * self.slot_bytes

    @property
    def lent(self) -> int:
        """The capacity of all extents together."""
        return sum(extent.capacity for extent in self._lent)

    @property
    def used(self) -> int:
        """The slots that requests asked for."""
        return sum(extent.used for extent in self._lent)

    def capacity(self, slots: int) -> int:
        """The capacity of an extent for `slots` slots: long ones get a sixteenth more to grow into."""
        return round_up(slots + slots // 16) if self.fixed is None else -(-slots // self.fixed) * self.fixed

    def lend(self, slots: int) -> Extent:
        """A new extent with at least `slots` slots, all zero; raises OutOfMemory where the budget is too small."""
        capacity = self.capacity(max(slots, 1))
        place = self._gap(capacity)
        if place is None:
            if not self._append(capacity, self.lent + capacity):
                self._move(self.lent + capacity)
            place = len(self._lent)
        extent = Extent(self._end(place), capacity, slots)
        self._lent.insert(place, extent)
        self.clear(extent, 0)
        return extent

    def make_room(self, slots: int, grown: dict[Extent, int] | None = None) -> None:
        """Make room for new extents with `slots` slots together, and let lent ones grow to the capacities in `grown`.

        Allocating once for several requests spares them a move each. Does nothing where the budget is too small.
        """
        grown = {extent: capacity for extent, capacity in (grown or {}).items() if capacity > extent.capacity}
        slots += sum(capacity - extent.capacity for extent, capacity in grown.items())
        if slots > self.slots - self.lent or grown:
            with suppress(OutOfMemory):
                if grown or not self._append(slots, self.lent + slots):
                    self._move(self.lent + slots, grown)

    def reserve(self, extent: Extent, slots: int) -> None:
        """Make an extent at least `slots` slots large; it keeps its contents, but may move.

        Raises OutOfMemory where the budget is too small, and then changes nothing.
        """
        if slots > extent.capacity:
            self._enlarge(extent, self.capacity(slots))
        extent.used = slots

    def _enlarge(self, extent: Extent, capacity: int) -> None:
        place, before = self._gap(capacity), Extent(extent.base, extent.capacity)
        if place is None:
            lent = self.lent - extent.capacity + capacity
            if not self._append(capacity, lent):
                self._move(lent, {extent: capacity})
                return
            place = len(self._lent)
        extent.base, extent.capacity = self._end(place), capacity
        self._lent.insert(place, extent)
        del self._lent[next(i for i, other in enumerate(self._lent) if other is extent and i != place)]
        self._copy_planes(before, extent, before.capacity)
        self._clear_planes(extent, before.capacity)

    def release(self, extent: Extent) -> None:
        """Take an extent back, and give back the memory if most of it is idle now; a little stays for the next one."""
        if self.states is not None:
            self.states.release(extent)
        self._lent = [other for other in self._lent if other is not extent]
        if not self._lent and self.bytes <= IDLE_BYTES and self.device.type == "cpu":
            self.slots = 0
            self.budget.take(self, 0)
        elif self.slots > 2 * self.lent + 4 * CAPACITY_STEP or not self._lent:
            self._move(self.lent)

    def read(self, plane: int, extent: Extent, span: int | None = None, count: int = 1) -> Tensor:
        """A view [count, heads, span, width] of a plane: the first `span` slots of `count` extents from `extent` on.

        The extents must lie side by side and have one capacity.
        """
        heads, width, _ = self.layout[plane]
        head = extent.capacity * width
        shape = count, heads, extent.capacity if span is None else span, width
        return self.planes[plane].as_strided(shape, (heads * head, head, width, 1), extent.base * heads * width)

    def index(self, heads: int, extents: Sequence[tuple[Extent, Sequence[int]]]) -> Tensor:
        """The rows [n * heads] int64, of a plane with `heads` heads, of n slots in some extents; slot by slot."""
        counts = [len(slots) for _, slots in extents]
        slots = np.fromiter(chain.from_iterable(slots for _, slots in extents), np.int64, sum(counts))
        first = slots + np.repeat([extent.base * heads for extent, _ in extents], counts)
        capacity = np.repeat([extent.capacity for extent, _ in extents], counts)
        rows = first[:, None] + capacity[:, None] * np.arange(heads)
        return torch.from_numpy(rows.ravel()).to(self.device)

    def copy(self, source: Extent, target: Extent, slots: int) -> None:
        """Copy the first `slots` slots of one extent to another, with what is kept of them for recurrent layers."""
        self._copy_planes(source, target, slots)
        if self.states is not None:
            self.states.copy(source, target, slots)

    def reusable(self, extent: Extent, tokens: int) -> int:
        """How many of the first `tokens` tokens of a text, in slots 0, 1, ..., another request can go on behind."""
        return tokens if self.states is None else self.states.reusable(extent, tokens)

    def shareable(self, tokens: int) -> int:
        """How many of the first `tokens` tokens of a text that is about to be read another request can go on behind."""
        return tokens if self.states is None else tokens // self.states.interval * self.states.interval

    def _copy_planes(self, source: Extent, target: Extent, slots: int) -> None:
        self._log(ChangeKind.COPIED, source.base, source.capacity, target.base, target.capacity, slots)
        for plane in range(len(self.planes)):
            self.read(plane, target, slots).copy_(self.read(plane, source, slots))

    def _end(self, place: int) -> int:
        """The first slot after extent number `place` - 1 of the lent ones."""
        return self._lent[place - 1].base + self._lent[place - 1].capacity if place else 0

    def _gap(self, capacity: int) -> int | None:
        """The number of the first lent extent with `capacity` free slots before it (first fit); None: no gap fits."""
        end = 0
        for place, extent in enumerate(self._lent):
            if extent.base - end >= capacity:
                return place
            end = extent.base + extent.capacity
        return len(self._lent) if self.slots - end >= capacity else None

    def _append(self, capacity: int, lent: int) -> bool:
        """Allocate `capacity` slots after all extents without moving any; False where that cannot be done.

        The planes must have the room, the budget must allow it, and `lent` slots, which will be lent then, must leave
        few idle.
        """
        slots = self._end(len(self._lent)) + capacity
        if slots > min(self.room, _with_margin(lent)) or not self.budget.allows(self, slots * self.slot_bytes):
            return False
        self.budget.take(self, slots * self.slot_bytes)
        self.slots = slots
        return True

    def clear(self, extent: Extent, first: int) -> None:
        """Set the slots of an extent from `first` on to zero.

        Attention multiplies masked slots by zero, so that what they hold must be finite.
        """
        self._clear_planes(extent, first)
        if self.states is not None:
            self.states.clear(extent, first)

    def _clear_planes(self, extent: Extent, first: int) -> None:
        self._log(ChangeKind.CLEARED, extent.base, extent.capacity, first)
        for plane in range(len(self.planes)):
            self.read(plane, extent)[:, :, first:] = 0

    def _move(self, slots: int, capacities: dict[Extent, int] | None = None, ahead: bool = True) -> None:
        """Move all extents side by side, sorted by capacity, in memory for `slots` slots and a few percent more.

        `capacities`: those of extents that must grow. With `ahead` extents that are nearly full grow too, and planes
        get room to grow, as far as the budget allows it. Raises OutOfMemory, and then changes nothing.
        """
        must = capacities or {}
        grown = dict(must)
        for extent in self._lent:
            soon = extent.used + CAPACITY_STEP // 4
            if slots and extent not in must and self.fixed is None and soon > extent.capacity:
                grown[extent] = self.capacity(soon)
        more = sum(grown[extent] - extent.capacity for extent in grown if extent not in must)
        count = _with_margin(slots + more)
        if not ahead or not self.budget.allows(self, count * self.slot_bytes):
            grown, count = dict(must), slots
        bytes_before = self.bytes
        self.budget.take(self, count * self.slot_bytes)
        order = sorted(self._lent, key=lambda extent: (grown.get(extent, extent.capacity), extent.base))
        before = [Extent(extent.base, extent.capacity) for extent in order]
        sizes = [grown.get(extent, extent.capacity) for extent in order]
        after = [Extent(end - size, size) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        room = self._most_room(count) if ahead else count
        try:
            try:
                self._replace_planes(room, before, after)
            except (OSError, RuntimeError, MemoryError):
                if room == count:
                    raise
                room = count  # a system that promises no more memory than it has counts untouched pages too
                self._replace_planes(room, before, after)
        except (OSError, RuntimeError, MemoryError) as error:
            self.budget.take(self, bytes_before)
            raise OutOfMemory(
                f"this machine has no memory for {count * self.slot_bytes:,} bytes of keys and values; lower "
                f"kv_cache_bytes ({error})"
            ) from error
        for extent, now in zip(order, after, strict=True):
            extent.base, extent.capacity = now.base, now.capacity
        self.slots, self.room, self._lent = count, room, order

    def _most_room(self, count: int) -> int:
        """Slots that planes for `count` slots get memory for, if the system grants it."""
        if self.device.type != "cpu" or self.fixed is not None:
            return count
        limit = None if UNTOUCHED is None else self.budget.limit
        return max(CPU_ROOM_FACTOR * count, (limit or 0) // max(1, self.slot_bytes))

    def _replace_planes(self, room: int, before: Sequence[Extent], after: Sequence[Extent]) -> None:
        """Allocate every plane anew, for `room` slots, and copy extents from `before` to `after`.

        Where a plane cannot be allocated, all are restored and the error is raised.
        """
        blocks, done = moves(before, after), 0
        try:
            for done in range(len(self.layout)):
                self.planes[done] = self._new_plane(done, room, blocks)
        except (OSError, RuntimeError, MemoryError):
            for plane in range(done):
                self.planes[plane] = self._new_plane(plane, self.room, moves(after, before))
            raise
        finally:
            self.pointers = data_pointers(self.planes)
        self._log(
            ChangeKind.MOVED,
            room,
            *(n for was, now in blocks for n in (was.base, was.capacity, now.base, now.capacity)),
        )

    def _new_plane(self, plane: int, room: int, blocks: Sequence[tuple[Extent, Extent]]) -> Tensor:
        """A new plane for `room` slots, with the contents of the present one moved; `blocks` are pairs (from, to)."""
        heads, width, dtype = self.layout[plane]
        made = room_for(room * heads, width, dtype, self.device)
        old = self.planes[plane]
        for was, now in blocks:
            count = min(was.capacity, now.capacity)
            source, goal = (
                part[at.base * heads : (at.base + at.capacity) * heads].view(heads, at.capacity, width)
                for part, at in ((old, was), (made, now))
            )
            goal[:, :count] = source[:, :count]
            goal[:, count:] = 0
        return made

    def _log(self, *change: int) -> None:
        if self.change_log is not None:
            self.change_log.changes.append(list(change))

    def replay(self, changes: Sequence[Sequence[int]]) -> None:
        """Repeat the changes that the log of another cache recorded; this cache lends nothing itself."""
        for kind, *numbers in changes:
            if kind == ChangeKind.MOVED:
                self.room, *bounds = numbers
                self.slots = self.room
                extents = [Extent(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)]
                blocks = list(zip(extents[::2], extents[1::2], strict=True))
                self.planes = [self._new_plane(plane, self.room, blocks) for plane in range(len(self.planes))]
            elif kind == ChangeKind.CLEARED:
                base, capacity, first = numbers
                self.clear(Extent(base, capacity), first)
            else:
                base, capacity, other, room, slots = numbers
                self.copy(Extent(base, capacity), Extent(other, room), slots)

    def trim(self) -> None:
        """Give back the memory that is not lent."""
        if self.slots > self.lent:
            self._move(self.lent, ahead=False)


def _with_margin(slots: int) -> int:
    """The number of slots to allocate where `slots` are lent: a few more, so that short growth moves nothing."""
    return slots * 33 // 32


def data_pointers(tensors: Sequence[Tensor]) -> array[int]:
    """The addresses of the tensors' data, 64 bits each, for a C library."""
    return array("Q", [tensor.data_ptr() for tensor in tensors])
