"""torch.compile around a decoder, behind a few shapes, so that small models are not held up by Python.

Forwards of one row and few cells are padded up to a bucket and run compiled; all else (prefill, several requests, layer
ranges) runs as the decoder does. Knows compilation; refuses to know what a forward is for.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from draftwood.errors import ConfigurationError
from draftwood.models.attention import products
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder, View

BUCKETS = (2, 8, 32)  # cells of a compiled forward
ROOM = 2048  # slots of a new cache's rows: programs are made for one capacity
# weights packed into the program, kernels chosen by trial; given as options of torch.compile they are half ignored
SETTINGS: dict[str, Any] = {"freezing": True, "max_autotune": True}


class Compiled:
    """A decoder whose small forwards are compiled, each bucket when it is first met.

    `compile_seconds` is what that took so far; PyTorch keeps programs on disk, so that the next process is faster. The
    weights are held twice: plain for large forwards, packed in the programs.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.vocab_size, self.context, self.n_layers = decoder.vocab_size, decoder.context, decoder.n_layers
        self.compile_seconds = 0.0
        self._met: set[tuple[int, int]] = set()  # (cells, capacity) of the programs so far
        self._run: Any = torch.compile(self._logits, fullgraph=True)

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def config(self) -> Any:
        return self.decoder.config

    def cells(self, count: int) -> int:
        return next((bucket for bucket in BUCKETS if bucket >= count), count)

    def new_cache(self, rows: int, capacity: int) -> Cache:
        return self.decoder.new_cache(rows, max(capacity, min(self.context, ROOM) + 1))

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        rows, cells = batch.tokens.shape
        if rows > 1 or cells not in BUCKETS or batch.start > 0 or batch.stop is not None:
            return self.decoder.forward(batch, cache)
        views = self.decoder.views(batch, cache)
        x = self.decoder.embedded(batch.tokens, batch.positions)
        planes = cache.of(batch.rows)
        for view in views:
            if view.bias is not None:
                if view.bias.shape[1] == 1:  # one shape for all
                    view.bias = view.bias.repeat(1, cells * self._group, 1)
                torch._dynamo.mark_dynamic(view.bias, 2)
            view.attend = products
        program = (cells, cache.capacity)
        if program in self._met:
            logits: Tensor = self._run(x, views, batch.slots, planes)
        else:
            began = perf_counter()
            with torch._inductor.config.patch(**SETTINGS):
                logits = self._compile(x, views, batch.slots, planes)
            self._met.add(program)
            self.compile_seconds += perf_counter() - began
        return logits[batch.wanted]

    def _compile(self, *inputs: Any) -> Tensor:
        """The first run of a program."""
        try:
            logits: Tensor = self._run(*inputs)
        except Exception as error:  # a compiler fails in many ways; the sentence is the same
            reason = str(error).splitlines()[0] if str(error) else "no message"
            raise ConfigurationError(
                f"torch.compile failed ({type(error).__name__}: {reason}); it needs a C++ compiler such as g++; "
                "leave compile out to run without"
            ) from error
        return logits

    def _logits(self, x: Tensor, views: list[View], slots: Tensor, planes: list[Tensor]) -> Tensor:
        """What is compiled: all layers and the head, logits [Q, V]."""
        return self.decoder.logits(self.decoder.run(x, views, slots, planes, 0, self.n_layers).flatten(0, 1))

    @property
    def _group(self) -> int:
        config = self.decoder.config
        return config.num_attention_heads // config.num_key_value_heads
