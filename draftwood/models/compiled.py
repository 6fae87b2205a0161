"""torch.compile around a decoder, which removes Python's overhead from small models.

Forwards of one request with few rows are padded to one of a few numbers of rows, and run compiled. All others (prompts,
several requests, layer ranges) run uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from draftwood.errors import ConfigurationError
from draftwood.models.backend.attention import products
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, round_up
from draftwood.models.decoder import Decoder
from draftwood.models.flat import AttentionMetadata, Scores
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.recurrent_fold import StateStore
from draftwood.models.wrapper import DecoderWrapper

ROW_BUCKETS = (2, 8, 32)  # numbers of rows that forwards are padded to
EXTENT_SLOTS = 2048  # capacity of extents in a new cache: programs are compiled for one capacity
# weights packed into the program, kernels chosen by trial; given as options of torch.compile they are half ignored
INDUCTOR_SETTINGS: dict[str, Any] = {"freezing": True, "max_autotune": True}


def shapes_only(guards: Sequence[Any]) -> list[bool]:
    """Keep only the checks of shapes before each run: nothing else of a program's input changes, but spans grow."""
    return [guard.guard_type == "SHAPE_ENV" for guard in guards]


COMPILE_OPTIONS: dict[str, Any] = {}
if hasattr(torch.compiler, "skip_all_guards_unsafe"):
    COMPILE_OPTIONS["guard_filter_fn"] = shapes_only


@dataclass(slots=True)
class ExtentKV:
    """The keys and values of one layer in one extent, for compiled forwards: views [1, heads, capacity, width]."""

    keys: Tensor
    values: Tensor
    slots: Tensor  # [N] slot of the extent that each row is written to
    states: StateStore | None = None

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, meta: AttentionMetadata, scores: Scores) -> Tensor:
        assert meta.bias is not None
        span = meta.bias.shape[-1]
        for plane, values in ((self.keys, k), (self.values, v)):
            if values is not None:
                plane[0].index_copy_(1, self.slots, values[0].transpose(0, 1))
        return products(q, self.keys[:, :, :span], self.values[:, :, :span], meta.bias, scores)


class Compiled(DecoderWrapper):
    """A decoder whose small forwards are compiled, for each number of rows when it is first needed.

    `compile_seconds` is the time that compilation has taken so far. PyTorch caches single kernels on disk, but no
    program with weights packed into it, so that the next process compiles almost as long. The weights are in memory
    twice: plain for large forwards, packed in the programs.
    """

    def __init__(self, decoder: Decoder) -> None:
        if decoder.recurrent_shapes:
            raise ConfigurationError("a model with recurrent layers is not compiled; leave compile out")
        if decoder.streams is not None:
            raise ConfigurationError("a model whose rows are several vectors is not compiled; leave compile out")
        self.decoder = decoder
        self.vocab_size, self.context, self.n_layers = decoder.vocab_size, decoder.context, decoder.n_layers
        self.compile_seconds = 0.0
        self._programs: dict[tuple[int, int], Callable[..., Tensor]] = {}  # by number of rows and capacity

    @property
    def config(self) -> Any:
        return self.decoder.config

    def padded_rows(self, count: int) -> int:
        return next((bucket for bucket in ROW_BUCKETS if bucket >= count), count)

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        cache = self.decoder.new_cache(0, budget)
        cache.fixed = round_up(min(self.context, EXTENT_SLOTS) + 1)
        return cache

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        rows, partial = len(batch.tokens), batch.start > 0 or batch.stop is not None
        shows = partial or batch.states or batch.reads or batch.hidden is not None
        if len(batch.segments) > 1 or rows not in ROW_BUCKETS or shows:
            return self.decoder.forward(batch, cache)
        extent = batch.segments[0].extent
        metadata = self.decoder.attention_metadata(batch, cache)
        if any(meta.groups[0].span >= extent.capacity for meta in metadata):
            return self.decoder.forward(batch, cache)  # a full extent would be a shape of its own
        x = self.decoder.embedded(batch.tokens, batch.positions)[None]
        slots = torch.tensor([*batch.segments[0].slots, *[batch.segments[0].slots[-1]] * rows][:rows])
        for meta in metadata:
            bias = meta.groups[0].bias
            if bias.shape[1] == 1:  # one shape for all
                bias = bias.repeat(1, rows * self._group, 1)
            torch._dynamo.mark_dynamic(bias, 2)
            meta.bias, meta.attend, meta.groups = bias, products, ()
        planes = [cache.read(plane, extent) for plane in range(len(cache.planes))]
        program = self._programs.get((rows, extent.capacity))
        if program is None:
            began = perf_counter()
            program = self._program()
            with torch._inductor.config.patch(**INDUCTOR_SETTINGS):
                logits = self._compile(program, x, metadata, slots, planes)
            self._programs[rows, extent.capacity] = program
            self.compile_seconds += perf_counter() - began
        else:
            logits = program(x, metadata, slots, planes)
        return logits[batch.wanted]

    def _program(self) -> Callable[..., Tensor]:
        """A new function to compile: from embedded rows through all layers and the head to logits [N, V]."""
        decoder = self.decoder

        def run(x: Tensor, metadata: list[AttentionMetadata], slots: Tensor, planes: list[Tensor]) -> Tensor:
            stores = [ExtentKV(planes[at], planes[at + 1], slots) for at in decoder.first_planes]
            return decoder.logits(decoder.run(x, metadata, stores, 0, decoder.n_layers)[0])

        # code of its own: PyTorch looks programs up by code, in turn, and refuses more than eight
        own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
        compiled: Callable[..., Tensor] = torch.compile(own, fullgraph=True, dynamic=False, options=COMPILE_OPTIONS)
        return compiled

    def _compile(self, program: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Run a program for the first time, which compiles it; ConfigurationError where that fails."""
        import torch._inductor.select_algorithm as selection  # slow to import

        selection.PRINT_AUTOTUNE = False  # a table per kernel, on standard error
        try:
            return program(*inputs)
        except Exception as error:  # a compiler fails in many ways; the sentence is the same
            reason = str(error).splitlines()[0] if str(error) else "no message"
            raise ConfigurationError(
                f"torch.compile failed ({type(error).__name__}: {reason}); it needs a C++ compiler such as g++; "
                "leave compile out to run without"
            ) from error

    @property
    def _group(self) -> int:
        config = self.decoder.config
        return config.num_attention_heads // config.num_key_value_heads
