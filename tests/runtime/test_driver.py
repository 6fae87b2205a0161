"""The worker thread: it serves all callers and keeps nothing alive; Ctrl-C, forks and the process's end harm nobody."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from every_method import FAMILIES, SLOT, engine, settle
from torch import Tensor

from draftwood import AsyncEngine, DraftwoodError, Engine, TabularModel
from draftwood.engine.batching import BatchInterrupted
from draftwood.engine.engine import prepare
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder
from draftwood.runtime.scheduler import Scheduler

LONG = 4000


def small(**options: Any) -> Engine:
    return Engine(TabularModel.random(6, seed=1, order=5), [TabularModel.random(6, seed=2, order=5)], **options)


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "draftwood"}


def soon(condition: Callable[[], bool]) -> bool:
    """Whether something is the case within a while."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_one_thread_serves_threads_event_loops_and_batches() -> None:
    before, ours = workers(), small()
    seen: set[threading.Thread] = set()

    def noted() -> bool:
        seen.add(threading.current_thread())
        return False

    async def awaited() -> None:
        async with AsyncEngine(ours) as served:
            await asyncio.gather(*(served.generate([i], max_new_tokens=8, cancelled=noted) for i in range(4)))

    others = [threading.Thread(target=ours.generate, args=([i],), kwargs={"cancelled": noted}) for i in range(3)]
    others.append(threading.Thread(target=lambda: asyncio.run(awaited())))
    for thread in others:
        thread.start()
    ours.batch([[1], [2]], max_new_tokens=8, cancelled=noted)
    assert list(ours.stream([3], max_new_tokens=8, cancelled=noted))
    for thread in others:
        thread.join(30)
    assert len(seen) == 1 and seen == workers() - before


def test_the_thread_ends_with_the_engine() -> None:
    gc.disable()  # nothing is in a circle
    try:
        before, ours = workers(), small()
        assert not workers() - before  # until something is asked for
        assert ours.generate([1], max_new_tokens=4).tokens
        (worker,) = workers() - before
        model = weakref.ref(ours.target)
        del ours
        worker.join(30)
        assert not worker.is_alive() and model() is None
    finally:
        gc.enable()


def test_an_engine_that_is_dropped_while_a_stream_is_left() -> None:
    before, ours = workers(), small()
    stream = ours.stream([1], max_new_tokens=LONG)
    next(stream)
    del ours, stream
    gc.collect()
    assert soon(lambda: not workers() - before)


def test_who_waits_for_a_result_is_woken_once() -> None:
    ours = small()
    for each in (False, True):
        task = ours.builder.task(prepare(ours, [1], max_new_tokens=30))
        events = ours.driver.events(task, each)
        calls: list[int] = []
        enter = ours.driver.enter

        def entered(task: Any, enter: Any = enter, calls: list[int] = calls) -> None:
            wake = task.wake
            task.wake = lambda: (calls.append(1), wake())
            enter(task)

        ours.driver.enter = entered  # type: ignore[method-assign]
        rounds = list(events)
        ours.driver.enter = enter  # type: ignore[method-assign]
        assert len(rounds) > 5 and len(calls) == (len(rounds) if each else 1)


def test_a_stream_goes_on_whoever_reads_it() -> None:
    """And a request that nobody listens to any more ends."""
    ours = small()
    stream = ours.stream([1], method="autoregressive", max_new_tokens=50)
    next(stream)
    assert soon(lambda: not ours.scheduler.busy)
    assert len(list(stream)) == 49
    stream = ours.stream([1], method="autoregressive", max_new_tokens=LONG)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    ours.driver.call(lambda: None)
    assert not ours.scheduler.busy and ours.scheduler.passes < LONG


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_would_end_the_process_ends_its_request(raised: type[BaseException]) -> None:
    def leave() -> bool:
        raise raised

    ours = small()
    expected = ours.generate([2], max_new_tokens=40, seed=2).tokens
    beside: list[Any] = []
    other = threading.Thread(target=lambda: beside.append(ours.generate([2], max_new_tokens=40, seed=2)))
    other.start()
    with pytest.raises(DraftwoodError, match=f"interrupted: one of its callbacks raised {raised.__name__}"):
        ours.generate([1], cancelled=leave)
    other.join(30)
    assert beside[0].tokens == expected and ours.broken is None


