"""What a model is to the rest of the system, and what one forward is told.

Anything with these members plugs in: the configurable decoder, a tabular function, an adapter.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.models.cache import Budget, Cache, Extent


@dataclass(slots=True)
class Segment:
    """The rows of a forward that belong to one request: where their keys and values go, and what they see.

    A row at position p sees the p + 1 slots trunk[:seen], then its path, in order of position. The trunk may be longer
    than any row sees: it is shared with the session, which goes on writing behind what was seen.
    """

    extent: Extent
    slots: Sequence[int]  # slots of the extent that receive each row's keys and values
    trunk: array[int]  # slots of the trunk's tokens, 32 bits each
    seen: Sequence[int]  # how many of them each row sees, itself included where it is a token of the trunk
    paths: Sequence[Sequence[int]]  # slots of each row's ancestors that are nodes, and its own; empty in the trunk

    @classmethod
    def causal(cls, extent: Extent, first: int, count: int) -> Segment:
        """The rows at positions [first, first + count), each in the slot of its position, as all before them are."""
        slots = range(first, first + count)
        return cls(extent, slots, array("i", range(first + count)), [i + 1 for i in slots], [()] * count)

    def __len__(self) -> int:
        return len(self.slots)

    def visible(self, row: int) -> list[int]:
        """The slots that a row sees, in order of position."""
        return [*self.trunk[: self.seen[row]], *self.paths[row]]

    @property
    def span(self) -> int:
        """All rows see slots in [0, span) only, and the last of these is seen."""
        behind = max(chain.from_iterable(self.paths), default=-1)
        return 1 + int(np.maximum.reduce(np.asarray(self.trunk)[: max(self.seen)], initial=behind))

    def mask(self, span: int) -> npt.NDArray[np.bool_] | None:
        """Which of the slots [0, span) each row sees [n, span]; None where all rows see all of them."""
        count, longest = len(self.slots), max(self.seen)
        lengths = [seen + len(path) for seen, path in zip(self.seen, self.paths, strict=True)]
        if min(lengths) == span:
            return None
        first = span - count
        if lengths == list(range(first + 1, span + 1)) and list(self.slots) == list(range(first, span)):
            # the last row sees every slot, so that the rows are one chain: none sees those of the rows behind it
            mask: npt.NDArray[np.bool_] = np.arange(span) < np.array(lengths)[:, None]
            return mask
        trunk = np.asarray(self.trunk)[:longest]
        if min(self.seen) == longest:
            mask = np.zeros((count, span), np.bool_)
            mask[0, trunk] = True
            mask[1:] = mask[0]
        else:
            place = np.full(span, span, np.int32)  # of each slot in the trunk
            place[trunk] = np.arange(longest)
            mask = place < np.array(self.seen)[:, None]
        nodes = [row * span + slot for row, path in enumerate(self.paths) for slot in path]
        mask.ravel()[nodes] = True
        return mask


@dataclass(slots=True)
class Batch:
    """One forward pass over N rows (tokens), those of each segment together; the last row is repeated where N is small.

    Segments of one capacity that are neighbours in the cache come in its order: they share their products.
    """

    numbers: array[int]  # [2 N], 64 bits each: the tokens, then the place of each in its sequence, 0-based
    segments: Sequence[Segment]
    reach: int  # all positions are below
    wanted: Tensor | slice  # rows whose logits are asked for: [n] int64, or a slice of them
    start: int = 0  # layers [start, stop) are computed
    stop: int | None = None  # None = to the end, with logits
    hidden: Tensor | None = None  # [N, D] output of layer start - 1 where start > 0, or of the model that is read
    head: bool = True  # whether logits are asked for
    states: tuple[int, ...] = ()  # layers whose output is asked for; the last: after the final norm
    near: CausalModel | Tensor | None = None  # what its tensors are made on the device of; None: the CPU
    kept: dict[int, Tensor] = field(default_factory=dict)  # layer -> [n, D] of the wanted rows, set by the model
    _both: Tensor | None = field(init=False, default=None)  # [2, N], made when it is first needed

    @classmethod
    def of(
        cls,
        model: CausalModel,
        tokens: Sequence[int],
        positions: Sequence[int],
        segments: Sequence[Segment],
        wanted: Sequence[int] | slice = slice(None),
        hidden: Tensor | None = None,
        **options: Any,
    ) -> Batch:
        """A batch for a model, with as many rows as it needs at least; `wanted` counts the rows that are given."""
        count, reach = len(tokens), max(positions) + 1
        more = model.cells(count) - count
        if more > 0:
            tokens, positions = ([*part, *[part[-1]] * more] for part in (tokens, positions))
            if hidden is not None:
                hidden = torch.cat((hidden, hidden[-1:].expand(more, -1)))
        if isinstance(wanted, slice):
            wanted = slice(*wanted.indices(count))
        elif wanted and list(wanted) == [*range(wanted[0], wanted[-1] + 1)]:
            wanted = slice(wanted[0], wanted[-1] + 1)
        numbers = array("q", [*tokens, *positions])
        rows = wanted if isinstance(wanted, slice) else torch.tensor(wanted, dtype=torch.int64, device=model.device)
        return cls(numbers, segments, reach, rows, hidden=hidden, near=model, **options)

    def __len__(self) -> int:
        return len(self.numbers) // 2

    @property
    def tokens(self) -> Tensor:
        """[N] int64, on the model's device."""
        return self._made()[0]

    @property
    def positions(self) -> Tensor:
        """[N] int64, on the model's device."""
        return self._made()[1]

    def _made(self) -> Tensor:
        if self._both is None:
            both = torch.frombuffer(self.numbers, dtype=torch.int64).view(2, -1)
            self._both = both if self.near is None else both.to(self.near.device)
        return self._both


@runtime_checkable
class CausalModel(Protocol):
    """A next-token model over slots.

    `forward` writes the rows' keys and values, then returns logits [n, vocab_size] of the wanted rows (float32, or
    float64 where the model computes in it), or their hidden states [n, D] when `batch.stop` ends below the last layer.
    Without `batch.head` the logits may be left out. `batch.states` are put in `batch.kept`; a model that cannot raises
    ModelError.
    """

    vocab_size: int
    context: int
    n_layers: int

    @property
    def device(self) -> torch.device: ...

    def cells(self, count: int) -> int:
        """How many rows a forward that needs `count` of them should have: the last one is repeated."""
        ...

    def new_cache(self, slots: int = 0, budget: Budget | None = None) -> Cache: ...

    def forward(self, batch: Batch, cache: Cache) -> Tensor: ...


@runtime_checkable
class Part(CausalModel, Protocol):
    """A model that is a part of another one and reads and writes the keys and values in its cache."""

    @property
    def whole(self) -> CausalModel: ...
