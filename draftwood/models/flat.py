"""A flat batch as a decoder sees it: rows of all requests in one, attention for each group of like segments.

A group's segments have as many rows of queries each and lie side by side in the cache, so that one product serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftwood.models.base import Batch, Segment
from draftwood.models.cache import GRAIN, Cache, Extent


@dataclass(slots=True)
class Group:
    """Segments whose attention is one product: as many queries each, in neighbouring extents of one capacity."""

    rows: slice  # of the queries
    count: int
    extent: Extent  # the first one
    span: int
    bias: Tensor  # additive mask, as `attend` wants it


@dataclass(slots=True)
class View:
    """What the layers of one kind share in a forward."""

    cos: Tensor | None  # [1, N, 1, rotary_dim]; None: no rotation
    sin: Tensor | None
    attend: Callable[..., Tensor]
    bias: Tensor | None = None  # in training, where there are no groups; None: causal
    groups: Sequence[Group] = ()
    take: Tensor | None = None  # rows that the groups' queries are, where these are not the rows one by one
    back: Tensor | None = None  # place of each row among the queries
    beside: Tensor | None = None  # [B, N, D] what a layer reads beside its rows: a trained head, the tokens' embeddings


class Memory(Protocol):
    """Where a layer keeps keys and values."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, view: View, scale: float | None, cap: float | None) -> Tensor:
        """Keep k and v [1, N, kv_heads, D]; attention [1, N, heads * D] of q [1, N, heads, D]."""
        ...


@dataclass(slots=True)
class Layered:
    """A layer's keys and values in a cache; attention group by group."""

    cache: Cache
    layer: int
    index: Tensor  # [N * kv_heads] rows of both planes that are written

    def attend(self, q: Tensor, k: Tensor, v: Tensor, view: View, scale: float | None, cap: float | None) -> Tensor:
        for plane, values in enumerate((k, v), 2 * self.layer):
            self.cache.planes[plane].index_copy_(0, self.index, values.reshape(-1, values.shape[-1]))
        rows = q[0] if view.take is None else q[0, view.take]
        parts: list[Tensor] = []
        for group in view.groups:
            keys, values = (
                self.cache.read(plane, group.extent, group.span, group.count)
                for plane in (2 * self.layer, 2 * self.layer + 1)
            )
            queries = rows[group.rows].view(group.count, -1, *rows.shape[1:])
            parts.append(view.attend(queries, keys, values, group.bias, scale, cap).flatten(0, 1))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (out if view.back is None else out[view.back])[None]


def index(batch: Batch, cache: Cache, heads: int) -> Tensor:
    """Rows [N * heads] of a plane that a batch writes; rows that repeat the last one write what it does."""
    rows = cache.index(heads, [(segment.extent, segment.slots) for segment in batch.segments])
    more = len(batch.tokens) - len(rows) // heads
    return torch.cat((rows, rows[-heads:].repeat(more))) if more else rows


def packs(batch: Batch, fewest: int) -> tuple[list[tuple[list[Segment], int]], list[int], list[int]]:
    """Segments that share their products, with rows of queries each; the row that each query is, and the reverse."""
    packs: list[tuple[list[Segment], int]] = []
    take: list[int] = []
    back: list[int] = []
    row, single = 0, len(batch.segments) == 1
    for segment in batch.segments:
        count = len(segment)
        rows = len(batch.tokens) if single else max(count, fewest)
        back.extend(range(len(take), len(take) + count))
        take.extend(range(row, row + count))
        row += count
        take.extend(range(row, len(batch.tokens)) if single else [row - 1] * (rows - count))
        if packs and packs[-1][1] == rows:
            before = packs[-1][0][-1].extent
            if (segment.extent.base, segment.extent.capacity) == (before.base + before.capacity, before.capacity):
                packs[-1][0].append(segment)
                continue
        packs.append(([segment], rows))
    back.extend(range(len(back), len(batch.tokens)) if single else [back[-1]] * (len(batch.tokens) - len(back)))
    return packs, take, back


def visible(segments: Sequence[Segment], rows: int, device: torch.device) -> Tensor:
    """Which slots the rows of some segments see [count, rows, span], in whole grains; [1, 1, span] where all do."""
    spans = [segment.span for segment in segments]
    masks = [segment.mask(span) for segment, span in zip(segments, spans, strict=True)]
    if len(segments) == 1 and masks[0] is None:
        rows = 1
    visible = np.zeros((len(segments), rows, -(-max(spans) // GRAIN) * GRAIN), np.bool_)
    for place, span, mask in zip(visible, spans, masks, strict=True):
        if mask is None:
            place[:, :span] = True
        else:
            place[: len(mask), :span] = mask
            place[len(mask) :, :span] = mask[-1]
    return torch.from_numpy(visible).to(device)
