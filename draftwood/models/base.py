"""The interface of models (`CausalModel`) and the input of one forward pass (`Batch`, of one `Segment` per request).

Everything that has the members of `CausalModel` can be used as a target or a draft model: the configurable decoder, a
table of probabilities, an adapter around a model of another library.
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

from draftwood.core.row_tops import RowTops
from draftwood.models.cache import Cache
from draftwood.models.extents import Extent
from draftwood.models.memory_budget import MemoryBudget


@dataclass(slots=True)
class Segment:
    """The rows of a forward that belong to one request: the slots that they write, and those that they see.

    Rows are tokens of the trunk (the tokens that are final) or nodes of the draft tree below it. The row at position p
    sees p + 1 slots in order of position: the first `seen` slots of the trunk, then its path. `trunk` may be longer
    than any row sees: the session shares this array and appends to it.
    """

    extent: Extent
    slots: Sequence[int]  # the slot of the extent that each row's key and value are written to
    trunk: array[int]  # the slots of the trunk's tokens, 32 bits each
    seen: Sequence[int]  # how many slots of the trunk each row sees, its own included if it is a token of the trunk
    paths: Sequence[Sequence[int]]  # slots of each row's ancestors in the tree, and its own; empty in the trunk

    @classmethod
    def causal(cls, extent: Extent, first: int, count: int) -> Segment:
        """Rows at positions [first, first + count) of a text; the slot of every token is the number of its position."""
        slots = range(first, first + count)
        return cls(extent, slots, array("i", range(first + count)), [i + 1 for i in slots], [()] * count)

    def __len__(self) -> int:
        return len(self.slots)

    def visible(self, row: int) -> list[int]:
        """The slots that row number `row` sees, in order of position."""
        return [*self.trunk[: self.seen[row]], *self.paths[row]]

    @property
    def span(self) -> int:
        """One more than the largest slot that any row sees."""
        behind = max(chain.from_iterable(self.paths), default=-1)
        return 1 + int(np.maximum.reduce(np.asarray(self.trunk)[: max(self.seen)], initial=behind))

    def mask(self, span: int) -> npt.NDArray[np.bool_] | None:
        """A bool mask [n, span]: True where a row sees a slot in [0, span); None where all rows see all of them."""
        count, longest = len(self.slots), max(self.seen)
        lengths = [seen + len(path) for seen, path in zip(self.seen, self.paths, strict=True)]
        if min(lengths) == span:
            return None
        first = span - count
        if lengths == list(range(first + 1, span + 1)) and list(self.slots) == list(range(first, span)):
            # a chain of the last slots: each row sees one slot more than the row before it
            mask: npt.NDArray[np.bool_] = np.arange(span) < np.array(lengths)[:, None]
            return mask
        trunk = np.asarray(self.trunk)[:longest]
        if min(self.seen) == longest:
            mask = np.zeros((count, span), np.bool_)
            mask[0, trunk] = True
            mask[1:] = mask[0]
        else:
            place = np.full(span, span, np.int32)  # of each slot: its place in the trunk
            place[trunk] = np.arange(longest)
            mask = place < np.array(self.seen)[:, None]
        nodes = [row * span + slot for row, path in enumerate(self.paths) for slot in path]
        mask.ravel()[nodes] = True
        return mask


@dataclass(slots=True)
class Batch:
    """The input of one forward pass: N rows (tokens), sorted by segment, and what the model returns of them.

    Where a model needs more rows than there are (`CausalModel.padded_rows`), the last row is repeated. Segments whose
    extents are neighbours in the cache and have one capacity come in the order of the cache: they share products.
    """

    numbers: array[int]  # [2 N], 64 bits each: the tokens, then the position of each in its sequence, from 0
    segments: Sequence[Segment]
    reach: int  # one more than the largest position
    wanted: Tensor | slice  # the rows whose logits are returned: [n] int64, or a slice
    start: int = 0  # layers [start, stop) are computed
    stop: int | None = None  # None: up to the last layer, with logits
    hidden: Tensor | None = None  # [N, D] input of layer `start` > 0; for trained heads: states of the target
    head: bool = True  # whether logits are returned
    states: tuple[int, ...] = ()  # numbers of layers whose output is also returned; of the last after the final norm
    reads: tuple[int, ...] = ()  # the same of layers whose output at all rows is returned
    device_of: CausalModel | Tensor | None = None  # tensors are made on the device of this; None: the CPU
    kept: dict[int, Tensor] = field(default_factory=dict)  # set by the model: layer of `states` -> [n, D], wanted rows
    read: dict[int, Tensor] = field(default_factory=dict)  # set by the model: layer of `reads` -> [N, D]
    leading: int = 0  # of the most probable tokens, as many of each row for `tops` to have, if it has any
    tops: RowTops | None = field(init=False, default=None)  # set by the model where it knows them: of what it returns
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
        """A batch for a model, padded to the number of rows that it needs; `wanted` are numbers of the rows given."""
        count, reach = len(tokens), max(positions) + 1
        padding = model.padded_rows(count) - count
        if padding > 0:
            tokens, positions = ([*part, *[part[-1]] * padding] for part in (tokens, positions))
            if hidden is not None:
                hidden = torch.cat((hidden, hidden[-1:].expand(padding, -1)))
        if isinstance(wanted, slice):
            wanted = slice(*wanted.indices(count))
        elif wanted and list(wanted) == [*range(wanted[0], wanted[-1] + 1)]:
            wanted = slice(wanted[0], wanted[-1] + 1)
        numbers = array("q", [*tokens, *positions])
        rows = wanted if isinstance(wanted, slice) else torch.tensor(wanted, dtype=torch.int64, device=model.device)
        return cls(numbers, segments, reach, rows, hidden=hidden, device_of=model, **options)

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
            self._both = both if self.device_of is None else both.to(self.device_of.device)
        return self._both


@runtime_checkable
class CausalModel(Protocol):
    """A model of the next token whose keys and values lie in the slots of a `Cache`.

    `forward` writes the keys and values of all rows to the cache and returns the logits [n, vocab_size] of the wanted
    rows, in float32, or in float64 where the model computes in it. Where `batch.stop` is below the last layer it
    returns the output [N, D] of layer stop - 1 instead. Without `batch.head` the logits may have no columns. The
    outputs of the layers `batch.states` are put in `batch.kept`, those of `batch.reads` in `batch.read`; a model that
    has none raises ModelError.
    """

    vocab_size: int
    context: int
    n_layers: int

    @property
    def device(self) -> torch.device: ...

    def padded_rows(self, count: int) -> int:
        """The number of rows that a forward of `count` rows needs; `Batch.of` repeats the last row to get there."""
        ...

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache: ...

    def forward(self, batch: Batch, cache: Cache) -> Tensor: ...


@runtime_checkable
class SubModel(CausalModel, Protocol):
    """A model that is a part of another one, and stores its keys and values in that model's cache."""

    @property
    def full_model(self) -> CausalModel: ...
