"""How much of a request's time its depth controller takes for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth import ALONE, DepthController, Growth, Load
from draftwood.engine import Engine
from draftwood.generation import Generation
from draftwood.sampling import Streams
from draftwood.train.recording import Recording


@dataclass(slots=True)
class Timed(DepthController):
    """A controller whose answers are timed; as everywhere the first round, which reads the prompt, does not count."""

    inner: DepthController
    needs: frozenset[str] = field(init=False)
    seconds: float = 0.0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.needs = self.inner.needs

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.rounds += 1
        began = perf_counter()
        self.inner.start(streams, load)
        self._count(began)

    def deeper(self, growth: Growth) -> bool:
        began = perf_counter()
        decided = self.inner.deeper(growth)
        self._count(began)
        return decided

    def width(self, most: int) -> int:
        return self.inner.width(most)

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        began = perf_counter()
        self.inner.observe(round_, state)
        self._count(began)

    def _count(self, began: float) -> None:
        if self.rounds > 1:
            self.seconds += perf_counter() - began


class Stopwatch:
    """An engine whose controllers are timed."""

    def __init__(self, engine: Engine) -> None:
        self._depth: Timed | None = None
        self.engine = Recording(engine, self._watch)

    def _watch(self, generation: Generation, number: int) -> None:
        self._depth = generation.depth = Timed(generation.depth)

    def noted(self) -> dict[str, Any]:
        """What a record says of the request that ended last."""
        return {"controller_seconds": self._depth.seconds if self._depth else 0.0}
