"""The only driver: carries out many requests at once, a draft pass and a target pass at a time; see also calls.py.

Requests are decoding code that yields runs (runtime/session.py). An error ends the request that caused it and no other.
Every method may be called from any thread. One thread steps at a time, which is one of those that wait for a request;
the others sleep until they have something, or until nobody steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from draftwood.errors import DraftwoodError, OutOfMemory, RequestError
from draftwood.models.base import CausalModel
from draftwood.runtime import threads
from draftwood.runtime.calls import Calls, parts, shares, youngest
from draftwood.runtime.cost import Costs
from draftwood.runtime.executor import Pending, sweep
from draftwood.runtime.policy import SHORT_RUN, Policy
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.session import LOST, Answer, Event
from draftwood.runtime.task import Task

CAUGHT_UP = 2  # rows that a run may have beside those asked for and still tell what such a run costs


class Scheduler:
    """Carries out tasks, at most `running` at once, the others in the order in which they came.

    But of a call that others wait beside, the first task alone needs no place: at most `running` calls run. Where there
    is a place, the call that has the fewest is served first. `queue`: how many calls may wait. `chunk`: rows of prompts
    that one pass computes, so that others need not wait for long. `memory`: bytes of keys and values, of all models
    together; None: no limit.
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
        self.memory, self.policy, self.calls = memory, Policy(chunk), Calls(running, queue)
        self.active: list[Task[Any]] = []  # in the order of their admission; belongs to the thread that steps
        self.waiting: deque[Task[Any]] = deque()  # the front belongs to the thread that steps
        self.costs = Costs()  # of passes, measured as they run
        self.load = (1, 0, 0)  # see `_count`
        self._adapting: list[Task[Any]] = []  # that draft by the load, as the step began
        self._behind: tuple[float, float] | None = None  # see `behind`; not asked for yet
        self.steps = self.passes = 0  # passes of targets
        self.swept = 0  # passes of all models
        self._shares = (0.0, 0.0, 0.0)  # of a pass of the target, see `calls.shares`
        self.preempted = 0
        self._leading = threading.Lock()  # held by the thread that steps
        self._leader: int | None = None
        self._changed = threading.Condition()  # something happened, or nobody steps
        self._asleep = 0  # threads that wait for it
        self._cancelled: deque[tuple[Task[Any], BaseException | None]] = deque()

    def check(self, task: Task[Any]) -> None:
        """Raise RequestError where a request cannot ever fit into the memory."""
        if self.memory is not None and (need := task.bytes(task.most)) > self.memory:
            raise RequestError(
                f"the request needs up to {need:,} bytes of keys and values ({task.most:,} tokens), but the budget is "
                f"{self.memory:,}; shorten the prompt, lower max_new_tokens or raise kv_cache_bytes"
            )

    def submit(self, task: Task[Event]) -> Task[Event]:
        """Queue a request. Raises RequestError where it cannot ever fit, Overloaded where the queue is full."""
        self.check(task)
        self.calls.enter(task, self.waiting.append)
        return task

    def cancel(self, task: Task[Any], error: BaseException | None = None) -> None:
        """End a request wherever it stands; one that has ended stays as it is. `error` is what it ends with.

        If another thread steps, it does this when its step is through.
        """
        if not task.done:
            task.cancelled = True
            self._cancelled.append((task, error))
            self._drop_cancelled()

    def wait(self, tasks: Iterable[Task[Any]]) -> None:
        """Let all requests go on until one of some has an event or has ended."""
        tasks = list(tasks)
        self.until(lambda: any(task.events or task.done for task in tasks))

    def until(self, ready: Callable[[], bool]) -> None:
        """Let all requests go on until something is the case, which is asked after each step."""
        while not ready():
            if self._leader == threading.get_ident():
                raise DraftwoodError("a callback must not wait for other requests: it runs in a step of them all")
            if self._leading.acquire(blocking=False):
                try:
                    if not ready():  # else another thread was faster
                        self._lead()
                finally:
                    self._leading.release()
                    self._wake()
                    self._drop_cancelled()
            else:
                with self._changed:
                    self._asleep += 1
                    try:
                        if self._leading.locked() and not ready():
                            self._changed.wait()
                    finally:
                        self._asleep -= 1

    def events(self, task: Task[Event]) -> Generator[Event, None, None]:
        """A request's events as they come, letting all requests go on while there are none; closing it cancels.

        Raises what ended the request.
        """
        try:
            done = False
            while not done:
                self.wait((task,))
                done = task.done
                while task.events:
                    yield task.events.popleft()
            if task.error is not None:
                raise task.error
        finally:
            self.cancel(task)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.active or self.waiting)

    def step(self) -> None:
        """Draft passes until somebody waits for the target, and a target pass where it is due."""
        if self._leader == threading.get_ident():
            raise DraftwoodError("a callback must not wait for other requests: it runs in a step of them all")
        self.exclusively(self._lead)

    def exclusively(self, work: Callable[[], object]) -> None:
        """Do some work while no thread steps."""
        if self._leader == threading.get_ident():
            work()
            return
        try:
            with self._leading:
                work()
        finally:
            self._wake()
            self._drop_cancelled()

    def _wake(self) -> None:
        if self._asleep:
            with self._changed:
                self._changed.notify_all()

    def _lead(self) -> None:
        """A step, by the thread that holds `_leading`. What nobody foresaw ends all requests that run."""
        self._leader = threading.get_ident()
        try:
            self._end_cancelled()
            if not self.active:
                self.policy.rest()
            self._count()
            with torch.inference_mode(), threads.alone():
                self._admit()
                self.steps += 1
                self._passes()
            self._end_cancelled()
        except Exception as error:
            for task in list(self.active):
                self._end(task, error)
        except BaseException:
            self._recover()
            raise
        finally:
            self._leader = None

    def _recover(self) -> None:
        """After Ctrl-C, which may come at any moment: no memory is trusted, what runs is computed anew."""
        caches = self.prefixes.abandon()
        for task in reversed(self.active):
            task.running = False
            for session in task.sessions:
                caches.add(session.cache)
                session.extent = None
            if not task.done and task.stuck:
                task.end(interrupted())
                self._finish(task)
            elif not task.done:
                task.put_back()
                if task not in self.waiting:
                    self.waiting.appendleft(task)
        self.active.clear()
        for cache in caches:
            cache.drop()

    def _passes(self) -> None:
        policy, (drafting, ready, hasty) = self.policy, self._wishes()
        while drafting and policy.may_draft(hasty):
            began = perf_counter()
            self._pass(drafting)
            policy.draft_pass(perf_counter() - began, hasty)
            drafting, ready, hasty = self._wishes()
            if ready or self.waiting or self._cancelled:
                break  # else all draft on: there is nobody to wait for
        if ready and policy.due(hasty, bool(drafting), self._seconds(ready) if drafting else 0.0):
            if not policy.may_draft(hasty):
                ready = [task for task in ready if not task.drafted]
            self.passes += 1
            self._shares = (0.0, 0.0, 0.0)
            self._pass(ready, hasty)
            policy.target_pass(*self._shares)

    def _seconds(self, tasks: Sequence[Task[Any]]) -> float:
        """Of a pass of the target over what some tasks ask for, without their prompts."""
        runs = [task.run for task in tasks if task.run is not None]
        return self.costs.curve(runs[0].session.model).seconds(sum([len(run.nodes) for run in runs]), len(runs))

    def _wishes(self) -> tuple[list[Task[Any]], list[Task[Any]], bool]:
        """Those that draft, those that wait for the target, and whether any of these do not draft at all."""
        asking = [(task, task.run.drafts) for task in self.active if task.run is not None]
        ready = [task for task, drafts in asking if not drafts]
        hasty = any(not (task.drafted or task.adapts) for task in ready)
        return [task for task, drafts in asking if drafts], ready, hasty

    def _count(self) -> None:
        """How many requests run, or are about to, that draft by the load, how many that do not, and rows of those."""
        running = [*self.active, *islice(self.waiting, max(0, self.calls.running - len(self.active)))]
        self._adapting, self._behind = [task for task in running if task.adapts], None
        if self._adapting:
            rows = [task.verified for task in running if not task.adapts]
            self.load = len(running) - len(rows), len(rows), sum(rows)

    def behind(self) -> tuple[float, float]:
        """Seconds before a request that drafts by the load can draft, and tokens that may still come: means of all."""
        if self._behind is None:
            found = [task.behind() for task in self._adapting if not task.done]
            seconds, left = (sum(each) / len(found) for each in zip(*found, strict=True)) if found else (0.0, 0.0)
            self._behind = seconds, left
        return self._behind

    def _admit(self) -> None:
        """Let some of those that wait begin, or go on, while there is room."""
        while (task := self.calls.next(self.waiting, self.active)) is not None:
            if self.active and not self._fits(task):
                break
            self.active.append(task)
            self.waiting.remove(task)
            task.running = True
            if task.run is None or task.lost:
                self._advance(task, LOST if task.lost else None)

    def _fits(self, task: Task[Any]) -> bool:
        """Whether a task's prompt, or what it had, has room beside the others."""
        if self.memory is None:
            return True
        held = sum(other.bytes(max(other.held, other.prompt)) for other in self.active)
        return held + task.bytes(task.prompt + SHORT_RUN) <= self.memory

    def _pass(self, tasks: Sequence[Task[Any]], hasty: bool = False) -> None:
        """Answer runs, model by model, and let their tasks go on. `hasty`: some of them do not draft."""
        groups: dict[CausalModel, list[Task[Any]]] = {}
        for task in tasks:
            if task.run is not None:
                groups.setdefault(task.run.session.model, []).append(task)
        for model, members in groups.items():
            began = perf_counter()
            if len(members) > 1:
                runs = [task.run for task in members if task.run is not None]
                wishes = [wish for run in runs for wish in run.session.wishes(run)]
                if len(wishes) > 1:
                    self.prefixes.expect(runs[0].session.cache, wishes)
            for task in members:
                self._prepare(task)
            self.swept += 1
            curve = self.costs.curve(model)
            chosen = parts(members, self.policy, curve, self.swept)
            if hasty:
                self._shares = shares(chosen, self.active, curve)
            seconds, full = self._sweep({task: limit for task, _, limit in chosen})
            beside = perf_counter() - began - seconds
            rows = asked = requests = alike = drafting = left = 0
            for task, pending, limit in chosen:
                count = len(pending.run.nodes)
                rows += limit
                asked += count + CAUGHT_UP
                left += len(pending.rows)
                if task.adapts or (count == 1 and not pending.run.drafts):
                    requests, alike, drafting = requests + 1, alike + limit, drafting + (count > 1)
                else:
                    beside -= task.took
            if rows <= asked and not left:  # else prompts, which cost something else
                noted = self.costs.add(model, rows, full, seconds)
                if noted is not None and requests:
                    noted.add_overhead(requests, alike, drafting, beside)

    def _prepare(self, task: Task[Any]) -> bool:
        """Allot slots to a task's run; where memory is short, tasks are put back until there is enough."""
        while task.running and task.pending is None and task.run is not None:
            try:
                task.pending = Pending.of(task.run)
            except OutOfMemory as error:
                if self.prefixes.forget():
                    continue
                if len(self.active) == 1:
                    self._end(task, error)
                else:
                    self._put_back(youngest(self.active))
            except Exception as error:
                self._end(task, error)
        return task.pending is not None

    def _put_back(self, task: Task[Any]) -> None:
        """A task waits again, before all others, until there is memory for what it had."""
        task.put_back()
        self.preempted += 1
        self.waiting.appendleft(task)
        self.active.remove(task)

    def _sweep(self, limits: dict[Task[Any], int]) -> tuple[float, float]:
        """Compute so many rows of the tasks' runs, on one model, and answer those that have none left.

        Returns the seconds of the computation, and its rows as `sweep` counts them.
        """
        pending, began = [task.pending for task in limits if task.pending is not None], perf_counter()
        try:
            computed = sweep(pending, limits.values())
        except Exception as error:
            if len(limits) == 1:
                self._end(next(iter(limits)), error)
                return perf_counter() - began, 0.0
            for task in limits:  # one of them is at fault: each for itself, from where it is known to stand
                task.pending = None
            for task in limits:
                if self._prepare(task) and task.pending is not None:
                    self._sweep({task: min(len(task.pending.rows), self.policy.chunk)})
            return perf_counter() - began, 0.0
        seconds = perf_counter() - began
        for task in limits:
            if task.pending is not None and not task.pending.rows:
                task.drafted = task.pending.run.drafts
                self._advance(task, task.pending.finish())
        return seconds, computed

    def _advance(self, task: Task[Any], answer: Answer | None) -> None:
        began = perf_counter()
        try:
            goes_on = task.advance(answer)
        except Exception as error:
            self._end(task, error)
        except BaseException:
            self._end(task, interrupted())
            raise
        else:
            task.took = perf_counter() - began
            if not goes_on:
                self._end(task)

    def _end(self, task: Task[Any], error: BaseException | None = None) -> None:
        """A task is over; what it held is given back."""
        try:
            task.end(error)
            if task.running:
                self.active.remove(task)
        finally:
            self._finish(task)

    def _finish(self, task: Task[Any]) -> None:
        self.calls.leave(task)
        task.finish()

    def _end_cancelled(self) -> None:
        while self._cancelled:
            task, error = self._cancelled.popleft()
            if not task.done:
                if not task.running and task in self.waiting:
                    self.waiting.remove(task)
                self._end(task, error)

    def _drop_cancelled(self) -> None:
        """End what was cancelled unless a thread steps, which does it then."""
        while self._cancelled and self._leading.acquire(blocking=False):
            try:
                self._end_cancelled()
            finally:
                self._leading.release()
                self._wake()


def interrupted() -> DraftwoodError:
    """What a request ends with whose method was running when Ctrl-C came."""
    return DraftwoodError("the request was interrupted, by Ctrl-C or a callback that ends the process")
