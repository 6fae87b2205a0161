"""asyncio: requests that are awaited, cancelled, left and refused; threads and event loops beside each other."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from draftwood import AsyncEngine, DraftwoodError, Engine, NonFiniteError, Overloaded, RequestError, TabularModel
from draftwood.engine.engine import prepare, stream_event


def make(**options: Any) -> Engine:
    return Engine(TabularModel.random(6, seed=1, order=5), [TabularModel.random(6, seed=2, order=5)], **options)


def idle(engine: Engine) -> None:
    """All memory is back."""
    assert not engine.scheduler.busy
    engine.reset_prefix_cache()
    assert engine.builder.budget.used == 0 and all(cache.lent == 0 for cache in engine.builder.caches.values())


METHODS = ("autoregressive", "speculative", "mcsd", "dsbd")


def test_32_streams_beside_32_awaited_requests() -> None:
    engine, entries = make(), [([i % 6, 1], METHODS[i % 4], i) for i in range(32)]
    expected = [make().generate(p, m, max_new_tokens=15, seed=s) for p, m, s in entries]

    async def streamed(ours: AsyncEngine, prompt: list[int], method: str, seed: int) -> Any:
        tokens: list[int] = []
        async for event in ours.stream(prompt, method=method, max_new_tokens=15, seed=seed):
            tokens += event.tokens
            last = event
        assert last.result is not None and last.result.tokens == tokens
        return last.result

    async def all_of_them() -> list[Any]:
        async with AsyncEngine(engine) as ours:
            streams = [streamed(ours, *entry) for entry in entries]
            awaited = [ours.generate(p, m, max_new_tokens=15, seed=s) for p, m, s in entries]
            return await asyncio.gather(*streams, *awaited)

    results = asyncio.run(all_of_them())
    assert [one.tokens for one in results] == [one.tokens for one in expected] * 2
    assert engine.scheduler.passes < sum(one.metrics.rounds for one in expected)  # they shared forwards
    idle(engine)


def test_cancelling_the_task_or_leaving_the_loop_ends_the_request() -> None:
    engine = make()

    async def left() -> None:
        ours = AsyncEngine(engine)
        task = asyncio.create_task(ours.generate([1], max_new_tokens=4000))
        stream = ours.stream([2], max_new_tokens=4000)
        async for event in stream:
            assert event.tokens
            break
        del stream
        gc.collect()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        closed = ours.stream([3], max_new_tokens=4000)
        await anext(closed)
        await closed.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(closed)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ours.generate([1], max_new_tokens=4000), 0.05)
        before = engine.scheduler.steps
        await ours.aclose()
        assert engine.scheduler.steps - before < 50

    asyncio.run(left())
    idle(engine)


def test_errors_arrive_where_they_are_awaited() -> None:
    nan = TabularModel(lambda prefix: [float("nan")] * 3 if len(prefix) > 6 else [1.0, 1.0, 1.0], 3)
    engine = Engine(nan, max_running=1, max_queued=0)

    async def wrong() -> None:
        async with AsyncEngine(engine) as ours:
            with pytest.raises(RequestError, match="token id 9"):
                await ours.generate([9])
            with pytest.raises(RequestError, match="there is no option 'max_tokens'"):
                async for _ in ours.stream([1], max_tokens=3):  # type: ignore[call-arg]
                    pass
            with pytest.raises(NonFiniteError):
                await ours.generate([1])
            asked: list[int] = []
            refused = threading.Event()

            def held() -> bool:
                """Lets the stream go on behind its first round only when the other request was refused."""
                asked.append(1)
                assert len(asked) == 1 or refused.wait(30)
                return False

            stream = ours.stream([1], cancelled=held)
            assert (await anext(stream)).tokens
            with pytest.raises(Overloaded):
                await ours.generate([1], max_new_tokens=1)
            refused.set()
            with pytest.raises(NonFiniteError):
                async for _ in stream:
                    pass
            assert len((await ours.generate([1], max_new_tokens=2)).tokens) == 2

    asyncio.run(wrong())
    idle(engine)


def test_closing_ends_what_is_under_way_and_refuses_more() -> None:
    engine = make()

    async def closed() -> None:
        ours = AsyncEngine(engine)
        async with ours:
            task = asyncio.create_task(ours.generate([1], max_new_tokens=4000))
            await asyncio.sleep(0.05)
        with pytest.raises(DraftwoodError, match="closed before the request had ended"):
            await task
        with pytest.raises(DraftwoodError, match="is closed"):
            await ours.generate([1])
        assert not engine.scheduler.busy

    asyncio.run(closed())
    idle(engine)
    assert engine.generate([1], max_new_tokens=3).tokens  # the engine itself goes on


def test_several_loops_and_threads_share_one_engine() -> None:
    engine = make(max_running=6)
    ours = AsyncEngine(engine)
    expected = {seed: make().generate([1, seed % 6], max_new_tokens=20, seed=seed).tokens for seed in range(24)}
    found: dict[int, list[int]] = {}

    async def several(seeds: range) -> None:
        results = await asyncio.gather(*(ours.generate([1, s % 6], max_new_tokens=20, seed=s) for s in seeds))
        found.update((seed, result.tokens) for seed, result in zip(seeds, results, strict=True))

    def plain(seeds: range) -> None:
        found.update((s, engine.generate([1, s % 6], max_new_tokens=20, seed=s).tokens) for s in seeds)

    threads = [threading.Thread(target=lambda i=i: asyncio.run(several(range(i, 24, 4)))) for i in (0, 1)]
    threads += [threading.Thread(target=plain, args=(range(i, 24, 4),)) for i in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected
    asyncio.run(ours.aclose())
    idle(engine)


def test_a_loop_that_is_gone_harms_nobody() -> None:
    engine = make()
    ours = AsyncEngine(engine)
    loop = asyncio.new_event_loop()
    stream = ours.stream([1], max_new_tokens=100)
    loop.run_until_complete(anext(stream))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert len(engine.generate([2], max_new_tokens=200).tokens) == 200
    del stream
    asyncio.run(ours.aclose())
    idle(engine)


def test_a_callback_that_would_end_the_process_ends_its_request() -> None:
    engine = make()

    def leave() -> bool:
        raise SystemExit

    async def left() -> None:
        async with AsyncEngine(engine) as ours:
            with pytest.raises(DraftwoodError, match="interrupted"):
                await ours.generate([1], cancelled=leave)
            assert (await ours.generate([1], max_new_tokens=3)).tokens

    asyncio.run(left())
    idle(engine)


@pytest.mark.parametrize("method", ["speculative", "dsbd"])
def test_a_reader_that_is_late_gets_each_round_for_itself(method: str) -> None:
    """However far the thread that computes is: one event has the result, the last one."""
    engine = make()
    generation = prepare(engine, [1, 2], method=method, max_new_tokens=15, seed=3)
    task = engine.builder.task(generation)
    events = [stream_event(generation, round_) for round_ in list(engine.driver.events(task, each=False))]
    assert [event.result is None for event in events] == [True] * (len(events) - 1) + [False]
    assert events[-1].result is not None and len(events) > 1
    assert events[-1].result.tokens == [token for event in events for token in event.tokens]
