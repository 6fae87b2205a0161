"""A model that is a function: prefix -> distribution. For tests, and for checking one's own decoding ideas exactly.

Plugs in wherever a model does. Its cache holds tokens and positions instead of keys and values, and a cell's prefix is
what it is told to see, so that wrong slots or positions change the output.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.memory_budget import MemoryBudget


class TabularModel:
    """Next-token probabilities from `law(prefix)`, a sequence of `vocab_size` non-negative numbers (any sum).

    Computes in float64. `n_layers` > 1 pretends to have layers, so that layer ranges can be tested: hidden states carry
    the token through.
    """

    first = 0  # the position of the first token that others see

    def __init__(
        self,
        law: Callable[[tuple[int, ...]], Sequence[float]],
        vocab_size: int,
        context: int = 4096,
        n_layers: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.law = law
        self.vocab_size = vocab_size
        self.context = context
        self.n_layers = n_layers
        self.dtype = dtype
        self.device = torch.device("cpu")
        self._rows: dict[tuple[int, ...], Tensor] = {}

    @classmethod
    def random(
        cls, vocab_size: int, seed: int, order: int | None = None, sharpness: float = 1.0, **options: Any
    ) -> TabularModel:
        """A fixed random model: each prefix (its last `order` tokens, None = all) has its own distribution."""

        def law(prefix: tuple[int, ...]) -> list[float]:
            seen = prefix if order is None else prefix[len(prefix) - min(order, len(prefix)) :]
            rng = random.Random(f"{seed}:{seen}")
            return [rng.expovariate(1.0) ** sharpness for _ in range(vocab_size)]

        return cls(law, vocab_size, **options)

    def padded_rows(self, count: int) -> int:
        return count

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        """Two numbers per slot: token and position."""
        return Cache([(1, 2, torch.int64)], self.device, slots, budget)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        table = cache.planes[0].numpy()  # [slots, 2]
        slots = [segment.extent.base + slot for segment in batch.segments for slot in segment.slots]
        table[slots] = np.frombuffer(batch.numbers, np.int64).reshape(2, -1).T
        if batch.hidden is not None:
            table[slots, 0] = batch.hidden[:, 0].numpy()
        below = batch.stop is not None and batch.stop < self.n_layers
        if below or batch.states or batch.reads:
            hidden = torch.tensor(table[slots, :1], dtype=self.dtype)
            batch.read.update(dict.fromkeys(batch.reads, hidden))
            batch.kept.update(dict.fromkeys(batch.states, hidden[batch.wanted]))
            if below:
                return hidden
        segment_of = [(segment, row) for segment in batch.segments for row in range(len(segment))]
        shown = self.n_layers in batch.reads  # of all rows
        wanted = batch.wanted if isinstance(batch.wanted, slice) else batch.wanted.tolist()
        wanted = slice(None) if shown else wanted
        out = []
        for segment, place in segment_of[wanted] if isinstance(wanted, slice) else [segment_of[row] for row in wanted]:
            prefix, positions = table[[segment.extent.base + slot for slot in segment.visible(place)]].T.tolist()
            first = min(self.first, positions[-1])
            if positions != list(range(first, first + len(prefix))):
                raise AssertionError(f"a row sees the positions {positions}: its slots are wrong")
            out.append(self._log_law(tuple(prefix)))
        logits = torch.stack(out) if out else torch.empty(0, self.vocab_size, dtype=self.dtype)
        if shown:
            batch.read[self.n_layers] = logits  # there is nothing else that it could show
            logits = logits[batch.wanted]
        if self.n_layers in batch.states:
            batch.kept[self.n_layers] = logits
        return logits

    def _log_law(self, prefix: tuple[int, ...]) -> Tensor:
        row = self._rows.get(prefix)
        if row is None:
            row = self._rows[prefix] = torch.tensor(self.law(prefix), dtype=self.dtype).log()
        return row
