"""Messages to followers about a forward come out as they went in, and pieces of parameters are the whole of them."""

from __future__ import annotations

from array import array

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache, ChangeLog
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.extents import Extent
from draftwood.models.parallel.group import ProcessGroup
from draftwood.models.parallel.wire import ForwardOrder

NUMBER = st.integers(0, 2**31 - 1)
LISTS = st.lists(NUMBER, max_size=5)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    rows = draw(st.integers(1, 4))
    trunk = draw(st.lists(NUMBER, min_size=1, max_size=6))
    seen = draw(st.lists(st.integers(0, len(trunk)), min_size=rows, max_size=rows))
    paths = draw(st.lists(LISTS, min_size=rows, max_size=rows))
    slots = draw(st.lists(NUMBER, min_size=rows, max_size=rows))
    return Segment(Extent(draw(NUMBER), draw(NUMBER)), slots, array("i", trunk), seen, paths)


@settings(max_examples=40)
@given(st.lists(segments(), min_size=1, max_size=3), st.data())
def test_an_order_comes_out_as_it_went_in(parts: list[Segment], data: st.DataObject) -> None:
    count = sum(map(len, parts)) + data.draw(st.integers(0, 2))
    positions = data.draw(st.lists(NUMBER, min_size=count, max_size=count))
    wanted = data.draw(
        st.one_of(
            st.just(slice(1, count)), st.lists(st.integers(0, count - 1), min_size=1, max_size=4).map(torch.tensor)
        )
    )
    stop = data.draw(st.one_of(st.none(), NUMBER))
    hidden = torch.randn(count, 3)
    numbers = array("q", [*positions, *positions])
    batch = Batch(numbers, parts, data.draw(NUMBER), wanted, data.draw(NUMBER), stop, head=False)
    changes, skipped = data.draw(st.lists(LISTS)), (tuple(data.draw(LISTS)), tuple(data.draw(LISTS)))
    order = ForwardOrder(batch, skipped, data.draw(NUMBER), changes, data.draw(LISTS))
    found = ForwardOrder.read(order.numbers(), hidden)
    assert (found.skipped, found.cache, found.changes, found.gone) == (skipped, order.cache, changes, order.gone)
    got = found.batch
    assert got.positions.tolist() == positions and got.hidden is hidden
    assert (got.reach, got.start, got.stop, got.head) == (batch.reach, batch.start, stop, False)
    assert torch.arange(count)[got.wanted].tolist() == torch.arange(count)[wanted].tolist()
    for mine, theirs in zip(got.segments, parts, strict=True):
        assert (mine.extent.base, mine.extent.capacity) == (theirs.extent.base, theirs.extent.capacity)
        assert list(mine.slots) == list(theirs.slots) and list(mine.seen) == list(theirs.seen)
        assert [list(path) for path in mine.paths] == [list(path) for path in theirs.paths]
        assert mine.trunk == theirs.trunk[: max(theirs.seen)]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["lend", "grow", "release", "copy", "trim"]), st.integers(1, 90)), max_size=20)
)
def test_a_journal_keeps_another_cache_alike(steps: list[tuple[str, int]]) -> None:
    planes = [(2, 3, torch.float32), (1, 1, torch.int64)]
    cache, other = Cache(planes, torch.device("cpu"), change_log=ChangeLog(1)), Cache(planes, torch.device("cpu"))
    lent: list[Extent] = []
    assert cache.change_log is not None
    for number, (what, size) in enumerate(steps):
        if what == "lend":
            lent.append(cache.lend(size))
            for plane in range(2):
                rows = cache.index(planes[plane][0], [(lent[-1], range(size))])
                cache.planes[plane][rows] = number + 1
            other.replay(cache.change_log.changes)
            cache.change_log.changes.clear()
            for plane in range(2):
                rows = cache.index(planes[plane][0], [(lent[-1], range(size))])
                other.planes[plane][rows] = number + 1
        elif what == "trim":
            cache.trim()
        elif lent:
            extent = lent[size % len(lent)]
            if what == "grow":
                cache.reserve(extent, extent.capacity + size)
            elif what == "copy":
                cache.copy(extent, lent[-1], min(extent.capacity, lent[-1].capacity))
            else:
                lent.remove(extent)
                cache.release(extent)
    other.replay(cache.change_log.changes)
    assert other.room == cache.room >= cache.slots
    for extent in lent:
        for plane in range(2):
            assert torch.equal(cache.read(plane, extent), other.read(plane, extent))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_pieces_make_the_whole(size: int, kv_heads: int) -> None:
    """Every value is held by one process; those of fewer key/value heads than processes by as many as share one."""
    config = DecoderConfig(97, 16, 24, 1, 8, kv_heads, 4, qkv_bias=True, o_bias=True, mlp_bias=True, position_offset=2)
    groups = [ProcessGroup(rank, size, torch.device("cpu")) for rank in range(size)]
    with torch.device("meta"):
        whole = Decoder(config)
        parts = [dict(Decoder(config, group).named_parameters()) for group in groups]
    shared = max(1, size // kv_heads)
    for name, parameter in whole.named_parameters():
        held = torch.zeros(parameter.shape)
        for group, mine in zip(groups, parts, strict=True):
            piece = group.piece(name, parameter.shape, config)
            if piece is None:
                assert name in ("embed.weight", "position.weight") and mine[name].numel() == 0
                continue
            assert list(mine[name].shape) == piece.shape(parameter.shape)
            for rows in () if piece.silent else piece.rows:
                (held[rows] if held.dim() < 2 else held[rows, piece.columns]).add_(1)
        if "norm" in name:
            assert (held == size).all()
        elif ".qkv." in name:
            assert (held[:32] == 1).all() and (held[32:] == shared).all()
        else:
            assert (held == 1).all()
