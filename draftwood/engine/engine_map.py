"""Work that one engine does, or several share: evaluations, and texts to train on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from draftwood.engine.engine import Engine

T = TypeVar("T")
R = TypeVar("R")


class EngineMap(Protocol):
    """Maps items by engines; `setup` makes of each engine what an item is given to. Results are in the items' order.

    Where engines are in other processes, `setup`, items and results travel, and a result that is an iterator is
    exhausted first.
    """

    def __call__(self, setup: Callable[[Engine], Callable[[T], R]], items: Iterable[T]) -> Iterator[R]: ...


def alone(engine: Engine) -> EngineMap:
    """One engine in this process; an item is worked on when its result is asked for."""

    def mapped(setup: Callable[[Engine], Callable[[T], R]], items: Iterable[T]) -> Iterator[R]:
        return map(setup(engine), items)

    return mapped
