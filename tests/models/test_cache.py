"""Rows are lent and taken back, slots are written and read, and growth keeps what is stored."""

from __future__ import annotations

import pytest
import torch

from draftwood.models.cache import GRAIN, Cache

CPU = torch.device("cpu")


def cache(rows: int = 2, capacity: int = GRAIN) -> Cache:
    made = Cache([(2, 3)], torch.float32, CPU, rows, capacity)
    made.add((1, 1), torch.int64)
    return made


def fill(cache: Cache, row: int, slots: list[int]) -> torch.Tensor:
    """Write recognisable values [n, 2, 3] to the slots of one row of plane 0."""
    values = torch.arange(len(slots) * 6, dtype=torch.float32).view(-1, 2, 3) + 100 * (row + 1)
    cache.write(0, slice(row, row + 1), torch.tensor([slots]), values[None])
    return values


def stored(cache: Cache, row: int, slots: list[int]) -> torch.Tensor:
    """Values [n, 2, 3] at the slots of one row of plane 0."""
    return cache.read(0, slice(row, row + 1), cache.capacity)[0, :, slots].transpose(0, 1)


def test_what_is_written_is_read_back_and_nothing_else_changes() -> None:
    c = cache()
    values = fill(c, 1, [2, 0])
    read = c.read(0, slice(0, 2), 4)
    assert read.shape == (2, 2, 4, 3)
    assert torch.equal(read[1, :, 2], values[0]) and torch.equal(read[1, :, 0], values[1])
    assert not read[0].any() and not read[1, :, 1].any() and not read[1, :, 3].any()
    assert not c.read(1, slice(0, 2), 4).any()


def test_one_write_serves_several_rows() -> None:
    c = cache(rows=3)
    values = torch.arange(1, 25, dtype=torch.float32).view(2, 2, 2, 3)  # [B, Q, heads, width]
    c.write(0, slice(1, 3), torch.tensor([[0, 3], [2, c.capacity - 1]]), values)
    assert torch.equal(stored(c, 1, [0, 3]), values[0]) and torch.equal(stored(c, 2, [2, c.capacity - 1]), values[1])
    assert int(c.planes[0].count_nonzero()) == values.numel()


def test_reading_copies_nothing() -> None:
    c = cache()
    view = c.read(0, slice(1, 2), 3)
    fill(c, 1, [1])
    assert view[0, :, 1].any()
    assert view.untyped_storage().data_ptr() == c.planes[0].untyped_storage().data_ptr()


def test_the_lowest_free_row_is_lent_first() -> None:
    c = cache(rows=3)
    assert [c.acquire() for _ in range(3)] == [0, 1, 2]
    c.release(2)
    c.release(0)
    assert [c.acquire(), c.acquire()] == [0, 2]


def test_rows_double_when_none_is_free_and_keep_their_contents() -> None:
    c = cache(rows=1)
    row = c.acquire()
    values = fill(c, row, [0, 3])
    assert [c.acquire() for _ in range(2)] == [1, 2]
    assert c.rows == 4
    assert torch.equal(stored(c, 0, [0, 3]), values)
    assert not c.read(0, slice(1, 4), 4).any()
    assert c.acquire() == 3


@pytest.mark.parametrize(("slots", "capacity"), [(0, 32), (31, 32), (32, 64), (63, 64), (64, 128), (1000, 1024)])
def test_reserving_leaves_room_for_the_scratch_slot(slots: int, capacity: int) -> None:
    c = cache()
    values = {row: fill(c, row, [0, 2]) for row in (0, 1)}
    c.reserve(slots)
    assert c.capacity == capacity > slots
    for row, kept in values.items():
        assert torch.equal(stored(c, row, [0, 2]), kept)


def test_capacities_are_whole_grains() -> None:
    assert [cache(capacity=n).capacity for n in (1, 32, 33, 100)] == [32, 32, 64, 128]


def test_bytes_count_every_plane() -> None:
    c = cache()
    assert c.bytes == 2 * 32 * (6 * 4 + 8)
    c.reserve(32)
    assert c.bytes == 2 * 64 * (6 * 4 + 8)
    half = Cache([(2, 3)], torch.bfloat16, CPU, 2, 32)
    assert half.bytes == 2 * 32 * 6 * 2 and half.planes[0].dtype == torch.bfloat16
