"""Work that several processes share on Ray, with engines or without; results come in the order of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from draftwood.cluster.spec import EngineSpec
from draftwood.engine.engine import Engine
from draftwood.engine.engine_map import EngineMap
from draftwood.errors import DraftwoodError

T = TypeVar("T")
R = TypeVar("R")


class MappingActor:
    """An actor with the function that maps its items."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.work_on = make()

    def work(self, item: Any) -> Any:
        """The result of an item."""
        result = self.work_on(item)
        return list(result) if isinstance(result, Iterator) else result


def map_in_actors(
    make: Callable[[], Callable[[T], R]], items: Iterable[T], *, replicas: int, resources: Mapping[str, float]
) -> Iterator[R]:
    """Map items, in order, by the function that `make` makes in each of several actors; actors that die are replaced.

    Raises what `make` or an item raised, if that is a DraftwoodError; else a DraftwoodError that says it.
    """
    how = {**resources, "max_restarts": -1, "max_task_retries": -1}
    given = ray.put(make)
    idle = [ray.remote(MappingActor).options(**how).remote(given) for _ in range(replicas)]
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
        raise actor_error(error, "a process stopped") from None
    finally:
        for worker in (*idle, *(worker for _, worker in running.values())):
            ray.kill(worker)


def actor_error(error: RayError, what: str) -> DraftwoodError:
    """The DraftwoodError that an actor raised; any other error as one sentence that begins with `what`."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, DraftwoodError) and not isinstance(cause, RayError):
        return cause
    return DraftwoodError(f"{what}: {' '.join(str(cause).split())[-500:]}")


def on_ray(spec: EngineSpec, replicas: int) -> EngineMap:
    """Engines in actors of the Ray that was started."""

    def mapped(setup: Callable[[Engine], Callable[[T], R]], items: Iterable[T]) -> Iterator[R]:
        make = partial(_made, spec.model_dump(mode="json"), setup)
        return map_in_actors(make, items, replicas=replicas, resources=spec.resources)

    return mapped


def _made(spec: dict[str, Any], setup: Callable[[Engine], Callable[[T], R]]) -> Callable[[T], R]:
    return setup(EngineSpec.model_validate(spec).engine())