def test_what_the_scheduler_cannot_foresee_breaks_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait learn of it, and nobody waits afterwards."""
    ours = small()
    stream = ours.stream([1], max_new_tokens=LONG)
    next(stream)

    def broken(self: Scheduler) -> None:
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr(Scheduler, "step", broken)
    with pytest.raises(RuntimeError, match="on fire"):
        for _ in stream:
            pass
    assert ours.broken == "the machine is on fire" and not ours.scheduler.busy
    monkeypatch.undo()
    for ask in (ours.generate, lambda prompt: ours.batch([prompt]), lambda prompt: list(ours.stream(prompt))):
        with pytest.raises(DraftwoodError, match="the engine is broken: the machine is on fire; start another process"):
            ask([1])


def test_the_number_of_threads_is_that_of_who_asks() -> None:
    seen: list[int] = []

    def forward(prefix: Any) -> list[float]:
        seen.append(torch.get_num_threads())
        return [1.0, 1.0, 1.0, 1.0]

    before, ours = torch.get_num_threads(), Engine(TabularModel(forward, 4))
    try:
        for count in (2, 1, 3):
            torch.set_num_threads(count)
            seen.clear()
            ours.generate([count], "autoregressive", max_new_tokens=3)
            assert set(seen) == {count}
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """Also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("moment", (1, 8, 21))
def test_ctrl_c_leaves_the_engine_usable(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of any forward: who is interrupted ends, the others have their text."""
    forward, calls = Decoder.forward, []

    def interrupting(model: Decoder, batch: Batch, cache: Cache) -> Tensor:
        calls.append(1)
        if len(calls) == moment:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return forward(model, batch, cache)

    ours = engine()
    other = prepare(ours, [3, 4], seed=1, max_new_tokens=40)
    task = ours.builder.task(other)
    monkeypatch.setattr(Decoder, "forward", interrupting)
    with pytest.raises(KeyboardInterrupt):
        ours.driver.submit(task)
        ours.generate([1, 2], max_new_tokens=60)
    calls.clear()
    with pytest.raises(BatchInterrupted):
        ours.batch([[1], [2], [3]], max_new_tokens=60)
    monkeypatch.undo()
    assert soon(lambda: task.done) and task.error is None
    for round_ in task.events:
        other.note(round_)
    assert other.result().tokens == engine().generate([3, 4], seed=1, max_new_tokens=40).tokens
    settle(ours)


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_ctrl_c_in_a_batch_keeps_what_was_finished() -> None:
    ours, asked = small(), iter(range(1_000_000))

    def interrupting() -> bool:
        if next(asked) == 100:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    short = [{"prompt": [i], "max_new_tokens": 3} for i in range(3)]
    with pytest.raises(BatchInterrupted) as stopped:
        ours.batch([*short, {"prompt": [4], "cancelled": interrupting, "max_new_tokens": 100_000}])
    assert sorted(stopped.value.results) == [0, 1, 2]
    assert stopped.value.results[2].tokens == ours.generate([2], max_new_tokens=3).tokens
    assert not ours.scheduler.busy


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_any_call(seed: int) -> None:
    """Between any two calls of the waiting thread, wherever that may be: afterwards all is as before."""
    rng = random.Random(seed)
    methods = list(FAMILIES.values())
    expected = [engine().generate([i], method, max_new_tokens=6).tokens for i, method in enumerate(methods)]
    requests = [{"prompt": [i], "method": method} for i, method in enumerate(methods)]
    left = 0

    def tracer(frame: Any, event: str, argument: object) -> None:
        nonlocal left
        if event == "call" and ("draftwood" in frame.f_code.co_filename or "threading" in frame.f_code.co_filename):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    def interrupted(ask: Callable[[], object]) -> None:
        gc.disable()  # else destructors of what other tests left are called here, which swallow an interrupt
        sys.setprofile(tracer)
        try:
            ask()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
            gc.enable()

    for number in range(12):
        ours = engine(kv_cache_bytes=2500 * SLOT)  # its thread begins within the call
        asks: list[Callable[[], object]] = [
            lambda ours=ours: ours.batch(requests, max_new_tokens=6),  # type: ignore[misc]
            lambda ours=ours: ours.generate([1], max_new_tokens=6),  # type: ignore[misc]
            lambda ours=ours: list(ours.stream([1], max_new_tokens=6)),  # type: ignore[misc]
        ]
        left = rng.randrange(1, 6000 if number % 3 == 0 else 900)
        interrupted(asks[number % 3])
        assert soon(lambda ours=ours: not ours.scheduler.busy)  # type: ignore[misc]
        assert [result.tokens for result in ours.batch(requests, max_new_tokens=6)] == expected
        settle(ours)


FORK = """
import os, sys, threading, time
import torch
torch.set_num_threads(1)
from draftwood import Engine, TabularModel

def child(work):
    pid = os.fork()
    if not pid:
        try:
            print(work(), flush=True)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

engine = Engine(TabularModel.random(6, seed=1, order=5))
ask = lambda: engine.generate([1, 2], max_new_tokens=12, seed=3).tokens
child(ask)  # before it was used
print(ask(), flush=True)
child(ask)  # after
stream = engine.stream([1], max_new_tokens=100_000)
next(stream)
child(ask)  # meanwhile
stream.close()
print(ask(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_a_thread_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *fine, meanwhile, last = done.stdout.splitlines()
    assert len({*fine, last}) == 1 and len(fine) == 3
    assert "the engine is broken: this process was forked while requests ran" in meanwhile and "load them" in meanwhile


EXIT = """
import threading, time, torch
torch.set_num_threads(1)
from draftwood import Engine, TabularModel, load
engine, small = load(), Engine(TabularModel.random(6, seed=1))
stream = engine.stream("Once", max_new_tokens=900, ignore_eos=True)
print(next(stream).tokens is not None)
others = [threading.Thread(target=list, args=(small.stream([1], max_new_tokens=10**6),), daemon=True) for _ in range(3)]
for thread in others:
    thread.start()
while small.scheduler.passes < 10:
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_process_ends_while_requests_run() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
