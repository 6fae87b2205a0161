"""Work that engines in several processes share, on Ray; results come in the order of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from draftwood.cluster.spec import EngineSpec
from draftwood.engine import Engine
from draftwood.errors import DraftwoodError
from draftwood.sharing import EngineMap

T = TypeVar("T")
R = TypeVar("R")


class Worker:
    """An actor's engine, and what was made of it."""

    def __init__(self, spec: dict[str, Any], setup: Callable[[Engine], Callable[[Any], Any]]) -> None:
        self.work_on = setup(EngineSpec.model_validate(spec).engine())

    def work(self, item: Any) -> Any:
        """The result of an item."""
        found = self.work_on(item)
        return list(found) if isinstance(found, Iterator) else found


def on_ray(spec: EngineSpec, replicas: int) -> EngineMap:
    """Engines in actors of the Ray that was started; one that dies is replaced, and its item begun again."""

    def mapped(setup: Callable[[Engine], Callable[[T], R]], items: Iterable[T]) -> Iterator[R]:
        how = {**spec.resources, "max_restarts": -1, "max_task_retries": -1}
        given = ray.put(setup)
        idle = [ray.remote(Worker).options(**how).remote(spec.model_dump(mode="json"), given) for _ in range(replicas)]
        waiting = enumerate(items)
        running: dict[Any, tuple[int, Any]] = {}
        done: dict[int, R] = {}
        place = 0
        try:
            while True:
                while idle and (next_ := next(waiting, None)) is not None:
                    worker = idle.pop()
                    running[worker.work.remote(next_[1])] = next_[0], worker
                if not running:
                    return
                (ready,), _ = ray.wait(list(running), num_returns=1)
                number, worker = running.pop(ready)
                idle.append(worker)
                done[number] = ray.get(ready)
                while place in done:
                    yield done.pop(place)
                    place += 1
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            raise DraftwoodError(f"a process stopped: {' '.join(str(cause).split())[-500:]}") from None
        finally:
            for worker in (*idle, *(worker for _, worker in running.values())):
                ray.kill(worker)

    return mapped
