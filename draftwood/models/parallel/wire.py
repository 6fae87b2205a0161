"""The message that announces a forward to followers: lists of integers in one tensor, never pickles."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.models.base import Batch, Segment
from draftwood.models.extents import Extent

LISTS_PER_SEGMENT = 6


@dataclass(frozen=True, slots=True)
class ForwardOrder:
    """A forward for followers: the batch without its tokens, and the changes of caches since the last forward."""

    batch: Batch
    skipped: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # layers whose attention, and whose MLP, is left out
    cache: int = 0  # the number of the cache, see `cache.ChangeLog`
    changes: Sequence[Sequence[int]] = ()  # of that cache
    gone: Sequence[int] = ()  # numbers of caches that were deleted

    def numbers(self) -> Tensor:
        """The message: int64 [n] on the CPU, beginning with the number of lists and their lengths."""
        batch, count = self.batch, len(self.batch)
        wanted = batch.wanted
        rows = range(*wanted.indices(count)) if isinstance(wanted, slice) else wanted.tolist()
        stop = -1 if batch.stop is None else batch.stop
        facts = [self.cache, batch.reach, batch.start, stop, batch.head, len(self.changes), len(batch.segments)]
        lists: list[Any] = [facts, batch.numbers[count:], rows, *self.skipped, self.gone, *self.changes]
        for segment in batch.segments:
            paths = segment.paths
            lists += [
                (segment.extent.base, segment.extent.capacity),
                segment.slots,
                segment.trunk[: max(segment.seen)],
                segment.seen,
                [len(path) for path in paths],
                list(chain.from_iterable(paths)),
            ]
        sizes = [len(lists), *map(len, lists)]
        return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in (sizes, *lists)]))

    @classmethod
    def read(cls, numbers: Tensor, hidden: Tensor) -> ForwardOrder:
        """Read a message; `hidden` [N, D], the input of the forward's first layer, is sent apart."""
        values = numbers.numpy()
        count = int(values[0])
        parts = np.split(values[count + 1 :], np.cumsum(values[1:count]))
        lists = [part.tolist() for part in parts]
        (cache, reach, start, stop, head, changes, segments), positions, rows, attention, mlp, gone = lists[:6]
        made: list[Segment] = []
        for at in range(6 + changes, 6 + changes + LISTS_PER_SEGMENT * segments, LISTS_PER_SEGMENT):
            (base, capacity), slots, trunk, seen, lengths, flat = lists[at : at + LISTS_PER_SEGMENT]
            bounds = list(accumulate(lengths, initial=0))
            paths = [flat[first:last] for first, last in pairwise(bounds)]
            made.append(Segment(Extent(base, capacity), slots, array("i", trunk), seen, paths))
        batch = Batch(
            array("q", [*positions, *positions]),  # none of the tokens, whose embeddings are in `hidden`
            made,
            reach,
            torch.tensor(rows, device=hidden.device, dtype=torch.int64),
            start=start,
            stop=None if stop < 0 else stop,
            hidden=hidden,
            head=bool(head),
            device_of=hidden,
        )
        return cls(batch, (tuple(attention), tuple(mlp)), cache, lists[6 : 6 + changes], gone)
