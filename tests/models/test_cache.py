"""Extents are lent and taken back, slots are written and read; growth, moving and shrinking keep what is stored."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from draftwood.errors import OutOfMemory
from draftwood.models.cache import CAPACITY_STEP, SPAN_MULTIPLE, Cache
from draftwood.models.extents import Extent
from draftwood.models.memory_budget import MemoryBudget

CPU = torch.device("cpu")
SLOT = 2 * 3 * 4 + 8  # bytes of a slot in `cache`


def cache(slots: int = 0, limit: int | None = None, fixed: int | None = None) -> Cache:
    return Cache([(2, 3, torch.float32), (1, 1, torch.int64)], CPU, slots, MemoryBudget(limit), fixed)


def fill(cache: Cache, extent: Extent, slots: list[int], seed: int = 0) -> Tensor:
    """Write values [n, 2, 3] to some slots of plane 0, and the slots' numbers to plane 1."""
    values = torch.rand(len(slots), 2, 3, generator=torch.Generator().manual_seed(seed)) + 1
    cache.planes[0].index_copy_(0, cache.index(2, [(extent, slots)]), values.view(-1, 3))
    cache.planes[1].index_copy_(0, cache.index(1, [(extent, slots)]), torch.tensor(slots)[:, None])
    return values


def stored(cache: Cache, extent: Extent, slots: list[int]) -> Tensor:
    """Values [n, 2, 3] at some slots of plane 0; plane 1 must agree with them."""
    assert cache.read(1, extent)[0, 0, slots, 0].tolist() == slots
    return cache.read(0, extent)[0, :, slots].transpose(0, 1)


def apart(cache: Cache) -> bool:
    """Whether all lent extents lie in order, inside the memory, and none in another."""
    end = 0
    for extent in cache._lent:
        if extent.base < end:
            return False
        end = extent.base + extent.capacity
    return end <= cache.slots <= len(cache.planes[1]) == len(cache.planes[0]) // 2


def test_what_is_written_is_read_back_and_nothing_else_changes() -> None:
    c = cache()
    other, extent = c.lend(4), c.lend(4)
    values = fill(c, extent, [2, 0])
    read = c.read(0, extent, 4)
    assert read.shape == (1, 2, 4, 3)
    assert torch.equal(read[0, :, 2], values[0]) and torch.equal(read[0, :, 0], values[1])
    assert not read[0, :, [1, 3]].any() and not c.read(0, other).any()
    assert int(c.planes[0][: 2 * c.lent].count_nonzero()) == values.numel()


def test_one_write_serves_several_extents() -> None:
    c = cache()
    one, two, three = (c.lend(n) for n in (4, 70, 200))
    rows = c.index(2, [(one, [3]), (three, [150, 2]), (two, [69])])
    values = torch.rand(4, 2, 3) + 1
    c.planes[0].index_copy_(0, rows, values.view(-1, 3))
    for extent, slot, expected in ((one, 3, 0), (three, 150, 1), (three, 2, 2), (two, 69, 3)):
        assert torch.equal(c.read(0, extent)[0, :, slot], values[expected])
    assert int(c.planes[0][: 2 * c.lent].count_nonzero()) == values.numel()


def test_reading_copies_nothing() -> None:
    c = cache()
    extent = c.lend(4)
    view = c.read(0, extent, 3)
    fill(c, extent, [1])
    assert view[0, :, 1].any()
    assert view.untyped_storage().data_ptr() == c.planes[0].untyped_storage().data_ptr()


def test_neighbours_of_one_capacity_are_one_block() -> None:
    c = cache()
    extents = [c.lend(40) for _ in range(3)]
    values = [fill(c, extent, [0, 39], seed) for seed, extent in enumerate(extents)]
    block = c.read(0, extents[0], 40, 3)
    assert block.shape == (3, 2, 40, 3)
    for part, expected in zip(block, values, strict=True):
        assert torch.equal(part[:, [0, 39]].transpose(0, 1), expected)


def test_moving_lays_those_of_one_capacity_together() -> None:
    c = cache()
    extents = [c.lend(n) for n in (40, 300, 40, 300, 40)]
    values = [fill(c, extent, [0, 39], seed) for seed, extent in enumerate(extents)]
    c.reserve(extents[3], 500)
    assert [e.capacity for e in c._lent] == sorted(e.capacity for e in extents)
    block = c.read(0, c._lent[0], 40, 3)
    for part, number in zip(block, (0, 2, 4), strict=True):
        assert torch.equal(part[:, [0, 39]].transpose(0, 1), values[number])
    for extent, expected in zip(extents, values, strict=True):
        assert torch.equal(stored(c, extent, [0, 39]), expected)


