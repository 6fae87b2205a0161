"""The engine for asyncio: requests of one or more event loops share the forwards, which a thread computes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self, Unpack

from draftwood.core.records import Round
from draftwood.engine import Engine, StreamEvent
from draftwood.errors import DraftwoodError
from draftwood.generation import Generation
from draftwood.params import SamplingParams
from draftwood.request import Limits, MethodSpec, Options, Prompt
from draftwood.results import GenerationResult
from draftwood.runtime.task import Task

log = logging.getLogger(__name__)


class AsyncEngine:
    """An `Engine` whose methods are awaited; the engine itself may be used at the same time, from any thread.

    Where an asyncio task is cancelled, or an `async for` is left, the request ends too. A daemon thread steps while
    there is work. `aclose`, or leaving `async with`, ends what is under way and refuses what comes later.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._live: set[Task[Round]] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

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
        stream = _Rounds(
            self, prompt, method=method, sampling=sampling, max_new_tokens=max_new_tokens, seed=seed, **limits
        )
        try:
            await stream.end()
            while stream.task.events:
                stream.generation.note(stream.task.events.popleft())
            return stream.generation.result()
        finally:
            stream.close()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """As `Engine.stream`, for `async for`; bad input is refused when the first event is awaited."""
        return AsyncStream(_Rounds(self, prompt, **options))

    async def aclose(self) -> None:
        """End all requests that came through here, wait until their memory is given back, and refuse others."""
        with self._lock:
            self._closed = True
            live, thread = list(self._live), self._thread
        for task in live:
            self.engine.scheduler.cancel(
                task, DraftwoodError("the AsyncEngine was closed before the request had ended")
            )
        if thread is not None:
            await asyncio.to_thread(thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def submit(self, task: Task[Round]) -> None:
        """Queue a request, and see to it that a thread steps."""
        with self._lock:
            if self._closed:
                raise DraftwoodError("the AsyncEngine is closed; make another one")
            self._live.add(task)
            try:
                self.engine.scheduler.submit(task)
            except BaseException:
                self._live.discard(task)
                raise
            if self._thread is None:
                self._thread = threading.Thread(target=self._step, name="draftwood", daemon=True)
                self._thread.start()

    def ended(self, task: Task[Round]) -> None:
        """A request needs no steps any more."""
        self._live.discard(task)

    def _step(self) -> None:
        """Step, or sleep while another thread does, until no request is left."""
        while True:
            try:
                self.engine.scheduler.until(lambda: not self._live)
            except BaseException:  # such as SystemExit of a callback, whose request has ended
                log.exception("a callback raised what would end the process")
            with self._lock:
                if not self._live:
                    self._thread = None
                    return


class _Rounds:
    """One request: what wakes the coroutine that awaits it, and its end."""

    def __init__(self, engine: AsyncEngine, prompt: Prompt, **options: Unpack[Options]) -> None:
        self._engine = engine
        self._make = lambda: engine.engine.generation(prompt, **options)
        self._wake: Callable[[], object] = lambda: None
        self._each = False
        self.begun = False
        self.generation: Generation
        self.task: Task[Round]

    async def begin(self, each: bool) -> None:
        """Check and queue the request; `each`: wake up for every round, not for the end only."""
        loop, self._awake = asyncio.get_running_loop(), asyncio.Event()
        self._wake, self._each = lambda: loop.call_soon_threadsafe(self._awake.set), each
        # in a thread, since parts of the method may have to be read from a disk first
        self.generation = await asyncio.to_thread(self._make)
        self.task = self._engine.engine.task(self.generation, self._told)
        self._engine.submit(self.task)
        self.begun = True

    def _told(self) -> None:
        """From the thread that steps: there is a round, or the end."""
        if self.task.done:
            self._engine.ended(self.task)
        if self._each or self.task.done:
            self._wake()

    async def end(self) -> None:
        """Wait for the end; raises what ended the request."""
        await self.begin(each=False)
        while not self.task.done:
            await self._awake.wait()
        if self.task.error is not None:
            raise self.task.error

    async def next(self) -> Round | None:
        """The next round; None at the end. Raises what ended the request."""
        if not self.begun:
            await self.begin(each=True)
        while True:
            self._awake.clear()
            done = self.task.done
            if self.task.events:
                return self.task.events.popleft()
            if done:
                if self.task.error is not None:
                    raise self.task.error
                return None
            await self._awake.wait()

    def close(self) -> None:
        """End the request unless it has ended."""
        if self.begun:
            self._engine.engine.scheduler.cancel(self.task)


class AsyncStream(AsyncIterator[StreamEvent]):
    """The rounds of one request as they come. Dropping it, or `aclose`, ends the request."""

    def __init__(self, rounds: _Rounds) -> None:
        self._rounds = rounds
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._closed:
            raise StopAsyncIteration
        try:
            round_ = await self._rounds.next()
        except BaseException:
            await self.aclose()
            raise
        if round_ is None:
            self._closed = True
            raise StopAsyncIteration
        return Engine.event(self._rounds.generation, round_)

    async def aclose(self) -> None:
        """End the request unless it has ended."""
        self._closed = True
        self._rounds.close()

    def __del__(self) -> None:
        self._rounds.close()
