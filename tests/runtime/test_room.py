"""Little memory and full queues: requests wait or are refused, and what fails changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shared import SLOT, engine, settle
from torch import Tensor

from draftwood import OutOfMemory, Overloaded, RequestError
from draftwood.models.cache import Budget, Cache


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
    ours = engine(max_running=1, max_queued=1)
    streams = [ours.stream([i], max_new_tokens=4) for i in range(3)]
    next(streams[0])
    waiting = ours.submit(ours.generation([1], max_new_tokens=4))
    with pytest.raises(Overloaded, match="1 requests run and 1 wait"):
        next(streams[2])
    ours.scheduler.cancel(waiting)
    assert len([event for stream in streams[:2] for event in stream]) >= 2
    assert len(ours.batch([[i] for i in range(6)], max_new_tokens=3)) == 6  # it waits for its own
    settle(ours)


def test_an_allocation_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(1 << 30)
    cache = Cache([(2, 4, torch.float32), (1, 1, torch.int64)], torch.device("cpu"), budget=budget)
    first, second = cache.lend(40), cache.lend(40)
    for plane in (0, 1):
        cache.read(plane, first).fill_(plane + 1)
        cache.read(plane, second).fill_(plane + 3)
    before = budget.used, cache.slots, (first.base, first.capacity)
    empty, calls = torch.empty, []

    def failing(*shape: Any, **options: Any) -> Tensor:
        calls.append(shape)
        if len(calls) == 2:
            raise RuntimeError("not enough memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", failing)
    with pytest.raises(OutOfMemory, match=r"this machine has no memory for .* lower kv_cache_bytes"):
        cache.reserve(first, 900)
    monkeypatch.undo()
    assert (budget.used, cache.slots, (first.base, first.capacity)) == before
    for plane in (0, 1):
        assert bool((cache.read(plane, first) == plane + 1).all()) and bool(
            (cache.read(plane, second) == plane + 3).all()
        )
    cache.reserve(first, 900)
    assert bool((cache.read(0, first)[:, :, :40] == 1).all()) and bool((cache.read(0, second) == 3).all())


def test_idle_memory_of_one_model_serves_another() -> None:
    budget = Budget(200 * 8)
    caches = [Cache([(1, 1, torch.int64)], torch.device("cpu"), budget=budget) for _ in range(2)]
    extents = [caches[0].lend(20) for _ in range(5)]
    for extent in extents[2:]:
        caches[0].release(extent)
    idle = caches[0].slots
    caches[1].lend(100)
    assert caches[0].slots < idle and budget.used == sum(cache.bytes for cache in caches) <= 200 * 8
    del caches[1]
    assert budget.used == caches[0].bytes