@pytest.mark.parametrize(
    ("slots", "capacity"), [(0, 32), (1, 32), (31, 32), (32, 64), (60, 64), (1000, 1088), (1024, 1088)]
)
def test_capacities_are_whole_steps_with_room_to_grow(slots: int, capacity: int) -> None:
    extent = cache().lend(slots)
    assert extent.capacity == capacity >= slots and capacity % CAPACITY_STEP == capacity % SPAN_MULTIPLE == 0


def test_fixed_capacities() -> None:
    c = cache(fixed=192)
    extents = [c.lend(n) for n in (1, 192, 193)]
    assert [extent.capacity for extent in extents] == [192, 192, 384]
    values = fill(c, extents[0], [191])
    c.reserve(extents[0], 193)
    assert extents[0].capacity == 384 and torch.equal(stored(c, extents[0], [191]), values)


def test_growth_keeps_contents_and_gives_zeros() -> None:
    """In a gap that another one left, and where everything moves."""
    c = cache()
    first, gap, last = c.lend(10), c.lend(300), c.lend(10)
    fill(c, gap, list(range(300)))
    values = [fill(c, extent, [0, 9], seed) for seed, extent in enumerate((first, last))]
    before = c.slots
    c.release(gap)
    assert c.slots < before  # most of it was idle
    before = c.slots
    c.reserve(last, 200)
    assert c.slots > before and last.capacity >= 200 and apart(c)
    c.reserve(first, 400)
    assert apart(c)
    for extent, expected in zip((first, last), values, strict=True):
        assert torch.equal(stored(c, extent, [0, 9]), expected)
        assert not c.read(0, extent)[:, :, 10:].any() and not c.read(0, extent)[:, :, 1:9].any()


def test_what_is_lent_again_is_zero() -> None:
    c = cache()
    extents = [c.lend(50), c.lend(50)]
    fill(c, extents[0], list(range(50)))
    c.release(extents[0])
    again = c.lend(50)
    assert again.base == 0 and not c.read(0, again).any() and not c.read(1, again).any()


def test_idle_memory_is_given_back() -> None:
    c = cache()
    budget = c.budget
    extents = [c.lend(40) for _ in range(40)]
    values = fill(c, extents[-1], [0, 39])
    most = c.bytes
    assert most == budget.used == c.slots * SLOT and c.lent == 40 * 64 and c.slots <= 1.15 * c.lent
    for extent in extents[:-1]:
        c.release(extent)
    assert c.bytes == budget.used < most / 4
    assert torch.equal(stored(c, extents[-1], [0, 39]), values)
    c.release(extents[-1])
    assert (c.slots, c.bytes, budget.used, c.lent) == (0, 0, 0, 0)
    assert torch.equal(stored(c, c.lend(2), []), torch.empty(0, 2, 3))


def test_short_extents_that_are_nearly_full_grow_with_the_others() -> None:
    """So that requests that decode together do not move the memory one after the other."""
    c = cache()
    extents = [c.lend(60) for _ in range(8)]
    moves = []
    move = c._move
    c._move = lambda *args: (moves.append(1), move(*args))[1]  # type: ignore[assignment, method-assign]
    for slots in range(61, 75):
        for extent in extents:
            c.reserve(extent, slots)
    assert len(moves) == 1 and {extent.capacity for extent in extents} == {96}


def test_many_that_come_one_by_one_seldom_move_the_others() -> None:
    """Idle parts of the planes are not counted: no page of them was touched."""
    c = cache()
    moves = []
    move = c._move
    c._move = lambda *args: (moves.append(1), move(*args))[1]  # type: ignore[assignment, method-assign]
    extents = [c.lend(40) for _ in range(200)]
    values = [fill(c, extent, [0, 39], seed) for seed, extent in enumerate(extents)]
    assert len(moves) <= 8 and c.slots <= 1.04 * c.lent and apart(c)
    del moves[:]
    c.reserve(extents[3], 80)  # one grows alone, since little is left idle
    assert not moves and extents[3].base == 200 * 64 and c.slots <= 1.04 * c.lent
    for extent, expected in zip(extents, values, strict=True):
        assert torch.equal(stored(c, extent, [0, 39]), expected)


def test_what_is_expected_is_lent_without_moving_anything() -> None:
    c = cache(limit=2000 * SLOT)
    c.lend(10)
    c.make_room(5 * c.capacity(100))
    planes = list(c.planes)
    for _ in range(5):
        c.lend(100)
    assert apart(c) and all(one is two for one, two in zip(planes, c.planes, strict=True))
    slots = c.slots
    c.make_room(5000)  # beyond the budget
    assert c.slots == slots


