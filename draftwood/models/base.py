"""What a model is to the rest of the system, and what one forward is told.

Anything with these members plugs in: the configurable decoder, a tabular function, an adapter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from draftwood.models.cache import Cache


@dataclass(slots=True)
class Batch:
    """One forward pass: B rows of the cache, Q cells (tokens) in each, padded where a row has fewer."""

    tokens: Tensor  # [B, Q] int64
    positions: Tensor  # [B, Q] int64, place in the sequence, 0-based
    slots: Tensor  # [B, Q] int64, slots of its row that receive each cell's keys and values
    rows: slice  # the B cache rows that are read
    span: int  # attention reads the slots [0, span) of each row
    mask: Tensor | None  # [B, Q, span] bool, True = may be attended; None = every cell sees the whole span
    wanted: Tensor | slice  # flat cells whose logits are asked for: [n] int64, or a slice of them
    start: int = 0  # layers [start, stop) are computed
    stop: int | None = None  # None = to the end, with logits
    hidden: Tensor | None = None  # [B, Q, D] output of layer start - 1 where start > 0, or of the model that is read
    cells: Tensor | None = None  # flat cells [n] int64 that are not padding; None: compute all
    head: bool = True  # whether logits are asked for
    states: tuple[int, ...] = ()  # layers whose output is asked for; the last: after the final norm
    kept: dict[int, Tensor] = field(default_factory=dict)  # layer -> [n, D] of the wanted cells, set by the model


@runtime_checkable
class CausalModel(Protocol):
    """A next-token model over slots.

    `forward` writes the cells' keys and values, then returns logits [n, vocab_size] of the wanted cells (float32, or
    float64 where the model computes in it), or hidden states [B, Q, D] when `batch.stop` ends below the last layer.
    Without `batch.head` the logits may be left out. `batch.states` are put in `batch.kept`; a model that cannot raises
    ModelError.
    """

    vocab_size: int
    context: int
    n_layers: int

    @property
    def device(self) -> torch.device: ...

    def cells(self, count: int) -> int:
        """How many cells a row should have in a forward that needs `count` of them: the executor pads."""
        ...

    def new_cache(self, rows: int, capacity: int) -> Cache: ...

    def forward(self, batch: Batch, cache: Cache) -> Tensor: ...


@runtime_checkable
class Part(CausalModel, Protocol):
    """A model that is a part of another one and reads and writes the keys and values in its cache."""

    @property
    def whole(self) -> CausalModel: ...
