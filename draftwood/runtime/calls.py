"""Calls: requests that came together share the machine with others as one. Who is next, and which rows a pass computes.

The `n` texts of a client are one call, and so are the prompts of a batch; most calls are one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from draftwood.errors import Overloaded
from draftwood.runtime.cost import PIECE_FACTOR, Curve
from draftwood.runtime.executor import PartialRun
from draftwood.runtime.policy import Policy, Wanted
from draftwood.runtime.task import DecodingTask


@dataclass(slots=True)
class Calls:
    """The calls that are not over: at most `running` of them run and `queue` wait (None: any number)."""

    running: int
    queue: int | None
    live: dict[object, set[DecodingTask[Any]]] = field(default_factory=dict)  # call -> its tasks that are not over
    _lock: Lock = field(default_factory=Lock)

    def enter(self, task: DecodingTask[Any]) -> None:
        """Count a task that comes; raises Overloaded where its call would be one too many."""
        with self._lock:
            if self.queue is not None and task.call not in self.live:
                waiting = len(self.live) - self.running
                if waiting >= self.queue:
                    raise Overloaded(
                        f"{self.running} requests run and {waiting} wait, more than {self.queue} may not; "
                        "ask again later, or raise max_queued"
                    )
            self.live.setdefault(task.call, set()).add(task)

    def leave(self, task: DecodingTask[Any]) -> None:
        """Forget a task that is over, or that never entered."""
        with self._lock:
            tasks = self.live.get(task.call, set())
            tasks.discard(task)
            if not tasks:
                self.live.pop(task.call, None)

    def next(
        self, waiting: Collection[DecodingTask[Any]], active: Sequence[DecodingTask[Any]]
    ) -> DecodingTask[Any] | None:
        """The waiting task to begin: the first one of the call that has fewest active; None: there is no place.

        Of several priorities the smallest one counts first. A task that was put back is before all others. The first
        task of a call needs no place among the tasks, only its call one among the calls.
        """
        full = len(active) >= self.running
        if not waiting or (full and len({task.call for task in active}) >= self.running):
            return None
        running = Counter([task.call for task in active])
        best = next(iter(waiting))
        if not best.preempted:
            best = min(waiting, key=lambda task: (task.priority, running[task.call]))
        return None if full and running[best.call] else best

    def after_fork(self) -> None:
        """In a forked process, where nobody holds the lock."""
        self._lock = Lock()


def youngest(active: Sequence[DecodingTask[Any]]) -> DecodingTask[Any]:
    """The task that began last, of the call with the most active tasks."""
    running = Counter([task.call for task in active])
    return max(reversed(active), key=lambda task: running[task.call])


class TaskRows(NamedTuple):
    """So many rows of a task's run, which one pass computes."""

    task: DecodingTask[Any]
    pending: PartialRun
    rows: int


def allocate_rows(tasks: Sequence[DecodingTask[Any]], policy: Policy, curve: Curve, number: int) -> list[TaskRows]:
    """The rows of each task's run that pass `number` computes; tasks that were answered longest ago come first.

    The policy decides, from the rows that each call asks for and from what a pass costs by `curve`. A task whose run is
    complete with it notes the number of the pass.
    """
    asking = [(task, task.pending) for task in tasks if task.pending is not None]  # some may have been put back
    if len(asking) > 1:
        asking.sort(key=lambda each: each[0].last_pass)
    rows = [Wanted(len(pending.rows), len(pending.run.nodes), task.call) for task, pending in asking]
    many = sum([each.rows for each in rows]) > PIECE_FACTOR  # fewer are computed whole, whatever they cost
    on_cpu = many and asking[0][1].run.session.cache.device.type == "cpu"
    limits = policy.limits(rows, curve.seconds, curve.piece_rows if on_cpu else None)
    chosen = [TaskRows(*each, limit) for each, limit in zip(asking, limits, strict=True) if limit or not each[1].rows]
    for part in chosen:
        if part.rows == len(part.pending.rows):
            part.task.last_pass = number
    return chosen


def target_pass_seconds(
    chosen: Sequence[TaskRows], active: Sequence[DecodingTask[Any]], curve: Curve
) -> tuple[float, float, float]:
    """Estimated seconds of a pass of the target, by `curve`, as `Policy.target_pass` takes them.

    They are those of a pass without any drafts, those of this pass, and the part of the first that is due to calls with
    more rows than the smallest call that drafts.
    """
    rows = [min(part.rows, len(part.pending.run.nodes)) for part in chosen]
    in_pass = {id(part.task) for part in chosen}
    undrafted = [(part.task, min(part.rows, part.task.undrafted_rows)) for part in chosen]
    undrafted += [(task, task.undrafted_rows) for task in active if task.speculates and id(task) not in in_pass]
    calls: Counter[object] = Counter()
    for task, count in undrafted:
        calls[task.call] += count
    smallest = min([calls[task.call] for task, _ in undrafted if task.speculates], default=1)
    fair = curve.seconds(sum(calls.values()), len(undrafted))
    even = curve.seconds(sum([min(count, smallest) for count in calls.values()]), len(undrafted))
    return fair, curve.seconds(sum(rows), len(rows)), fair - even
