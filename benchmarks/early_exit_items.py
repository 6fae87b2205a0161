"""How one run of benchmarks/early_exit.py is measured: as beams_items.py does, and EESD's counts beside it.

Knows drafts, accepted drafts and the time that a depth controller takes for itself. Refuses to know what is concluded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from beams_items import Lab, Record, described
from beams_settings import Item, Setting
from early_exit_settings import KEPT

from draftwood.decode import Request
from draftwood.depth import DepthController, Growth
from draftwood.results import Round
from draftwood.sampling import Streams
from draftwood.train.recording import Recording


@dataclass(slots=True)
class Timed:
    """In the place of a request's depth controller, which it asks; adds up the time of its answers.

    As everywhere the first round, which reads the prompt, is not counted.
    """

    inner: DepthController
    needs: frozenset[str] = field(init=False)
    seconds: float = 0.0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.needs = self.inner.needs

    def start(self, streams: Streams) -> None:
        self.rounds += 1
        began = perf_counter()
        self.inner.start(streams)
        self._count(began)

    def deeper(self, growth: Growth) -> bool:
        began = perf_counter()
        said = self.inner.deeper(growth)
        self._count(began)
        return said

    def observe(self, round_: Round) -> None:
        began = perf_counter()
        self.inner.observe(round_)
        self._count(began)

    def _count(self, began: float) -> None:
        if self.rounds > 1:
            self.seconds += perf_counter() - began


def resolved(method: Mapping[str, Any], kept: Path) -> dict[str, Any]:
    """A method whose trained parts are named by their places here."""
    return {name: value.replace(KEPT, str(kept)) if isinstance(value, str) else value for name, value in method.items()}


@dataclass
class ExitLab(Lab):
    """Models to measure with; `kept` holds what was trained for them."""

    kept: Path = Path()
    _watched: Recording | None = None
    _depth: Timed | None = None

    def _watch(self, request: Request, number: int) -> None:
        self._depth = request.depth = Timed(request.depth)

    def run(self, setting: Setting, item: Item) -> Record:
        """Measure one run."""
        if self._watched is None:
            self._watched = Recording(self.engine, self._watch)
        result = self._watched.generate(
            item.document.prompt,
            resolved(setting.method, self.kept),
            setting.sampling,
            max_new_tokens=item.tokens,
            seed=item.seed,
            ignore_eos=setting.ignore_eos,
        )
        assert self._depth is not None
        return {
            **described(result, setting, item),
            "drafted": result.metrics.drafted,
            "later_drafted": sum(round_.drafted for round_ in result.rounds[1:]),
            "accepted_drafts": result.metrics.accepted,
            "controller_seconds": self._depth.seconds,
            "digest": hashlib.sha256(repr(result.tokens).encode()).hexdigest()[:8],
        }
