"""How much of a request's time its depth controller takes for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth import ALONE, DepthController, DraftState, Load
from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.sampling.distributions import Streams
from draftwood.train.recording import WatchedEngine

T = TypeVar("T")


class Timed(DepthController):
    """A controller whose answers are timed; as everywhere the first round, which reads the prompt, does not count."""

    def __init__(self, inner: DepthController) -> None:
        self.inner, self.most, self.needs, self.seconds, self.rounds = inner, inner.most, inner.needs, 0.0, 0

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.rounds += 1
        self._timed(lambda: self.inner.start(streams, load))

    @property
    def rests(self) -> bool:
        return self.inner.rests

    def copies(self, chances: Sequence[float]) -> int:
        return self._timed(lambda: self.inner.copies(chances))

    def deeper(self, state: DraftState) -> bool:
        return self._timed(lambda: self.inner.deeper(state))

    def width(self, most: int) -> int:
        return self.inner.width(most)

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        self._timed(lambda: self.inner.observe(round_, state))

    def _timed(self, work: Callable[[], T]) -> T:
        began = perf_counter()
        found = work()
        self.seconds += (perf_counter() - began) * (self.rounds > 1)
        return found


class Stopwatch:
    """An engine whose controllers are timed."""

    def __init__(self, engine: Engine) -> None:
        self._depth: Timed | None = None
        self.engine = WatchedEngine(engine, self._watch)

    def _watch(self, generation: Generation, number: int) -> None:
        self._depth = generation.depth = Timed(generation.depth)

    def noted(self) -> dict[str, Any]:
        """What a record says of the request that ended last."""
        return {"controller_seconds": self._depth.seconds if self._depth else 0.0}
