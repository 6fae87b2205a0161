"""The only driver: carries out many requests at once, a draft pass and a target pass at a time.

Requests are decoding code that yields runs (runtime/session.py). An error ends the request that caused it and no other.
Every method may be called from any thread: whoever waits for a request lets all of them go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock
from time import perf_counter
from typing import Any, Generic

import torch

from draftwood.errors import OutOfMemory, Overloaded, RequestError
from draftwood.models.base import CausalModel
from draftwood.runtime.cost import Costs
from draftwood.runtime.executor import Pending, sweep
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.session import Answer, Decoding, Event, Run, Session

SLACK = 0.15  # of a target pass: how long one request waits, at most, for another one that drafts
SHORT = 128  # rows of a run that is never computed in pieces
CAUGHT_UP = 2  # rows that a run may have beside those asked for and still tell what such a run costs
RECENT = 0.2  # weight of the newest target pass in the mean of their seconds


@dataclass(slots=True, eq=False)
class Task(Generic[Event]):
    """One request in the scheduler: what it wishes for, and what came of it that nobody has taken yet."""

    start: Callable[[], Decoding[Event]]
    sessions: Sequence[Session]
    prompt: int  # tokens
    most: int  # slots that it may hold at once in the end
    adapts: bool = False  # whether it drafts by the load
    notify: Callable[[], object] | None = None  # told of each event and of the end, from the thread that steps
    events: deque[Event] = field(default_factory=deque)
    error: BaseException | None = None
    done: bool = False
    cancelled: bool = False
    run: Run | None = None
    pending: Pending | None = None
    verified: int = 1  # rows of its last target run
    preempted: int = 0  # times that it was put back
    _decoding: Decoding[Event] | None = None

    def advance(self, answer: Answer | None) -> None:
        """Go on until the next run or the end; raises what the request raises."""
        self.run = self.pending = None
        with torch.inference_mode():
            if self._decoding is None:
                self._decoding = self.start()
                wish = next(self._decoding, None)
            else:
                try:
                    wish = self._decoding.send(answer)
                except StopIteration:
                    wish = None
            while wish is not None and not isinstance(wish, Run):
                self.events.append(wish)
                if self.notify is not None:
                    self.notify()
                wish = next(self._decoding, None)
        self.run = wish
        self.done = wish is None
        if wish is not None and not wish.drafts:
            self.verified = len(wish.nodes)

    def close(self) -> None:
        """End it where it stands; its sessions give back what they hold."""
        self.run = self.pending = None
        if self._decoding is not None:
            self._decoding.close()
        for session in self.sessions:
            session.close()
        self.done = True

    def put_back(self) -> None:
        """Give all memory back; what the next run needs is computed anew."""
        self.pending = None
        self.preempted += 1
        for session in self.sessions:
            session.forget()

    @property
    def held(self) -> int:
        """Slots that it holds, in the largest of its sessions."""
        return max((session.live_slots for session in self.sessions), default=0)

    def bytes(self, slots: int) -> int:
        """What so many slots take in all of its sessions."""
        return sum(session.slot_bytes * session.cache.capacity(slots) for session in self.sessions)


class Scheduler:
    """Carries out tasks, at most `running` at once, the others in the order in which they came.

    `queue`: how many may wait. `chunk`: rows of prompts that one pass computes, so that others need not wait for long.
    `memory`: bytes of keys and values, of all models together; None: no limit.
    """

    def __init__(
        self,
        prefixes: PrefixCache | None = None,
        running: int = 64,
        queue: int | None = None,
        chunk: int = 512,
        memory: int | None = None,
    ) -> None:
        self.prefixes = prefixes or PrefixCache()
        self.running, self.queue, self.chunk, self.memory = running, queue, chunk, memory
        self.active: list[Task[Any]] = []
        self.waiting: deque[Task[Any]] = deque()
        self.costs = Costs()  # of passes, measured as they run
        self.steps = 0
        self.preempted = 0
        self._lock = RLock()
        self.load = (1, 0, 0)  # see `_count`
        self._stepping = False
        self._dropped = False  # whether anyone was cancelled
        self._target_seconds = 0.0  # of a target pass, a moving mean
        self._drafted = 0.0  # seconds of draft passes since the last target pass

    def submit(self, task: Task[Event]) -> Task[Event]:
        """Queue a request. Raises RequestError where it cannot ever fit, Overloaded where the queue is full."""
        if self.memory is not None and (need := task.bytes(task.most)) > self.memory:
            raise RequestError(
                f"the request needs up to {need:,} bytes of keys and values ({task.most:,} tokens), but the budget is "
                f"{self.memory:,}; shorten the prompt, lower max_new_tokens or raise the budget"
            )
        with self._lock:
            if self.queue is not None and len(self.waiting) >= self.queue:
                raise Overloaded(f"{len(self.waiting)} requests are waiting, which is the limit; ask again later")
            self.waiting.append(task)
        return task

    def cancel(self, task: Task[Any]) -> None:
        """End a request wherever it stands; one that has ended stays as it is."""
        with self._lock:
            if task.done:
                return
            task.cancelled = self._dropped = True
            if not self._stepping:  # else the step does it when it is through with it
                self._drop_cancelled()

    def wait(self, tasks: Iterable[Task[Any]]) -> None:
        """Let all requests go on until one of some has an event or has ended."""
        tasks = list(tasks)
        while not any(task.events or task.done for task in tasks):
            with self._lock:
                if not any(task.events or task.done for task in tasks):  # else another thread was faster
                    self.step()

    def events(self, task: Task[Event]) -> Iterator[Event]:
        """A request's events as they come, letting all requests go on while there are none; closing it cancels.

        Raises what ended the request.
        """
        try:
            while True:
                while task.events:
                    yield task.events.popleft()
                if task.done:
                    break
                self.wait((task,))
            if task.error is not None:
                raise task.error
        finally:
            self.cancel(task)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.active or self.waiting)

    def step(self) -> None:
        """A draft pass for all that draft, and a target pass where it is due."""
        with self._lock:
            if self._stepping:
                raise RuntimeError("a step is under way in this thread: a callback must not wait for other requests")
            self._stepping = True
            try:
                self._count()
                self._admit()
                self.steps += 1
                if drafting := [task for task in self.active if task.run is not None and task.run.drafts]:
                    began = perf_counter()
                    self._pass(drafting)
                    self._drafted += perf_counter() - began
                if (ready := [task for task in self.active if task.run is not None and not task.run.drafts]) and (
                    self._due(ready)
                ):
                    began = perf_counter()
                    self._pass(ready)
                    seconds = perf_counter() - began
                    self._target_seconds += (RECENT if self._target_seconds else 1) * (seconds - self._target_seconds)
                    self._drafted = 0.0
            finally:
                self._stepping = False
                self._drop_cancelled()

    def _due(self, ready: Sequence[Task[Any]]) -> bool:
        """Whether the target runs now, or waits for those that draft still: the fewer wait for the more."""
        drafting = len(self.active) - len(ready)
        return not drafting or self._drafted >= SLACK * self._target_seconds * drafting / len(ready)

    def _count(self) -> None:
        """How many requests run, or are about to, that draft by the load, how many that do not, and rows of those."""
        running = [*self.active, *islice(self.waiting, self.running - len(self.active))]
        rows = [task.verified for task in running if not task.adapts]
        self.load = max(1, len(running) - len(rows)), len(rows), sum(rows)

    def _admit(self) -> None:
        """Let the first of those that wait begin, or go on, while there is room."""
        while self.waiting and len(self.active) < self.running:
            task = self.waiting[0]
            if self.active and not self._fits(task):
                break
            self.active.append(self.waiting.popleft())
            if task.run is None:
                self._advance(task, None)

    def _fits(self, task: Task[Any]) -> bool:
        """Whether a task's prompt, or what it had, has room beside the others."""
        if self.memory is None:
            return True
        held = sum(other.bytes(max(other.held, other.prompt)) for other in self.active)
        return held + task.bytes(max(task.prompt, task.held) + SHORT) <= self.memory

    def _pass(self, tasks: Sequence[Task[Any]]) -> None:
        """Answer runs, model by model, and let their tasks go on."""
        groups: dict[CausalModel, list[Task[Any]]] = {}
        for task in tasks:
            if task.run is not None:
                groups.setdefault(task.run.session.model, []).append(task)
        for model, members in groups.items():
            began = perf_counter()
            room, limits = self.chunk, []
            chosen: list[Task[Any]] = []
            for task in members:
                if self._prepare(task):
                    assert task.pending is not None
                    rows = len(task.pending.rows)
                    limit = rows if rows <= SHORT else min(rows, room)
                    room -= limit if rows > SHORT else 0
                    if limit or not rows:
                        chosen.append(task)
                        limits.append(limit)
            held = [(task, limit) for task, limit in zip(chosen, limits, strict=True) if task.pending is not None]
            runs = [task.pending for task, _ in held if task.pending is not None]
            rows = sum(limit for _, limit in held)
            before = sum(run.answer.rows for run in runs)
            self._sweep([task for task, _ in held], [limit for _, limit in held])
            if all(len(run.rows) == 0 for run in runs) and rows <= sum(len(run.run.nodes) + CAUGHT_UP for run in runs):
                full = sum(run.answer.rows for run in runs) - before
                self.costs.add(model, rows, full, perf_counter() - began)

    def _prepare(self, task: Task[Any]) -> bool:
        """Allot slots to a task's run; where memory is short, the youngest task is put back until there is enough."""
        while task.pending is None and task.run is not None:
            try:
                task.pending = Pending.of(task.run)
            except OutOfMemory as error:
                if self.prefixes.forget():
                    continue
                # states that a run reads of another model's run are lost with that model's keys and values
                youngest = next((t for t in reversed(self.active) if t.run is None or t.run.given is None), task)
                if len(self.active) == 1:
                    self._end(task, error)
                    return False
                self.active.remove(youngest)
                youngest.put_back()
                self.preempted += 1
                self.waiting.appendleft(youngest)
                if youngest is task:
                    return False
            except Exception as error:
                self._end(task, error)
        return task.pending is not None

    def _sweep(self, tasks: Sequence[Task[Any]], limits: Sequence[int]) -> None:
        """Compute rows of runs on one model, and answer those that have none left."""
        if not tasks:
            return
        try:
            with torch.inference_mode():
                sweep([task.pending for task in tasks if task.pending is not None], limits)
        except Exception as error:
            if len(tasks) == 1:
                self._end(tasks[0], error)
                return
            for task, limit in zip(tasks, limits, strict=True):  # one of them is at fault: each for itself
                self._sweep([task], [limit])
            return
        for task in tasks:
            if task.pending is not None and not task.pending.rows:
                self._advance(task, task.pending.finish())

    def _advance(self, task: Task[Any], answer: Answer | None) -> None:
        try:
            task.advance(answer)
        except BaseException as error:
            self._end(task, error)
            if not isinstance(error, Exception):
                raise
        else:
            if task.done:
                self._end(task)

    def _end(self, task: Task[Any], error: BaseException | None = None) -> None:
        """A task is over; what it held is given back."""
        task.error = error
        try:
            task.close()
        except Exception as problem:
            task.error = task.error or problem
        task.done = True
        self.active = [other for other in self.active if other is not task]
        if task.notify is not None:
            task.notify()

    def _drop_cancelled(self) -> None:
        if not self._dropped:
            return
        self._dropped = False
        for task in [*self.active, *self.waiting]:
            if task.cancelled and not task.done:
                self._end(task)
        self.waiting = deque(task for task in self.waiting if not task.done)
