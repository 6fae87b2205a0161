"""Time of one forward of the target for each number of rows, by type and backend, which take turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench, rotated
from benchmarks.engines import loading
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import median
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.models.base import Batch, Segment

Key = tuple[str, str]  # type and backend
Calls = dict[int | str, Callable[[], object]]  # number of rows, or PROMPT -> the forward
PROMPT = "prompt"
BASE = "pytorch"


class Forwards(Kind):
    """Forwards of `rows` rows behind `context` tokens, and of a prompt."""

    types: tuple[str, ...] = ("float32", "bfloat16", "int8", "int4")
    backends: tuple[str, ...] = ("native", BASE)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 45, 82, 128)
    context: int = 200
    prompt: int = 512
    repeats: int = 9
    seconds: float = 0.05  # of a sample, which is one forward at least

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engines, failures = self.engines(bench)
        tokens = held_out(next(iter(engines.values())), max(self.prompt, self.context + max(self.rows)))
        calls = {key: self.calls(engine, tokens) for key, engine in engines.items()}
        turns: list[dict[Any, float]] = []
        for turn in range(self.repeats):
            turns.append({})
            kinds: list[int | str] = [*self.rows, PROMPT]
            for rows in bench.track(kinds, f"turn {turn + 1}"):
                for key in rotated([*calls], turn):
                    sample = partial(self.sample, calls[key][rows])
                    turns[-1][rows, key] = bench.once([turn, rows, *key], sample)
        return {
            "forwards": [row(turns, key, rows) for key, each in calls.items() for rows in each],
            "failures": [{"type": kind, "backend": who, "failure": why} for (kind, who), why in failures.items()],
        }

    def engines(self, bench: Bench) -> tuple[dict[Key, Engine], dict[Key, str]]:
        """The pair in all types and backends, and why it is not there in others."""
        engines: dict[Key, Engine] = {}
        failures: dict[Key, str] = {}
        for key in product(self.types, self.backends):
            try:
                engines[key] = bench.engine_of(**loading(key[0]), backend=key[1])
            except ConfigurationError as error:
                failures[key] = str(error)
        if not engines:
            raise ConfigurationError("; ".join(failures.values()))
        return engines, failures

    def calls(self, engine: Engine, tokens: list[int]) -> Calls:
        """The forwards of a target, in a cache that holds what is before them."""
        model: Any = engine.target
        cache = model.new_cache()
        extent = cache.lend(len(tokens))

        def forward(first: int, count: int, wanted: Any) -> Callable[[], object]:
            segments = [Segment.causal(extent, first, count)]
            batch = Batch.of(model, tokens[first : first + count], range(first, first + count), segments, wanted)
            return partial(model, batch, cache)

        with torch.inference_mode():
            forward(0, self.context, [self.context - 1])()
        behind: Calls = {rows: forward(self.context, rows, slice(None)) for rows in self.rows}
        return behind | {PROMPT: forward(0, self.prompt, [self.prompt - 1])}

    def sample(self, call: Callable[[], object]) -> float:
        """Seconds of a forward: the mean of as many as fill a sample. A short one is warmed up first."""
        with torch.inference_mode():
            first = timed(call, 1)
            return first if first >= self.seconds else timed(call, round(self.seconds / first))


def row(turns: list[dict[Any, float]], key: Key, rows: int | str) -> dict[str, Any]:
    """Milliseconds of a forward, and how many times as fast it is as PyTorch's in the same turn."""
    kind, backend = key
    found: dict[str, Any] = {"type": kind, "backend": backend, "rows": rows}
    found["ms"] = median([1000 * turn[rows, key] for turn in turns])
    if (rows, (kind, BASE)) in turns[0]:
        found["to_pytorch"] = median([turn[rows, (kind, BASE)] / turn[rows, key] for turn in turns])
    return found


def held_out(engine: Engine, length: int) -> list[int]:
    """Token ids of held-out text, of all kinds in turn."""
    found: list[int] = []
    for document in mixed("held-out"):
        found += engine.tokens(document.text)
        if len(found) >= length:
            break
    return found[:length]


def timed(call: Callable[[], object], times: int) -> float:
    """Mean seconds of a call."""
    began = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - began) / times
