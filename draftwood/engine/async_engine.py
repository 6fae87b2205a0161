"""The engine for asyncio: requests of one or more event loops share the forwards, which a thread computes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, Unpack

from draftwood.core.records import Round
from draftwood.engine.engine import Engine, StreamEvent
from draftwood.engine.generation import Generation
from draftwood.engine.request import Limits, MethodSpec, Options, Prompt
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores
from draftwood.errors import DraftwoodError
from draftwood.runtime.resident import give_back
from draftwood.runtime.task import Task
from draftwood.sampling.params import SamplingParams

log = logging.getLogger(__name__)

Prepare = Callable[[Generation], object]
RESTS = 1.0  # seconds without requests, after which free memory goes back to the system
STAYS = 10.0  # more of them that the thread waits: one for each burst would be slow, and cost memory


class AsyncEngine:
    """An `Engine` whose methods are awaited; the engine itself may be used at the same time, from any thread.

    Where an asyncio task is cancelled, or an `async for` is left, the request ends too. A daemon thread steps while
    there is work, and waits a little for more. `aclose`, or leaving `async with`, ends what is under way and refuses
    what comes later.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Condition()
        self._live: set[Task[Any]] = set()
        self._thread: threading.Thread | None = None
        self._told: deque[_Waiter] = deque()  # of those that wait, whom to wake after the step
        self._closed: DraftwoodError | None = None  # what requests are told from then on
        self._broken: BaseException | None = None

    @property
    def broken(self) -> str | None:
        """Why nothing is computed any more: what ended the thread that steps. A new process is the only remedy."""
        with self._lock:  # in which threads are started, and say that they are through
            dead = self._thread is not None and not self._thread.is_alive()
        if dead and self._broken is None:
            self._fail(DraftwoodError("the thread that computes has ended"))
        if self._broken is None:
            return self.engine.broken
        return str(self._broken) or type(self._broken).__name__

    async def generate(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        **limits: Unpack[Limits],
    ) -> GenerationResult:
        """As `Engine.generate`; Overloaded where the queue is full."""
        one = _Request(
            self, prompt, method=method, sampling=sampling, max_new_tokens=max_new_tokens, seed=seed, **limits
        )
        try:
            await one.begin(each=False)
            await one.waiter.end(one.task)
            while one.task.events:
                one.generation.note(one.task.events.popleft())
            return one.generation.result()
        finally:
            one.close()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """As `Engine.stream`, for `async for`; bad input is refused when the first event is awaited."""
        return AsyncStream(_Request(self, prompt, **options))

    def together(self, requests: Sequence[Mapping[str, Any]], prepare: Prepare | None = None) -> AsyncBatch:
        """Several streams as one: each request is {"prompt": ..., option: value}, as in `Engine.batch`.

        They share the machine with others as one request does. `prepare` is handed each generation before it is queued.
        """
        call = object()
        return AsyncBatch([_Request(self, prepare=prepare, call=call, **request) for request in requests])

    async def score(self, prompt: Prompt, top_logprobs: int = 0) -> PromptScores:
        """As `Engine.score`."""
        waiter = _Waiter(self)
        made = await asyncio.to_thread(self.engine.scoring, prompt, top_logprobs)
        made.notify = lambda: self.told(waiter, made, False)
        try:
            self.submit(made)
            await waiter.end(made)
            return made.events.popleft()
        finally:
            self.engine.scheduler.cancel(made)

    async def aclose(self, error: DraftwoodError | None = None) -> None:
        """End all requests that came through here, wait until their memory is given back, and refuse others.

        `error` is what both are told.
        """
        with self._lock:
            self._closed = error or DraftwoodError("the AsyncEngine is closed; make another one")
            self._lock.notify()
            live, thread = list(self._live), self._thread
        for task in live:
            self.engine.scheduler.cancel(
                task, error or DraftwoodError("the AsyncEngine was closed before the request had ended")
            )
        if thread is not None:
            await asyncio.to_thread(thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def submit(self, task: Task[Any]) -> None:
        """Queue a request, and see to it that a thread steps."""
        if self.broken:
            raise DraftwoodError(f"the engine is broken: {self.broken}; start another process")
        with self._lock:
            if self._closed:
                raise self._closed
            self._live.add(task)
            try:
                self.engine.scheduler.submit(task)
            except BaseException:
                self._live.discard(task)
                raise
            if self._thread is None:
                self._thread = threading.Thread(target=self._step, name="draftwood", daemon=True)
                self._thread.start()
            self._lock.notify()

    def told(self, waiter: _Waiter, task: Task[Any], each: bool) -> None:
        """From the thread that steps: a task has an event, or has ended. Whoever waits is woken once a step."""
        if task.done:
            self._live.discard(task)
        if each or task.done:
            self._told.append(waiter)
            if threading.current_thread() is not self._thread:
                self._wake()

    def _wake(self) -> None:
        """Wake all that were told something: one call for each event loop."""
        loops: dict[asyncio.AbstractEventLoop, set[_Waiter]] = {}
        with suppress(IndexError):
            while True:
                waiter = self._told.popleft()
                loops.setdefault(waiter.loop, set()).add(waiter)
        for loop, waiters in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_set, waiters)

    def _idle(self) -> bool:
        """After each step: whether none is left."""
        if self._told:
            self._wake()
        return not self._live

    def _step(self) -> None:
        """Step, or sleep while another thread does, until no request is left."""
        while True:
            try:
                self.engine.scheduler.until(self._idle)
            except Exception as error:  # the scheduler ends requests, not itself: it is broken
                log.exception("the thread that computes has ended")
                self._fail(error)
                return
            except BaseException:  # such as SystemExit of a callback, whose request has ended
                log.exception("a callback raised what would end the process")
            self._wake()
            with self._lock:
                rests = not self._live and not self._closed and not self._lock.wait(RESTS)
            if rests:
                give_back()  # the load has ended
            with self._lock:
                if rests and not self._live and not self._closed:
                    self._lock.wait(STAYS)
                if not self._live:
                    self._thread = None
                    return

    def _fail(self, error: BaseException) -> None:
        """Nothing will be computed any more: all that wait learn of it."""
        self._broken = error
        for task in list(self._live):
            task.error = task.error or error
            task.finish()
        self._wake()


