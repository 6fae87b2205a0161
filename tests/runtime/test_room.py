"""Little memory and full queues: requests wait or are refused, and what fails changes nothing."""

from __future__ import annotations

from itertools import product
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
import torch
from every_method import SLOT, engine, settle
from torch import Tensor

from draftwood import OutOfMemory, Overloaded, RequestError
from draftwood.engine.engine import prepare
from draftwood.models import cache as caches
from draftwood.models.cache import Cache
from draftwood.models.extents import Extent
from draftwood.models.memory_budget import MemoryBudget
from draftwood.util.resident import UNTOUCHED, resident


def test_memory_for_one_request_only() -> None:
    """They run one after the other, at least in part, and none fails."""
    prompts = [[1 + (i + j) % 9 for i in range(90)] for j in range(5)]
    expected = engine().batch(prompts, max_new_tokens=20)
    ours = engine(kv_cache_bytes=2 * 272 * SLOT)
    results = ours.batch(prompts, max_new_tokens=20, concurrency=5)
    assert [one.tokens for one in results] == [one.tokens for one in expected]
    settle(ours)


def test_a_budget_too_small_for_any() -> None:
    ours = engine(kv_cache_bytes=100 * SLOT)
    for call in (ours.generate, ours.stream, lambda prompt: ours.batch([prompt])):
        with pytest.raises(
            RequestError, match=r"needs up to [\d,]+ bytes .* but the budget is 38,400; .* kv_cache_bytes"
        ):
            call([1] * 50)
    settle(ours)


def test_a_queue_that_is_full() -> None:
    ours, refused = engine(max_running=1, max_queued=1), Event()
    first = ours.stream([0], max_new_tokens=4, cancelled=lambda: not refused.wait(30))
    begun = Thread(target=next, args=(first,))
    begun.start()
    while not ours.scheduler.active:
        sleep(0.001)
    waiting = ours.builder.task(prepare(ours, [1], max_new_tokens=4))
    ours.driver.submit(waiting)
    with pytest.raises(Overloaded, match="1 requests run and 1 wait"):
        next(ours.stream([2], max_new_tokens=4))
    ours.driver.cancel(waiting)
    refused.set()
    begun.join(30)
    assert len(list(first)) >= 1
    assert len(ours.batch([[i] for i in range(6)], max_new_tokens=3)) == 6  # it waits for its own
    settle(ours)


def written(cache: Cache, *extents: Extent) -> bool:
    """Whether the first 40 slots of each hold the numbers that were filled in, one for each extent and plane."""
    found = [cache.read(plane, extent)[:, :, :40] for extent in extents for plane in (0, 1)]
    return all(bool((part == number).all()) for number, part in enumerate(found, 1))


@pytest.mark.parametrize("refused", [(2,), (2, 5)], ids=["with room", "both"])
def test_allocations_that_fail(refused: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room to grow in it may do; else nothing has changed."""
    budget = MemoryBudget(1 << 30)
    cache = Cache([(2, 4, torch.float32), (1, 1, torch.int64)], torch.device("cpu"), budget=budget)
    first, second = cache.lend(40), cache.lend(40)
    for number, (extent, plane) in enumerate(product((first, second), (0, 1)), 1):
        cache.read(plane, extent).fill_(number)
    before = budget.used, cache.slots, (first.base, first.capacity)
    make, calls = caches.room_for, []

    def failing(*shape: Any) -> Tensor:
        calls.append(shape)
        if len(calls) in refused:  # the third and sixth lay the first plane as it was
            raise RuntimeError("not enough memory")
        return make(*shape)

    monkeypatch.setattr(caches, "room_for", failing)
    if len(refused) == 1:
        cache.reserve(first, 900)
        assert cache.room == cache.slots and first.capacity >= 900 and budget.used == cache.bytes
    else:
        with pytest.raises(OutOfMemory, match=r"this machine has no memory for .* lower kv_cache_bytes"):
            cache.reserve(first, 900)
        assert (budget.used, cache.slots, (first.base, first.capacity)) == before
    monkeypatch.undo()
    assert written(cache, first, second)
    cache.reserve(first, 2000)
    assert cache.room > cache.slots and written(cache, first, second)


@pytest.mark.skipif(UNTOUCHED is None, reason="memory that was never written takes some here")
def test_planes_grow_up_to_the_budget_without_a_move() -> None:
    """Moving hundreds of megabytes would hold up all requests for a second."""
    budget = MemoryBudget(1 << 30)
    cache, before = Cache([(2, 64, torch.float32)], torch.device("cpu"), budget=budget), resident()
    first = cache.lend(40)
    place, extents = cache.pointers[0], [first]
    while cache.bytes < 64 << 20:
        extents.append(cache.lend(1000))
    assert cache.pointers[0] == place and cache.room * cache.slot_bytes > (1 << 30) - cache.slot_bytes
    after = resident()
    assert before is None or after is None or after - before < 160 << 20
    for extent in extents[1:]:
        cache.release(extent)
    assert cache.bytes < 1 << 20 and cache.read(0, first).shape[2] == first.capacity


def test_idle_memory_of_one_model_serves_another() -> None:
    budget = MemoryBudget(200 * 8)
    caches = [Cache([(1, 1, torch.int64)], torch.device("cpu"), budget=budget) for _ in range(2)]
    extents = [caches[0].lend(20) for _ in range(5)]
    for extent in extents[2:]:
        caches[0].release(extent)
    idle = caches[0].slots
    caches[1].lend(100)
    assert caches[0].slots < idle and budget.used == sum(cache.bytes for cache in caches) <= 200 * 8
    del caches[1]
    assert budget.used == caches[0].bytes


@pytest.mark.parametrize("name", ["beam-search", "dsbd"])
def test_beams_that_no_memory_can_hold_are_a_wrong_request(name: str) -> None:
    """Whose texts one by one would fit; those beside them go on."""
    ours = engine(kv_cache_bytes=330 * SLOT)
    other = ours.builder.task(prepare(ours, [1, 2], method="autoregressive", max_new_tokens=15))
    ours.driver.submit(other)
    wide = {"name": name, "width": 120} if name != "dsbd" else {"name": name, "width": 120, "draft_width": 120}
    with pytest.raises(RequestError, match=r"beams and drafts need .* than the budget of 126,720 bytes"):
        ours.generate([1], wide, max_new_tokens=20, temperature=1.5 * (name != "beam-search"))
    assert len(list(ours.stream([2], max_new_tokens=5))) > 0 and other.done and other.error is None
    settle(ours)
