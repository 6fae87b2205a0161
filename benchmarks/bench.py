"""The bench of an experiment: its models, measurements that are kept as they are made, and the bar."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.experiment import ExperimentRun
from benchmarks.pairs import Pair, pair
from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.util.files import writing
from draftwood.util.jsonl import cut_torn_line
from draftwood.util.safe_parsing import parse_json

T = TypeVar("T")
OnProgress = Callable[[str, int, int | None], None]  # what is done, how many times already, of how many


@dataclass
class Bench:
    """One run of an experiment. `work` keeps what was measured until the result is written."""

    run: ExperimentRun
    work: Path
    on_progress: OnProgress = lambda what, done, total: None
    models: Pair | None = None  # instead of the run's pair
    llama_python: Path | None = None  # a Python with llama-cpp-python
    stopped: bool = False  # by Ctrl-C: rows are of what was measured before
    others: dict[str, Engine] = field(default_factory=dict)  # engines besides those of `engine_of`, by a kind's names
    warm: set[Any] = field(default_factory=set)  # what has run once in this process
    _engines: dict[tuple[str, ...], Engine] = field(default_factory=dict)
    _kept: dict[str, Any] | None = None

    @property
    def pair(self) -> Pair:
        """The models, grown first where they are not there yet."""
        if self.models is None:
            self.models = pair(self.run.pair)
        return self.models

    @property
    def engine(self) -> Engine:
        """The pair in the run's type, loaded once."""
        return self.engine_of(self.run.dtype, self.run.quantize)

    def engine_of(
        self, dtype: str, quantize: str | None = None, backend: str = "auto", kv_dtype: str = "auto"
    ) -> Engine:
        """The pair in a type, loaded once."""
        key = dtype, str(quantize), backend, kv_dtype
        if key not in self._engines:
            models = self.pair
            self.on_progress(f"loading {models.name}", 0, None)
            options: dict[str, Any] = {
                "dtype": dtype,
                "quantize": quantize,
                "backend": backend,
                "kv_dtype": kv_dtype,
                "reuse_prefixes": False,
            }
            self._engines[key] = load(models.target, models.draft, **options)
        return self._engines[key]

    def once(self, key: Sequence[Any], make: Callable[[], T]) -> T:
        """A measurement (plain data) by its key: made now, or read where it was made before."""
        path = self.work / "measured.jsonl"
        if self._kept is None:
            with path.open("a+b") as kept:
                cut_torn_line(kept)
                kept.seek(0)
                self._kept = dict(map(parse_json, kept))
        name = json.dumps(key)
        if name not in self._kept:
            value = json.loads(json.dumps(make()))
            with writing(self.work), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, value]) + "\n")
            self._kept[name] = value
        found: T = self._kept[name]
        return found

    def settle(self) -> None:
        """Look for garbage now, and never among what is there: that takes long, and strikes whichever arm runs."""
        gc.collect()
        gc.freeze()

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items, with a bar."""
        each = list(items)
        for done, item in enumerate(each):
            self.on_progress(what, done, len(each))
            yield item


def rotated(items: Sequence[T], number: int) -> list[T]:
    """The items in their order, in each turn from another one on: so that none always follows the same one."""
    first = number % max(1, len(items))
    return [*items[first:], *items[:first]]
