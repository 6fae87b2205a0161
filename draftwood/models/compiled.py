"""torch.compile around a decoder, behind a few shapes, so that small models are not held up by Python.

Forwards of one request and few rows are padded up to a bucket and run compiled; all else (prefill, several requests,
layer ranges) runs as the decoder does.
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
from draftwood.models.flat import AttentionMetadata
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.wrapper import DecoderWrapper

BUCKETS = (2, 8, 32)  # cells of a compiled forward
ROOM = 2048  # slots of a new cache's rows: programs are made for one capacity
# weights packed into the program, kernels chosen by trial; given as options of torch.compile they are half ignored
SETTINGS: dict[str, Any] = {"freezing": True, "max_autotune": True}


def shapes_only(guards: Sequence[Any]) -> list[bool]:
    """Which checks before each run are kept: a program is only run for what it was made for, but spans grow."""
    return [guard.guard_type == "SHAPE_ENV" for guard in guards]


OPTIONS: dict[str, Any] = {"guard_filter_fn": shapes_only} if hasattr(torch.compiler, "skip_all_guards_unsafe") else {}


@dataclass(slots=True)
class ExtentKV:
    """Keys and values of one extent in one layer: its part of two planes, [1, heads, capacity, width]."""

    keys: Tensor
    values: Tensor
    slots: Tensor  # [N] that are written

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, meta: AttentionMetadata, scale: float | None, cap: float | None
    ) -> Tensor:
        assert meta.bias is not None
        span = meta.bias.shape[-1]
        for plane, values in ((self.keys, k), (self.values, v)):
            plane[0].index_copy_(1, self.slots, values[0].transpose(0, 1))
        return products(q, self.keys[:, :, :span], self.values[:, :, :span], meta.bias, scale, cap)


class Compiled(DecoderWrapper):
    """A decoder whose small forwards are compiled, each bucket when it is first met.

    `compile_seconds` is what that took so far. PyTorch keeps single kernels on disk, but no program with weights packed
    into it, so that another process is only somewhat faster. The weights are held twice: plain for large forwards,
    packed in the programs.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.vocab_size, self.context, self.n_layers = decoder.vocab_size, decoder.context, decoder.n_layers
        self.compile_seconds = 0.0
        self._programs: dict[tuple[int, int], Callable[..., Tensor]] = {}  # by cells and capacity

    @property
    def config(self) -> Any:
        return self.decoder.config

    def padded_rows(self, count: int) -> int:
        return next((bucket for bucket in BUCKETS if bucket >= count), count)

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        cache = self.decoder.new_cache(0, budget)
        cache.fixed = round_up(min(self.context, ROOM) + 1)
        return cache

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        rows, partial = len(batch.tokens), batch.start > 0 or batch.stop is not None
        if len(batch.segments) > 1 or rows not in BUCKETS or partial or batch.states or batch.hidden is not None:
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
            with torch._inductor.config.patch(**SETTINGS):
                logits = self._compile(program, x, metadata, slots, planes)
            self._programs[rows, extent.capacity] = program
            self.compile_seconds += perf_counter() - began
        else:
            logits = program(x, metadata, slots, planes)
        return logits[batch.wanted]

    def _program(self) -> Callable[..., Tensor]:
        """What is compiled: all layers and the head, logits [N, V]."""
        decoder = self.decoder

        def run(x: Tensor, metadata: list[AttentionMetadata], slots: Tensor, planes: list[Tensor]) -> Tensor:
            stores = [ExtentKV(planes[2 * layer], planes[2 * layer + 1], slots) for layer in range(decoder.n_layers)]
            return decoder.logits(decoder.run(x, metadata, stores, 0, decoder.n_layers)[0])

        # code of its own: PyTorch looks programs up by code, in turn, and refuses more than eight
        own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
        compiled: Callable[..., Tensor] = torch.compile(own, fullgraph=True, dynamic=False, options=OPTIONS)
        return compiled

    def _compile(self, program: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """The first run of a program."""
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
