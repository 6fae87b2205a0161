"""Rows are lent and taken back, slots are written and read, and growth keeps what is stored."""

from __future__ import annotations

import pytest
import torch

from draftwood.models.cache import Cache

CPU = torch.device("cpu")


def cache(rows: int = 2, capacity: int = 4) -> Cache:
    return Cache([(2, 3), ()], torch.float32, CPU, rows, capacity)


def fill(cache: Cache, row: int, slots: list[int]) -> torch.Tensor:
    """Write recognisable values [n, 2, 3] to the slots of one row of plane 0."""
    flat = torch.tensor([row * cache.capacity + slot for slot in slots])
    values = torch.arange(len(slots) * 6, dtype=torch.float32).view(-1, 2, 3) + 100 * (row + 1)
    cache.write(0, flat, values)
    return values


def test_what_is_written_is_read_back_and_nothing_else_changes() -> None:
    c = cache()
    values = fill(c, 1, [2, 0])
    read = c.read(0, slice(0, 2), 4)
    assert read.shape == (2, 4, 2, 3)
    assert torch.equal(read[1, 2], values[0]) and torch.equal(read[1, 0], values[1])
    assert not read[0].any() and not read[1, 1].any() and not read[1, 3].any()
    assert not c.read(1, slice(0, 2), 4).any()


def test_one_write_serves_several_rows() -> None:
    c = cache()
    c.write(1, torch.tensor([0, c.capacity + 3, 2]), torch.tensor([5.0, 6.0, 7.0]))
    assert c.read(1, slice(0, 2), 4).tolist() == [[5, 0, 7, 0], [0, 0, 0, 6]]


def test_reading_copies_nothing() -> None:
    c = cache()
    view = c.read(0, slice(1, 2), 3)
    fill(c, 1, [1])
    assert view[0, 1].any()
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
    assert torch.equal(c.read(0, slice(0, 1), 4)[0, [0, 3]], values)
    assert not c.read(0, slice(1, 4), 4).any()
    assert c.acquire() == 3


@pytest.mark.parametrize(("slots", "capacity"), [(0, 4), (3, 4), (4, 8), (7, 8), (8, 16), (100, 128)])
def test_reserving_leaves_room_for_the_scratch_slot(slots: int, capacity: int) -> None:
    c = cache()
    values = {row: fill(c, row, [0, 2]) for row in (0, 1)}
    c.reserve(slots)
    assert c.capacity == capacity > slots
    for row, stored in values.items():
        assert torch.equal(c.read(0, slice(row, row + 1), 4)[0, [0, 2]], stored)


def test_bytes_count_every_plane() -> None:
    c = cache()
    assert c.bytes == 2 * 4 * (6 + 1) * 4
    c.reserve(7)
    assert c.bytes == 2 * 8 * (6 + 1) * 4
    half = Cache([(2, 3)], torch.bfloat16, CPU, 2, 4)
    assert half.bytes == 2 * 4 * 6 * 2 and half.planes[0].dtype == torch.bfloat16