class _Waiter:
    """What wakes a coroutine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.loop = asyncio.get_running_loop()
        self.awake = asyncio.Event()

    async def end(self, task: Task[Any]) -> None:
        """Wait for the end of a task; raises what ended it."""
        while not task.done:
            await self.awake.wait()
            self.awake.clear()
        if task.error is not None:
            raise task.error


def _set(waiters: set[_Waiter]) -> None:
    for waiter in waiters:
        waiter.awake.set()


class _Request:
    """One request: its generation, its task, and the end of both."""

    def __init__(
        self,
        engine: AsyncEngine,
        prompt: Prompt,
        prepare: Prepare | None = None,
        call: object | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._engine, self._prepare, self._call = engine, prepare, call
        self._make = lambda: engine.engine.generation(prompt, **options)
        self.begun = False
        self.waiter: _Waiter
        self.generation: Generation
        self.task: Task[Round]

    async def begin(self, each: bool, waiter: _Waiter | None = None) -> None:
        """Check and queue the request; `each`: wake up for every round, not for the end only."""
        self.waiter = waiter or _Waiter(self._engine)
        # in a thread, since parts of the method may have to be read from a disk first
        self.generation = await asyncio.to_thread(self._make)
        if self._prepare is not None:
            self._prepare(self.generation)
            self._prepare = None  # a request that runs must not keep alive whoever waits for it
        self.task = self._engine.engine.task(
            self.generation, lambda: self._engine.told(self.waiter, self.task, each), self._call
        )
        self._engine.submit(self.task)
        self.begun = True

    def close(self) -> None:
        """End the request unless it has ended."""
        if self.begun:
            self._engine.engine.scheduler.cancel(self.task)


class AsyncBatch(AsyncIterator[list[tuple[int, StreamEvent]]]):
    """The rounds of several requests as they come: [(place among the requests, event), ...] since the last time.

    An error of one of them ends all. Dropping it, or `aclose`, ends the requests.
    """

    def __init__(self, requests: Sequence[_Request]) -> None:
        self._requests = requests
        self._waiter: _Waiter | None = None
        self._live: list[tuple[int, _Request]] = []
        self._closed = False

    async def begin(self) -> None:
        """Check and queue the requests, if that was not done yet; Overloaded where the queue is full."""
        if self._waiter is not None or self._closed:
            return
        try:
            self._waiter = _Waiter(self._requests[0]._engine) if self._requests else None
            for place, request in enumerate(self._requests):
                await request.begin(True, self._waiter)
                self._live.append((place, request))
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[tuple[int, StreamEvent]]:
        try:
            await self.begin()
            while self._live and not self._closed:
                assert self._waiter is not None
                self._waiter.awake.clear()
                if found := self._taken():
                    return found
                if self._live:
                    await self._waiter.awake.wait()
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    def _taken(self) -> list[tuple[int, StreamEvent]]:
        """What has come by now."""
        found = []
        for place, request in list(self._live):
            task = request.task
            done = task.done
            while task.events:
                found.append((place, Engine.event(request.generation, task.events.popleft())))
            if done and task.error is not None:
                if found:
                    break  # first what came before
                raise task.error
            if done:
                self._live.remove((place, request))
        return found

    async def aclose(self) -> None:
        """End the requests unless they have ended."""
        self._closed = True
        for request in self._requests:
            request.close()

    def __del__(self) -> None:
        for request in self._requests:
            request.close()


class AsyncStream(AsyncIterator[StreamEvent]):
    """The rounds of one request as they come. Dropping it, or `aclose`, ends the request."""

    def __init__(self, request: _Request) -> None:
        self._batch = AsyncBatch([request])
        self._events: deque[StreamEvent] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if not self._events:
            self._events.extend(event for _, event in await anext(self._batch))
        return self._events.popleft()

    async def aclose(self) -> None:
        """End the request unless it has ended."""
        self._events.clear()
        await self._batch.aclose()
