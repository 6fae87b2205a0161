"""Time of one token behind long contexts, by what keys and values are stored in; the types take turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.bench import Bench, rotated
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import median
from benchmarks.kinds.forwards import held_out, timed
from draftwood.engine.engine import Engine
from draftwood.models.base import Batch, Segment


class Contexts(Kind):
    """A row of the target behind `contexts` tokens, with keys and values in each of `kv_dtypes`.

    The first `read` tokens are read; their keys and values are copied until a context is full, which costs a token what
    a text of that length would. Where a context is longer than the model's, the token is at its last position.
    """

    kv_dtypes: tuple[str, ...] = ("float32", "bfloat16", "int8")
    contexts: tuple[int, ...] = (8192, 32768)
    read: int = 512
    repeats: int = 9
    seconds: float = 0.2  # of a sample, which is one forward at least

    def measure(self, bench: Bench) -> dict[str, Rows]:
        run = bench.run
        engines = {kind: bench.engine_of(run.dtype, run.quantize, kv_dtype=kind) for kind in self.kv_dtypes}
        tokens = held_out(next(iter(engines.values())), self.read)
        rows: Rows = []
        for context in self.contexts:
            calls = {kind: self.call(engine, tokens, context) for kind, engine in engines.items()}
            turns: list[dict[str, float]] = [{} for _ in range(self.repeats)]
            for turn, kind in bench.track(product(range(self.repeats), range(len(calls))), f"behind {context} tokens"):
                name = rotated([*calls], turn)[kind]
                turns[turn][name] = bench.once([context, turn, name], partial(self.sample, calls[name]))
            for name, engine in engines.items():
                size = engine.target.new_cache().slot_bytes
                ms = median([1000 * each[name] for each in turns])
                rows.append({"kv_dtype": name, "context": context, "ms": ms, "bytes_per_token": size})
        return {"contexts": rows}

    @torch.inference_mode()
    def call(self, engine: Engine, tokens: list[int], context: int) -> Callable[[], object]:
        """The forward of one token behind a context, in a cache that holds it."""
        model: Any = engine.target
        cache, count = model.new_cache(), len(tokens)
        extent = cache.lend(context + 1)
        model(Batch.of(model, tokens, range(count), [Segment.causal(extent, 0, count)], [count - 1]), cache)
        for plane in range(len(cache.planes)):
            stored = cache.read(plane, extent)
            for first in range(count, context, count):
                place = stored[:, :, first : min(first + count, context)]
                place.copy_(stored[:, :, : place.shape[2]])
        position = min(context, model.context - 1)
        return partial(model, Batch.of(model, tokens[:1], [position], [Segment.causal(extent, context, 1)]), cache)

    def sample(self, call: Callable[[], object]) -> float:
        """Seconds of a forward: the mean of as many as fill a sample, after one that warms up."""
        with torch.inference_mode():
            return timed(call, max(1, round(self.seconds / timed(call, 1))))