def test_extents_that_are_expected_to_grow_move_together_and_keep_what_they_hold() -> None:
    c = cache(limit=2000 * SLOT)
    extents = [c.lend(40) for _ in range(6)]
    values = [fill(c, extent, [0, 39], seed) for seed, extent in enumerate(extents)]
    c.make_room(c.capacity(10), dict.fromkeys(extents[1:5], c.capacity(100)))
    planes, room = list(c.planes), c.slots
    for extent in extents[1:5]:
        c.reserve(extent, 100)
    c.lend(10)
    assert apart(c) and c.slots == room and all(one is two for one, two in zip(planes, c.planes, strict=True))
    for extent, expected in zip(extents, values, strict=True):
        assert torch.equal(stored(c, extent, [0, 39]), expected)
    state = [(extent.base, extent.capacity) for extent in extents]
    c.make_room(0, {extents[0]: 5000})  # beyond the budget
    assert state == [(extent.base, extent.capacity) for extent in extents]


def test_a_budget_refuses_and_nothing_is_lost() -> None:
    c = cache(limit=260 * SLOT)
    extents = [c.lend(40), c.lend(100)]
    values = [fill(c, extent, [0, 39], seed) for seed, extent in enumerate(extents)]
    for attempt in (lambda: c.lend(200), lambda: c.reserve(extents[0], 190), lambda: c.reserve(extents[1], 5000)):
        state = [(e.base, e.capacity, e.used) for e in extents], c.slots, c.budget.used, c.lent
        with pytest.raises(OutOfMemory, match=r"^[\d,]+ bytes of keys and values are needed, but the budget is 8,320$"):
            attempt()
        assert state == ([(e.base, e.capacity, e.used) for e in extents], c.slots, c.budget.used, c.lent)
        for extent, expected in zip(extents, values, strict=True):
            assert torch.equal(stored(c, extent, [0, 39]), expected)
    third = c.lend(60)  # all that is left: no room ahead, and nobody grows ahead
    assert c.lent <= c.slots <= 260 and third.capacity == 64 and apart(c)
    c.release(extents[0])
    c.reserve(extents[1], 129)
    assert torch.equal(stored(c, extents[1], [0, 39]), values[1])


def test_a_budget_is_shared_by_caches() -> None:
    budget = MemoryBudget(200 * SLOT)
    one, two = (Cache([(2, 3, torch.float32), (1, 1, torch.int64)], CPU, 0, budget) for _ in range(2))
    extent = one.lend(100)
    with pytest.raises(OutOfMemory):
        two.lend(100)
    assert two.slots == two.lent == 0 and budget.used == one.bytes
    one.release(extent)
    two.lend(100)
    assert budget.used == two.bytes > 0 == one.bytes


def test_memory_is_written_in_inference_mode_and_outside_of_it() -> None:
    c = cache()
    with torch.inference_mode():
        extent = c.lend(10)
        values = fill(c, extent, [1, 2])
    fill(c, c.lend(10), [3])
    c.reserve(extent, 500)
    with torch.inference_mode():
        fill(c, c.lend(10), [3])
    assert torch.equal(stored(c, extent, [1, 2]), values)


def test_copies_of_extents() -> None:
    c = cache()
    source, target = c.lend(10), c.lend(100)
    values = fill(c, source, list(range(10)))
    c.copy(source, target, 7)
    assert torch.equal(stored(c, target, list(range(7))), values[:7]) and not c.read(0, target)[:, :, 7:].any()


@pytest.mark.parametrize("limit", [None, 2000 * SLOT])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_lending_growing_and_releasing(seed: int, limit: int | None) -> None:
    """Against a plain table of what each extent should hold; memory stays near to what is lent."""
    rng = random.Random(seed)
    c = cache(limit=limit)
    held: list[tuple[Extent, int, Tensor]] = []  # extent, slots in use, values of these
    refused = 0
    for step in range(150):
        try:
            if not held or rng.random() < 0.3:
                slots = rng.choice([1, 20, 63, 64, 200, 700])
                extent = c.lend(slots)
                assert not c.read(0, extent).any()
                held.append((extent, slots, fill(c, extent, list(range(slots)), step)))
            elif rng.random() < 0.6:
                place = rng.randrange(len(held))
                extent, slots, values = held[place]
                more = rng.choice([1, 5, 40, 300])
                c.reserve(extent, slots + more)
                new = fill(c, extent, list(range(slots, slots + more)), step)
                held[place] = extent, slots + more, torch.cat((values, new))
            else:
                c.release(held.pop(rng.randrange(len(held)))[0])
        except OutOfMemory:
            refused += 1
        assert apart(c) and len(c._lent) == len(held) and c.budget.used == c.bytes
        assert limit is None or c.bytes <= limit
        for extent, slots, values in held if step % 5 == 0 else ():
            assert torch.equal(stored(c, extent, list(range(slots))), values)
        assert c.slots <= 2 * c.lent + 4 * CAPACITY_STEP or c.slots <= 1.05 * c.lent
    assert (refused > 0) == (limit is not None)
    for extent, _, _ in held:
        c.release(extent)
    assert c.bytes == c.budget.used == 0
