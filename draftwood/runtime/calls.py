"""Calls: requests that came together share the machine with others as one. Who is next, and what a pass computes.

A client's `n` texts are a call, or a batch of prompts; most calls are one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from draftwood.errors import Overloaded
from draftwood.runtime.cost import Curve
from draftwood.runtime.executor import Pending
from draftwood.runtime.policy import Policy, Wanted
from draftwood.runtime.task import Task


@dataclass(slots=True)
class Calls:
    """Those that are not over, by their tasks: at most `running` run and `queue` wait; None: any number."""

    running: int
    queue: int | None
    live: Counter[object] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def enter(self, task: Task[Any], then: Callable[[Task[Any]], object]) -> None:
        """A task comes, and is handed on; Overloaded where its call would be one too many."""
        with self._lock:
            if self.queue is not None and task.call not in self.live:
                waiting = len(self.live) - self.running
                if waiting >= self.queue:
                    raise Overloaded(
                        f"{self.running} requests run and {waiting} wait, more than {self.queue} may not; "
                        "ask again later, or raise max_queued"
                    )
            self.live[task.call] += 1
            then(task)

    def leave(self, task: Task[Any]) -> None:
        """A task is over."""
        with self._lock:
            self.live[task.call] -= 1
            if self.live[task.call] <= 0:  # below, where it was refused, and is cancelled nevertheless
                del self.live[task.call]

    def next(self, waiting: Collection[Task[Any]], active: Sequence[Task[Any]]) -> Task[Any] | None:
        """Of those that wait the first one of the call that has fewest running, if there is a place for it.

        Whoever was put back is before all others. A call's first task needs no place among the tasks, only its call
        one among the calls.
        """
        full = len(active) >= self.running
        if not waiting or (full and len({task.call for task in active}) >= self.running):
            return None
        running = Counter([task.call for task in active])
        with self._lock:
            best, *others = waiting
        if not best.preempted:
            best = min((best, *others), key=lambda task: running[task.call])
        return None if full and running[best.call] else best


def youngest(active: Sequence[Task[Any]]) -> Task[Any]:
    """The one of the call with the most tasks that began last."""
    running = Counter([task.call for task in active])
    return max(reversed(active), key=lambda task: running[task.call])


class Part(NamedTuple):
    """So many rows of a task's run, which a pass computes."""

    task: Task[Any]
    pending: Pending
    rows: int


def parts(tasks: Sequence[Task[Any]], policy: Policy, curve: Curve, number: int) -> list[Part]:
    """The rows of each task's run that pass `number` computes; tasks that were answered longest ago come first."""
    held = [(task, task.pending) for task in tasks if task.pending is not None]  # some may wait again
    if len(held) > 1:
        held.sort(key=lambda each: each[0].served)
    rows = [Wanted(len(pending.rows), len(pending.run.nodes), task.call) for task, pending in held]
    on_cpu = all([pending.run.session.cache.device.type == "cpu" for _, pending in held[:1]])
    limits = policy.limits(rows, curve.seconds, curve.piece_rows if on_cpu else None)
    found = [Part(*each, limit) for each, limit in zip(held, limits, strict=True) if limit or not each[1].rows]
    for part in found:
        if part.rows == len(part.pending.rows):
            part.task.served = number
    return found


def shares(found: Sequence[Part], active: Sequence[Task[Any]], curve: Curve) -> tuple[float, float, float]:
    """Seconds of a pass of the target, as `Policy.target_pass` takes them."""
    rows = [min(part.rows, len(part.pending.run.nodes)) for part in found]
    served = {id(part.task) for part in found}
    own = [(part.task, min(part.rows, part.task.own)) for part in found]
    own += [(task, task.own) for task in active if task.speculates and id(task) not in served]
    calls: Counter[object] = Counter()
    for task, count in own:
        calls[task.call] += count
    least = min([calls[task.call] for task, _ in own if task.speculates], default=1)
    fair = curve.seconds(sum(calls.values()), len(own))
    even = curve.seconds(sum([min(count, least) for count in calls.values()]), len(own))
    return fair, curve.seconds(sum(rows), len(rows)), fair - even
