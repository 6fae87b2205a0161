"""Carries out many requests at once: in each step the passes over draft models that are due, and one over the target.

A request is decoding code that yields model runs (runtime/session.py) and is sent their answers; runs of many requests
on one model are computed by one flat forward. An error ends the request that caused it and no other. Requests come in,
and are cancelled, from any thread; `step` belongs to one thread, the engine's worker (runtime/driver.py). Tests and
measurements that decide themselves when a pass is computed step an engine that nobody else uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Any

import torch

from draftwood.errors import DraftwoodError, OutOfMemory, OverBudget, RequestError
from draftwood.models.base import CausalModel
from draftwood.runtime import threads
from draftwood.runtime.calls import Calls, TaskRows, allocate_rows, target_pass_seconds, youngest
from draftwood.runtime.cost import Costs
from draftwood.runtime.executor import PartialRun, run_layers
from draftwood.runtime.policy import SHORT_RUN, Policy
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.session import EVICTED, Answer, Event
from draftwood.runtime.task import DecodingTask, interrupted

CATCH_UP_ROWS = 2  # rows beside those asked for with which a run still tells what such a run costs
IN_A_STEP = "a callback must not wait for other requests: it runs in a step of them all"


class Scheduler:
    """Carries out tasks, at most `running` at once; the others wait in the order in which they came.

    Of a call with several requests that others wait beside, the first request alone needs no place: at most `running`
    calls run. Where there is a place, the call that has the fewest is served first. `queue`: how many calls may wait
    (None: any number). `chunk`: most rows of prompts that one pass computes, so that others need not wait for long.
    `memory`: bytes of keys and values, of all models together (None: no limit).
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
        self.inbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # what the next step does first
        self.active: list[DecodingTask[Any]] = []  # in the order of their admission
        self.waiting: deque[DecodingTask[Any]] = deque()
        self.costs = Costs()  # of passes, measured as they run
        self.load_counts = (1, 0, 0)  # see `_count_load`
        self.steps = self.passes = 0  # passes: of targets
        self.preempted = 0  # how often a request was put back for want of memory
        self._model_passes = 0  # of all models
        self._stepping = Lock()
        self._raised: BaseException | None = None  # by a callback, what would end the process

    def check(self, task: DecodingTask[Any]) -> None:
        """Raise RequestError where a request can never fit into the memory."""
        if self.memory is not None and (need := task.bytes(task.max_slots)) > self.memory:
            raise RequestError(
                f"the request needs up to {need:,} bytes of keys and values ({task.max_slots:,} tokens), but the "
                f"budget is {self.memory:,}; shorten the prompt, lower max_new_tokens or raise kv_cache_bytes"
            )

    def enter(self, task: DecodingTask[Any]) -> None:
        """Count a request that is about to be queued. Raises Overloaded where the queue is full."""
        self.check(task)
        self.calls.enter(task)

    def queue(self, tasks: Sequence[DecodingTask[Any]]) -> None:
        """Queue requests that have entered; they may begin in one step."""
        self.inbox.put(partial(self.waiting.extend, tasks))

    def submit(self, task: DecodingTask[Event]) -> DecodingTask[Event]:
        """Queue a request. Raises RequestError where it can never fit, Overloaded where the queue is full."""
        self.enter(task)
        self.queue([task])
        return task

    def cancel(self, task: DecodingTask[Any], error: BaseException | None = None) -> None:
        """End a request between two steps, with `error` if there is one; one that has ended stays as it is."""
        if not task.done:
            task.cancelled = True
            self.inbox.put(partial(self._cancel, task, error))

    def _cancel(self, task: DecodingTask[Any], error: BaseException | None) -> None:
        if not task.done:
            if task in self.waiting:
                self.waiting.remove(task)
            self._end(task, error)

    @property
    def busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self.calls.live)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something, as far as the stepping thread was told."""
        return bool(self.active or self.waiting)

    def receive(self) -> None:
        """Do what other threads put into the inbox, in order: requests that come or are cancelled, and other work."""
        while not self.inbox.empty():
            message = self.inbox.get()
            if message is not None:
                message()

    def step(self) -> None:
        """Admit requests, draft until somebody waits for the target, and make a target pass where it is due."""
        if not self._stepping.acquire(blocking=False):
            raise DraftwoodError(IN_A_STEP)
        try:
            self._step()
        except BaseException as error:  # what nobody foresaw: nothing that runs can be trusted
            for task in list(self.active):
                self._end(task, error if isinstance(error, Exception) else interrupted(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._stepping.release()
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def _step(self) -> None:
        self.receive()
        if not self.active:
            self.policy.rest()
        self._count_load()
        with torch.inference_mode(), threads.alone():
            self._admit()
            self.steps += 1
            self._passes()
        self.receive()

    def wait(self, tasks: Iterable[DecodingTask[Any]]) -> None:
        """Step, in the calling thread, until one of some tasks has an event or has ended."""
        tasks = list(tasks)
        self.receive()
        while not any(task.events or task.done for task in tasks):
            self.step()

    def events(self, task: DecodingTask[Event]) -> Generator[Event, None, None]:
        """A submitted task's events; steps, in the calling thread, while there are none. Closing it cancels the task.

        Raises what ended the request.
        """
        try:
            yield from task.drain(partial(self.wait, (task,)))
        finally:
            self.cancel(task)
            self.receive()

    def _passes(self) -> None:
        policy, (drafting, ready, plain_waits) = self.policy, self._requested()
        while drafting and policy.may_draft(plain_waits):
            began = perf_counter()
            self._pass(drafting)
            policy.draft_pass(perf_counter() - began, plain_waits)
            drafting, ready, plain_waits = self._requested()
            if ready or self.waiting or not self.inbox.empty():
                break  # else all draft on: there is nobody to wait for
        if ready and policy.due(plain_waits, bool(drafting), self._seconds(ready) if drafting else 0.0):
            if not policy.may_draft(plain_waits):
                ready = [task for task in ready if not task.drafted]
            self.passes += 1
            policy.target_pass(*self._pass(ready, plain_waits))

    def _seconds(self, tasks: Sequence[DecodingTask[Any]]) -> float:
        """Estimated seconds of a pass of the target over what some tasks ask for, without their prompts."""
        runs = [task.run for task in tasks if task.run is not None]
        return self.costs.curve(runs[0].session.model).seconds(sum([len(run.nodes) for run in runs]), len(runs))

    def _requested(self) -> tuple[list[DecodingTask[Any]], list[DecodingTask[Any]], bool]:
        """Tasks that wait for a draft model, tasks that wait for the target, and whether one of these never drafts."""
        asking = [(task, task.run.drafts) for task in self.active if task.run is not None]
        ready = [task for task, drafts in asking if not drafts]
        plain_waits = any(not (task.drafted or task.follows_load) for task in ready)
        return [task for task, drafts in asking if drafts], ready, plain_waits

    def _count_load(self) -> None:
        """Count the requests that run, or are about to: those that draft by the load, the others, and rows of these."""
        running = [*self.active, *islice(self.waiting, max(0, self.calls.running - len(self.active)))]
        if any(task.follows_load for task in running):
            rows = [task.target_rows for task in running if not task.follows_load]
            self.load_counts = len(running) - len(rows), len(rows), sum(rows)

    def _admit(self) -> None:
        """Let waiting requests begin, or go on after they were put back, while there is room."""
        while (task := self.calls.next(self._candidates(), self.active)) is not None:
            if self.active and not self._fits(task):
                break
            self.active.append(task)
            self.waiting.remove(task)
            task.running = True
            if task.run is None or task.evicted:
                self._advance(task, EVICTED if task.evicted else None)

    def _candidates(self) -> Collection[DecodingTask[Any]]:
        """The waiting tasks, without those of a call that another task of it reads most of the prompt for.

        They take over the keys and values that it computes, rather than compute the same once more beside it.
        """
        reading: dict[object, list[DecodingTask[Any]]] = {}
        for task in self.active:
            if not task.has_read:
                reading.setdefault(task.call, []).append(task)
        if not reading:
            return self.waiting
        return [
            task
            for task in self.waiting
            if task.call not in reading
            or not any(
                self.prefixes.worth_waiting(task.sessions[0].cache, task.prompt, other.prompt)
                for other in reading[task.call]
            )
        ]

    def _fits(self, task: DecodingTask[Any]) -> bool:
        """Whether a task's prompt, or what it had computed, has room in the memory beside the active tasks."""
        if self.memory is None:
            return True
        used = sum(other.bytes(max(other.slots, other.first_slots)) for other in self.active)
        return used + task.bytes(task.first_slots + SHORT_RUN) <= self.memory

    def _pass(self, tasks: Sequence[DecodingTask[Any]], plain_waits: bool = False) -> tuple[float, float, float]:
        """Compute the tasks' runs, model by model, and let those that are answered go on.

        Where some of the tasks never draft, the answer is what `Policy.target_pass` is to count.
        """
        groups: dict[CausalModel, list[DecodingTask[Any]]] = {}
        for task in tasks:
            if task.run is not None:
                groups.setdefault(task.run.session.model, []).append(task)
        counted = (0.0, 0.0, 0.0)
        for model, members in groups.items():
            began = perf_counter()
            self._expect_memory(members)
            for task in members:
                self._prepare(task)
            self._model_passes += 1
            curve = self.costs.curve(model)
            chosen = allocate_rows(members, self.policy, curve, self._model_passes)
            if plain_waits:
                counted = target_pass_seconds(chosen, self.active, curve)
            seconds, full = self._compute({part.task: part.rows for part in chosen})
            self._learn_costs(model, chosen, full, seconds, perf_counter() - began - seconds)
        return counted

    def _expect_memory(self, tasks: Sequence[DecodingTask[Any]]) -> None:
        """Have the cache grow once for all tasks that are about to take memory on one model, not once for each."""
        if len(tasks) > 1:
            runs = [task.run for task in tasks if task.run is not None]
            allocations = [each for run in runs for each in run.session.allocations(run)]
            if len(allocations) > 1:
                self.prefixes.expect(runs[0].session.cache, allocations)

    def _learn_costs(
        self, model: CausalModel, chosen: Sequence[TaskRows], full: float, seconds: float, other_seconds: float
    ) -> None:
        """Note what a pass took: `seconds` in forwards over rows that come to `full` of full depth, the rest beside."""
        rows = requested = requests = alike = drafting = left = 0
        for task, pending, limit in chosen:
            count = len(pending.run.nodes)
            rows += limit
            requested += count + CATCH_UP_ROWS
            left += len(pending.rows)
            if task.follows_load or (count == 1 and not pending.run.drafts):
                beams = min(count, len(pending.run.forest.live))  # each counts as a request
                requests, alike, drafting = requests + beams, alike + limit, drafting + (beams if count > beams else 0)
            else:
                other_seconds -= task.step_seconds
        if rows <= requested and not left:  # else prompts were read, which cost something else
            curve = self.costs.add(model, rows, full, seconds)
            if curve is not None and requests:
                curve.add_overhead(requests, alike, drafting, other_seconds)
        elif rows and round(full) == rows:  # through all layers
            self.costs.curve(model).add_reading(rows, seconds)

    def _prepare(self, task: DecodingTask[Any]) -> bool:
        """Allot slots to a task's run; where memory is short, tasks are put back until there is enough."""
        while task.running and task.pending is None and task.run is not None:
            try:
                task.pending = PartialRun.of(task.run)
            except OutOfMemory as error:
                if self.prefixes.forget():
                    continue
                if len(self.active) == 1:
                    self._end(task, self._too_large(error))
                else:
                    self._put_back(youngest(self.active))
            except Exception as error:
                self._end(task, error)
        return task.pending is not None

    def _too_large(self, error: OutOfMemory) -> DraftwoodError:
        """The error of a request for which there is no memory though it runs alone and nothing is kept for others."""
        if not isinstance(error, OverBudget):
            return error  # the machine has none, which may change
        return RequestError(
            f"the request's beams and drafts need more keys and values than the budget of {self.memory or 0:,} bytes "
            "holds; narrow them, shorten the prompt, lower max_new_tokens or raise kv_cache_bytes"
        )

    def _put_back(self, task: DecodingTask[Any]) -> None:
        """A task waits again, before all others, until there is memory for what it had."""
        task.put_back()
        self.preempted += 1
        self.waiting.appendleft(task)
        self.active.remove(task)

    def _compute(self, limits: dict[DecodingTask[Any], int]) -> tuple[float, float]:
        """Compute so many rows of the tasks' runs, on one model, and answer those runs that are complete.

        Returns the seconds of the computation, and its rows as `run_layers` counts them.
        """
        pending, began = [task.pending for task in limits if task.pending is not None], perf_counter()
        try:
            computed = run_layers(pending, limits.values())
        except Exception as error:
            if len(limits) == 1:
                self._end(next(iter(limits)), error)
                return perf_counter() - began, 0.0
            for task in limits:  # one of them is at fault: each for itself, from where it is known to stand
                task.pending = None
            for task in limits:
                if self._prepare(task) and task.pending is not None:
                    self._compute({task: min(len(task.pending.rows), self.policy.chunk)})
            return perf_counter() - began, 0.0
        seconds = perf_counter() - began
        for task in limits:
            if task.pending is not None and not task.pending.rows:
                task.drafted = task.pending.run.drafts
                self._advance(task, task.pending.finish())
        for task in limits:  # behind all of this: who is woken runs beside a forward, not between the requests
            task.announce()
        return seconds, computed

    def _advance(self, task: DecodingTask[Any], answer: Answer | None) -> None:
        """Send a task its answer; an error of its code or its callbacks ends it and no other task."""
        began = perf_counter()
        try:
            goes_on = task.advance(answer)
        except Exception as error:
            self._end(task, error)
        except BaseException as error:
            self._end(task, interrupted(error))
            self._raised = error  # when the step is through
        else:
            task.step_seconds = perf_counter() - began
            if not goes_on:
                self._end(task)

    def _end(self, task: DecodingTask[Any], error: BaseException | None = None) -> None:
        """End a task and give back what it held."""
        try:
            task.end(error)
            if task.running:
                self.active.remove(task)
        finally:
            self.calls.leave(task)
            task.finish()

    def after_fork(self) -> None:
        """In a forked process: nobody holds a lock of this one, and nobody has put anything into its inbox."""
        self.inbox, self._stepping = SimpleQueue(), Lock()
        self.calls.after_fork()

    def fail(self, error: BaseException) -> None:
        """End all requests with an error, whatever state they are in; their memory is not given back."""
        self.receive()
        for task in [*self.active, *self.waiting]:
            task.error = task.error or error
            self.calls.leave(task)
            task.finish()
        self.active.clear()
        self.waiting.clear()
