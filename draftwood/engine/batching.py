"""Many requests at once: the entries of a batch, its results as they come, and its errors where some requests fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from draftwood.core.records import Round
from draftwood.engine.generation import Generation
from draftwood.engine.request import Prompt
from draftwood.engine.results import GenerationResult
from draftwood.errors import DraftwoodError, Overloaded, RequestError
from draftwood.runtime.driver import Driver
from draftwood.runtime.task import DecodingTask
from draftwood.util.safe_parsing import short_repr


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during `Engine.batch`: `results` holds what was finished, by place among the prompts."""

    def __init__(self, results: dict[int, GenerationResult]) -> None:
        super().__init__(f"interrupted with {len(results)} results")
        self.results = results


class BatchFailed(DraftwoodError):
    """Some requests of a batch ended in an error: `errors` and `results`, by place among the prompts."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        place, first = next(iter(errors.items()))
        more = f" (and {len(errors) - 1} more requests failed)" if len(errors) > 1 else ""
        super().__init__(f"request {place + 1} of the batch: {first}{more}; the results of the others are kept")
        self.errors = errors
        self.results: dict[int, GenerationResult] = {}


def entries(prompts: Sequence[Prompt | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The prompts of a batch as mappings {"prompt": ..., option: value}; raises RequestError."""
    if isinstance(prompts, str | bytes | Mapping):
        raise RequestError("batch takes a list of prompts; wrap a single one in a list: batch([prompt])")
    try:
        listed = list(prompts)
    except TypeError:
        raise RequestError(f"batch takes a list of prompts, not {short_repr(prompts)}") from None
    if any(isinstance(entry, Mapping) and "role" in entry for entry in listed):
        raise RequestError(
            "batch takes a list of prompts, but found a message of a conversation in it; "
            "wrap the conversation in a list: batch([messages])"
        )
    if any(isinstance(entry, Mapping) and "prompt" not in entry for entry in listed):
        raise RequestError('an entry of the batch has no prompt; give {"prompt": ..., option: value}')
    return [entry if isinstance(entry, Mapping) else {"prompt": entry} for entry in listed]


def completed(
    driver: Driver, queue: deque[tuple[int, Generation, DecodingTask[Round]]], limit: int
) -> Generator[tuple[int, GenerationResult], None, None]:
    """Carry out the requests of a queue, at most `limit` at once, and yield (index, result) as each ends.

    Raises BatchFailed when all have ended if some failed, Overloaded where not even one can be queued.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    going: dict[int, tuple[Generation, DecodingTask[Round]]] = {}
    errors: dict[int, BaseException] = {}
    try:
        while queue or going:
            entered = []
            while queue and len(going) < limit:
                index, generation, task = queue[0]
                task.wake, task.wake_each = partial(ended.put, index), False
                going[index] = generation, task
                try:
                    driver.enter(task)
                except Overloaded:
                    del going[index]
                    if not going:
                        raise
                    break  # it waits here until one of the others has ended
                entered.append(task)
                queue.popleft()
            if entered:
                driver.queue(entered)
            index = ended.get()
            generation, task = going.pop(index)  # nothing is kept of what has ended
            if task.error is None:
                for round_ in task.events:
                    generation.note(round_)
                yield index, generation.result()
            else:
                errors[index] = task.error
    finally:
        for _, task in going.values():
            driver.cancel(task)
    if errors:
        raise BatchFailed(errors) from next(iter(errors.values()))
