"""The only driver: carries out many requests at once, a draft pass and a target pass at a time.

Requests are decoding code that yields runs (runtime/session.py). An error ends the request that caused it and no other.
Every method may be called from any thread: whoever waits for a request lets all of them go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock
from time import perf_counter
from typing import Any, Generic

import torch

from draftwood.errors import OutOfMemory, Overloaded, RequestError
from draftwood.models.base import CausalModel
from draftwood.runtime.executor import Pending, sweep
from draftwood.runtime.policy import SHORT, Policy
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.session import Answer, Decoding, Event, Run, Session


@dataclass(slots=True, eq=False)
class Task(Generic[Event]):
    """One request in the scheduler: what it wishes for, and what came of it that nobody has taken yet."""

    start: Callable[[], Decoding[Event]]
    sessions: Sequence[Session]
    prompt: int  # tokens
    most: int  # slots that it may hold at once in the end
    notify: Callable[[], object] | None = None  # told of each event and of the end, from the thread that steps
    events: deque[Event] = field(default_factory=deque)
    error: BaseException | None = None
    done: bool = False
    cancelled: bool = False
    run: Run | None = None
    pending: Pending | None = None
    drafted: bool = False  # whether it has drafted since the target answered it last
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
        self.running, self.queue, self.memory, self.policy = running, queue, memory, Policy(chunk)
        self.active: list[Task[Any]] = []
        self.waiting: deque[Task[Any]] = deque()
        self.steps = self.passes = 0  # passes of targets
        self.preempted = 0
        self._lock = RLock()
        self._stepping = False
        self._dropped = False  # whether anyone was cancelled

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
                self._admit()
                self.steps += 1
                policy, (drafting, ready) = self.policy, self._wishes()
                if drafting and policy.may_draft([task.drafted for task in ready]):
                    began = perf_counter()
                    self._pass(drafting)
                    policy.draft_pass(perf_counter() - began)
                    drafting, ready = self._wishes()
                if ready and policy.due([task.drafted for task in ready], len(drafting)):
                    began = perf_counter()
                    self.passes += 1
                    self._pass(ready)
                    policy.target_pass(perf_counter() - began)
            finally:
                self._stepping = False
                self._drop_cancelled()

    def _wishes(self) -> tuple[list[Task[Any]], list[Task[Any]]]:
        """Those that draft, and those that wait for the target."""
        wishing = [task for task in self.active if task.run is not None]
        return (
            [task for task in wishing if task.run is not None and task.run.drafts],
            [task for task in wishing if task.run is not None and not task.run.drafts],
        )

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
        for members in groups.values():
            for task in members:
                self._prepare(task)
            held = [(task, task.pending) for task in members if task.pending is not None]  # some may be put back
            limits = self.policy.limits([len(pending.rows) for _, pending in held])
            chosen = [
                (task, limit) for (task, pending), limit in zip(held, limits, strict=True) if limit or not pending.rows
            ]
            self._sweep([task for task, _ in chosen], [limit for _, limit in chosen])

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
                task.drafted = task.pending.run.drafts
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
