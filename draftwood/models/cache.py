"""Key/value memory of a model: slots, lent to requests in extents. What a slot means is the session's business.

The memory is as large as what is lent and a little more; it moves together when it shrinks, so that nothing is held for
a request that is gone. On a CPU planes have room to grow in: pages that nobody has touched take no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import OutOfMemory

GRAIN = 32  # capacities are multiples of this many slots, so that a span can be rounded up to whole vectors
STEP = 32  # slots by which short extents grow: extents of one capacity are read in one product
AHEAD = 2  # times the slots in use: room that planes have on a CPU, so that they seldom move

Plane: TypeAlias = tuple[int, int, torch.dtype]  # (heads, width, dtype) of what a slot holds


def roomy(slots: int) -> int:
    """The capacity of an extent for so many slots: a sixteenth more for long ones, in whole steps."""
    return whole(slots + slots // 16)


def whole(slots: int) -> int:
    """`slots` rounded up to whole steps."""
    return -(-slots // STEP) * STEP


@dataclass(slots=True, eq=False)
class Budget:
    """Bytes that all caches together may hold; None: no limit."""

    limit: int | None = None
    held: WeakKeyDictionary[Cache, int] = field(default_factory=WeakKeyDictionary)  # bytes of each

    @property
    def used(self) -> int:
        """Bytes that all caches hold."""
        return sum(self.held.values())

    def allows(self, cache: Cache, count: int) -> bool:
        """Whether a cache may hold so many bytes; if not as it is, others give back what is idle."""
        more = count - self.held.get(cache, 0)
        if self.limit is None or more <= 0 or self.used + more <= self.limit:
            return True
        for other in [other for other in self.held if other is not cache]:
            other.trim()
        return self.used + more <= self.limit

    def take(self, cache: Cache, count: int) -> None:
        """Note that a cache is about to hold so many bytes; raises OutOfMemory."""
        if not self.allows(cache, count):
            need = self.used - self.held.get(cache, 0) + count
            raise OutOfMemory(f"{need:,} bytes of keys and values are needed, but the budget is {self.limit:,}")
        self.held[cache] = count


LAID, CLEARED, COPIED = 0, 1, 2  # kinds of changes


@dataclass(slots=True, eq=False, weakref_slot=True)
class Journal:
    """What happened to a cache's memory since other processes were told: lists of numbers that `Cache.replay` takes."""

    cache: int  # the number that they know it by
    changes: list[list[int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Extent:
    """Neighbouring slots, lent to one request: numbered from 0 there, they begin at `base` in the cache."""

    base: int
    capacity: int
    used: int = 0  # slots that are known to be in use, for growing ahead


class Cache:
    """Slots in several planes (for a decoder: keys and values of each layer), lent in extents.

    A plane is a tensor [slots * heads, width]; an extent's part of it is a block [heads, capacity, width], so that a
    head's slots lie together, and neighbouring extents of one capacity are one block, read in one product.
    """

    def __init__(
        self,
        planes: Sequence[Plane],
        device: torch.device,
        slots: int = 0,
        budget: Budget | None = None,
        fixed: int | None = None,
        copies: int = 1,
        journal: Journal | None = None,
    ) -> None:
        """`slots` to begin with; `fixed`: extents have multiples of this capacity, for programs made for one.

        `copies`: processes that hold as much, all of which count; `journal`: where changes are noted for them.
        """
        self.layout = list(planes)
        self.device = device
        self.budget = budget or Budget()
        self.fixed, self.journal = fixed, journal
        self.slot_bytes = copies * sum(heads * width * dtype.itemsize for heads, width, dtype in self.layout)
        self.planes = [torch.zeros(0, width, dtype=dtype, device=device) for _, width, dtype in planes]
        self.places = addresses(self.planes)
        self.slots = 0  # in use: what the memory is counted by
        self.room = 0  # that the planes have
        self._lent: list[Extent] = []  # by base
        if slots:
            self._move(slots)

    @property
    def bytes(self) -> int:
        """Bytes held by all planes."""
        return self.slots * self.slot_bytes

    @property
    def lent(self) -> int:
        """Slots of all extents that are lent."""
        return sum(extent.capacity for extent in self._lent)

    @property
    def used(self) -> int:
        """Slots of all extents that were asked for."""
        return sum(extent.used for extent in self._lent)

    def capacity(self, slots: int) -> int:
        """The capacity of an extent for so many slots."""
        return roomy(slots) if self.fixed is None else -(-slots // self.fixed) * self.fixed

    def lend(self, slots: int) -> Extent:
        """An extent with room for so many slots, all zero; raises OutOfMemory where the budget is too small."""
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

    def expect(self, slots: int, grown: dict[Extent, int] | None = None) -> None:
        """Room for extents of so many slots together, and for those that are lent to grow to capacities.

        So that one by one they move nothing; none if that is too much.
        """
        grown = {extent: capacity for extent, capacity in (grown or {}).items() if capacity > extent.capacity}
        slots += sum(capacity - extent.capacity for extent, capacity in grown.items())
        if slots > self.slots - self.lent or grown:
            with suppress(OutOfMemory):
                if grown or not self._append(slots, self.lent + slots):
                    self._move(self.lent + slots, grown)

    def reserve(self, extent: Extent, slots: int) -> None:
        """Make sure that an extent has room for so many slots; what it holds is kept, it may move.

        Raises OutOfMemory where the budget is too small; nothing has changed then.
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
        self.copy(before, extent, before.capacity)
        self.clear(extent, before.capacity)

    def release(self, extent: Extent) -> None:
        """Take an extent back; memory that is mostly idle is given back."""
        self._lent = [other for other in self._lent if other is not extent]
        if self.slots > 2 * self.lent + 4 * STEP or not self._lent:
            self._move(self.lent)

    def read(self, plane: int, extent: Extent, span: int | None = None, count: int = 1) -> Tensor:
        """A view [count, heads, span, width] of the first slots of an extent and the neighbours like it."""
        heads, width, _ = self.layout[plane]
        head = extent.capacity * width
        shape = count, heads, extent.capacity if span is None else span, width
        return self.planes[plane].as_strided(shape, (heads * head, head, width, 1), extent.base * heads * width)

    def index(self, heads: int, extents: Sequence[tuple[Extent, Sequence[int]]]) -> Tensor:
        """Rows [n * heads] of a plane of so many heads where the slots of some extents lie, slot by slot."""
        counts = [len(slots) for _, slots in extents]
        slots = np.fromiter(chain.from_iterable(slots for _, slots in extents), np.int64, sum(counts))
        first = slots + np.repeat([extent.base * heads for extent, _ in extents], counts)
        capacity = np.repeat([extent.capacity for extent, _ in extents], counts)
        rows = first[:, None] + capacity[:, None] * np.arange(heads)
        return torch.from_numpy(rows.ravel()).to(self.device)

    def chosen(self, planes: Sequence[int]) -> Cache:
        """The same slots with these planes only, in this order, to be read and written; nothing is copied."""
        view = copy(self)
        view.planes = [self.planes[plane] for plane in planes]
        view.layout = [self.layout[plane] for plane in planes]
        view.places = addresses(view.planes)
        return view

    def copy(self, source: Extent, target: Extent, slots: int) -> None:
        """Copy the first slots of one extent to another."""
        self._note(COPIED, source.base, source.capacity, target.base, target.capacity, slots)
        for plane in range(len(self.planes)):
            self.read(plane, target, slots).copy_(self.read(plane, source, slots))

    def _end(self, place: int) -> int:
        """The slot behind the extent before a place among the lent ones."""
        return self._lent[place - 1].base + self._lent[place - 1].capacity if place else 0

    def _gap(self, capacity: int) -> int | None:
        """The first place among the lent extents with so many free slots before it."""
        end = 0
        for place, extent in enumerate(self._lent):
            if extent.base - end >= capacity:
                return place
            end = extent.base + extent.capacity
        return len(self._lent) if self.slots - end >= capacity else None

    def _append(self, capacity: int, lent: int) -> bool:
        """Take so many slots into use behind all extents, where planes have room and, of `lent` slots, few lie idle."""
        slots = self._end(len(self._lent)) + capacity
        if slots > min(self.room, _little_more(lent)) or not self.budget.allows(self, slots * self.slot_bytes):
            return False
        self.budget.take(self, slots * self.slot_bytes)
        self.slots = slots
        return True

    def clear(self, extent: Extent, first: int) -> None:
        """Zeros from slot `first` on: what is masked is multiplied by zero, and must be finite."""
        self._note(CLEARED, extent.base, extent.capacity, first)
        for plane in range(len(self.planes)):
            self.read(plane, extent)[:, :, first:] = 0

    def _move(self, slots: int, wanted: dict[Extent, int] | None = None, ahead: bool = True) -> None:
        """Lay all extents side by side, those of one capacity together, in memory for so many slots and a little more.

        `wanted` extents grow as they must; `ahead`: those that are nearly full too, if the budget allows it.
        """
        must = wanted or {}
        grown = dict(must)
        for extent in self._lent:
            if slots and extent not in must and self.fixed is None and extent.used + STEP // 4 > extent.capacity:
                grown[extent] = self.capacity(extent.used + STEP // 4)
        more = sum(grown[extent] - extent.capacity for extent in grown if extent not in must)
        count = _little_more(slots + more)
        if not ahead or not self.budget.allows(self, count * self.slot_bytes):
            grown, count = dict(must), slots
        held = self.bytes
        self.budget.take(self, count * self.slot_bytes)
        order = sorted(self._lent, key=lambda extent: (grown.get(extent, extent.capacity), extent.base))
        before = [Extent(extent.base, extent.capacity) for extent in order]
        sizes = [grown.get(extent, extent.capacity) for extent in order]
        after = [Extent(end - size, size) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        room = AHEAD * count if ahead and self.device.type == "cpu" and self.fixed is None else count
        try:
            try:
                self._lay(room, before, after)
            except (RuntimeError, MemoryError):
                if room == count:
                    raise
                room = count  # a system that promises no more memory than it has counts untouched pages too
                self._lay(room, before, after)
        except (RuntimeError, MemoryError) as error:
            self.budget.take(self, held)
            raise OutOfMemory(
                f"this machine has no memory for {count * self.slot_bytes:,} bytes of keys and values; lower "
                f"kv_cache_bytes ({error})"
            ) from error
        for extent, now in zip(order, after, strict=True):
            extent.base, extent.capacity = now.base, now.capacity
        self.slots, self.room, self._lent = count, room, order

    def _lay(self, room: int, before: Sequence[Extent], after: Sequence[Extent]) -> None:
        """Lay every plane anew, for so many slots; where one cannot be allocated, all are as they were."""
        moves, done = _moves(before, after), 0
        try:
            for done in range(len(self.layout)):
                self.planes[done] = self._laid(done, room, moves)
        except (RuntimeError, MemoryError):
            for plane in range(done):
                self.planes[plane] = self._laid(plane, self.room, _moves(after, before))
            raise
        finally:
            self.places = addresses(self.planes)
        self._note(LAID, room, *(n for was, now in moves for n in (was.base, was.capacity, now.base, now.capacity)))

    def _laid(self, plane: int, room: int, moves: Sequence[tuple[Extent, Extent]]) -> Tensor:
        """A plane for so many slots, with the extents copied from where they are to where they go."""
        heads, width, dtype = self.layout[plane]
        with torch.inference_mode(False):  # so that it may be written in any mode
            made = torch.empty(room * heads, width, dtype=dtype, device=self.device)
        old = self.planes[plane]
        for was, now in moves:
            count = min(was.capacity, now.capacity)
            source, goal = (
                part[at.base * heads : (at.base + at.capacity) * heads].view(heads, at.capacity, width)
                for part, at in ((old, was), (made, now))
            )
            goal[:, :count] = source[:, :count]
            goal[:, count:] = 0
        return made

    def _note(self, *change: int) -> None:
        if self.journal is not None:
            self.journal.changes.append(list(change))

    def replay(self, changes: Sequence[Sequence[int]]) -> None:
        """Do to this cache what another one's journal says; it lends nothing itself."""
        for kind, *numbers in changes:
            if kind == LAID:
                self.room, *bounds = numbers
                self.slots = self.room
                extents = [Extent(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)]
                moves = list(zip(extents[::2], extents[1::2], strict=True))
                self.planes = [self._laid(plane, self.room, moves) for plane in range(len(self.planes))]
            elif kind == CLEARED:
                base, capacity, first = numbers
                self.clear(Extent(base, capacity), first)
            else:
                base, capacity, other, room, slots = numbers
                self.copy(Extent(base, capacity), Extent(other, room), slots)

    def drop(self) -> None:
        """Give back everything, whoever it was lent to."""
        self._lent = []
        self._move(0)

    def trim(self) -> None:
        """Give back what is not lent."""
        if self.slots > self.lent:
            self._move(self.lent, ahead=False)


def _little_more(slots: int) -> int:
    """How many slots are in use where so many are lent."""
    return slots * 33 // 32


def addresses(tensors: Sequence[Tensor]) -> array[int]:
    """Where the data of tensors lie, as a library wants them: 64 bits each."""
    return array("Q", [tensor.data_ptr() for tensor in tensors])


def _moves(before: Sequence[Extent], after: Sequence[Extent]) -> list[tuple[Extent, Extent]]:
    """(from, to) of what is copied: neighbours that stay neighbours, and do not grow, together."""
    found: list[tuple[Extent, Extent]] = []
    whole = False
    for was, now in zip(before, after, strict=True):
        same = was.capacity == now.capacity
        if whole and same:
            last, there = found[-1]
            if (last.base + last.capacity, there.base + there.capacity) == (was.base, now.base):
                last.capacity += was.capacity
                there.capacity += was.capacity
                continue
        found.append((Extent(was.base, was.capacity), Extent(now.base, now.capacity)))
        whole = same
    return found


def free_bytes(device: torch.device, proc: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that a device, or this machine within its control group, can still give; cached files count as free."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = _named(proc / "meminfo", "MemAvailable:") * 1024
    except OSError:  # not known on every system
        return 4 << 30
    with suppress(OSError, ValueError):  # no group, or no limit
        held = int((group / "memory.current").read_text()) - _named(group / "memory.stat", "inactive_file")
        free = min(free, int((group / "memory.max").read_text()) - held)
    return max(0, free)


def _named(file: Path, name: str) -> int:
    return next(int(words[1]) for line in file.read_text().splitlines() if (words := line.split())[0] == name)
