"""The engine for asyncio: event loops wait for the worker thread of an engine, which computes for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from threading import Lock
from typing import Any, Self, Unpack
from weakref import WeakKeyDictionary, ref

from draftwood.core.records import Round
from draftwood.engine.engine import Engine, StreamEvent, prepare, stream_event
from draftwood.engine.generation import Generation
from draftwood.engine.request import MethodSpec, MoreOptions, Options, Prompt, lists_options
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores
from draftwood.errors import DraftwoodError
from draftwood.runtime.task import DecodingTask
from draftwood.sampling.params import SamplingParams

Prepare = Callable[[Generation], object]


class AsyncEngine:
    """An `Engine` whose methods are awaited; the engine itself may be used at the same time, from any thread.

    Where an asyncio task is cancelled, or an `async for` is left, the request ends too. `aclose`, or leaving
    `async with`, ends what is under way and refuses what comes later.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = Lock()
        self._live: set[DecodingTask[Any]] = set()  # those of its tasks that have not ended
        self._closed: DraftwoodError | None = None  # the error of requests that come from then on
        self._alarms: WeakKeyDictionary[asyncio.AbstractEventLoop, _Alarm] = WeakKeyDictionary()

    @property
    def broken(self) -> str | None:
        """Why nothing can be computed any more; only a new process mends that."""
        return self.engine.broken

    @lists_options
    async def generate(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        **options: Unpack[MoreOptions],
    ) -> GenerationResult:
        """As `Engine.generate`; Overloaded where the queue is full."""
        one = _Request(
            self, prompt, method=method, sampling=sampling, max_new_tokens=max_new_tokens, seed=seed, **options
        )
        try:
            await one.begin(False, bell := _Bell())
            await _ended(one.task, bell)
            for round_ in one.task.events:
                one.generation.note(round_)
            return one.generation.result()
        finally:
            one.close()

    @lists_options
    async def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGenerator[StreamEvent, None]:
        """As `Engine.stream`, for `async for`; bad input is refused when the first event is awaited.

        Dropping it, or `aclose`, ends the request.
        """
        async with aclosing(AsyncBatch([_Request(self, prompt, **options)])) as batch:
            async for events in batch:
                for _, event in events:
                    yield event

    def together(self, requests: Sequence[Mapping[str, Any]], prepare: Prepare | None = None) -> AsyncBatch:
        """Several streams as one: each request is {"prompt": ..., option: value}, as in `Engine.batch`.

        They share the machine with others as one request does. `prepare` is handed each generation before it is queued.
        """
        call = object()
        return AsyncBatch([_Request(self, prepare=prepare, call=call, **request) for request in requests])

    async def score(self, prompt: Prompt, top_logprobs: int = 0) -> PromptScores:
        """As `Engine.score`."""
        bell = _Bell()
        checked = await asyncio.to_thread(self.engine.requests.scoring, prompt, top_logprobs)
        task = self.engine.builder.scoring_task(*checked)
        try:
            self._submit(task, bell, each=False)
            await _ended(task, bell)
            return task.events.popleft()
        finally:
            self.engine.driver.cancel(task)

    async def aclose(self, error: DraftwoodError | None = None) -> None:
        """End all requests that came through here, wait until their memory is given back, and refuse others.

        `error` is what they end with, and what others are refused with.
        """
        with self._lock:
            self._closed = error or DraftwoodError("the AsyncEngine is closed; make another one")
            live = list(self._live)
        for task in live:
            self.engine.driver.cancel(
                task, error or DraftwoodError("the AsyncEngine was closed before the request had ended")
            )
        if live:
            await asyncio.to_thread(self.engine.driver.call, lambda: None)  # which comes after these

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _submit(self, task: DecodingTask[Any], bell: _Bell, each: bool) -> None:
        """Queue a task that rings a bell of the running event loop: when there are events, or at its end alone."""
        loop, live = asyncio.get_running_loop(), self._live
        with self._lock:
            alarm = self._alarms.setdefault(loop, _Alarm(loop))

        def wake() -> None:
            if task.done:
                live.discard(task)
            alarm.ring(bell)

        task.wake, task.wake_each = wake, each
        with self._lock:
            if self._closed:
                raise self._closed
            live.add(task)
        try:
            self.engine.driver.submit(task)
        except BaseException:
            live.discard(task)
            raise


class _Bell:
    """What one coroutine waits with, behind each look at the tasks that ring it; in between it rings unheard."""

    def __init__(self) -> None:
        self._heard: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the coroutine, in its event loop."""
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def heard(self) -> asyncio.Future[None]:
        """To be awaited: the next time that it rings."""
        self._heard = asyncio.get_running_loop().create_future()
        return self._heard


class _Alarm:
    """Rings bells of one event loop from other threads: many with one call, because each is a system call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._due: deque[_Bell] = deque()
        self._called = False

    def ring(self, bell: _Bell) -> None:
        """Have a bell rung, from any thread."""
        self._due.append(bell)
        loop = self._loop()
        if not self._called and loop is not None:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._called = False  # before the bells are rung: what is due from now on has a call of its own
        while self._due:
            self._due.popleft().ring()


async def _ended(task: DecodingTask[Any], bell: _Bell) -> None:
    """Wait for the end of a task; raises what ended it."""
    while not task.done:
        await bell.heard()
    if task.error is not None:
        raise task.error


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
        self._prompt, self._options = prompt, options
        self.begun = False
        self.generation: Generation
        self.task: DecodingTask[Round]

    async def begin(self, each: bool, bell: _Bell) -> None:
        """Check and queue the request, which rings a bell; `each`: whenever there are rounds, not at the end only."""
        # in a thread, because parts of the method may have to be read from a disk first
        self.generation = await asyncio.to_thread(prepare, self._engine.engine, self._prompt, **self._options)
        if self._prepare is not None:
            self._prepare(self.generation)
            self._prepare = None  # a request that runs must not keep alive whoever waits for it
        self.task = self._engine.engine.builder.task(self.generation, self._call)
        self._engine._submit(self.task, bell, each)
        self.begun = True

    def close(self) -> None:
        """End the request unless it has ended."""
        if self.begun:
            self._engine.engine.driver.cancel(self.task)


class AsyncBatch(AsyncIterator[list[tuple[int, StreamEvent]]]):
    """The rounds of several requests as they come: [(place among the requests, event), ...] since the last time.

    An error of one of them ends all. Dropping it, or `aclose`, ends the requests.
    """

    def __init__(self, requests: Sequence[_Request]) -> None:
        self._requests = requests
        self._bell: _Bell | None = None
        self._live: list[tuple[int, _Request]] = []
        self._closed = False

    async def begin(self) -> None:
        """Check and queue the requests, if that was not done yet; Overloaded where the queue is full."""
        if self._bell is not None or self._closed:
            return
        try:
            self._bell = _Bell()
            for place, request in enumerate(self._requests):
                await request.begin(True, self._bell)
                self._live.append((place, request))
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[tuple[int, StreamEvent]]:
        try:
            if self._bell is None:
                await self.begin()
            while self._live and not self._closed:
                if events := self._taken():
                    return events
                if self._live and self._bell is not None:
                    await self._bell.heard()
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    def _taken(self) -> list[tuple[int, StreamEvent]]:
        """Take the events that have come by now."""
        taken: list[tuple[int, StreamEvent]] = []
        for place, request in tuple(self._live):
            task = request.task
            done, events = task.done, task.events
            while events:
                taken.append((place, stream_event(request.generation, events.popleft())))
            if done:
                if task.error is not None:
                    if taken:
                        break  # first what came before
                    raise task.error
                self._live.remove((place, request))
        return taken

    async def aclose(self) -> None:
        """End the requests unless they have ended."""
        self._closed = True
        for request in self._requests:
            request.close()

    def __del__(self) -> None:
        for request in self._requests:
            request.close()
