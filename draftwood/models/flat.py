"""From the rows of several requests in one batch to attention: which rows share a product, and what each row sees.

All operations but attention treat the rows of a batch alike. For attention, segments (the rows of one request each)
with equally many rows whose extents lie side by side in the cache form a group, which one batched product serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftwood.models.base import Batch, Segment
from draftwood.models.cache import SPAN_MULTIPLE, Cache
from draftwood.models.extents import Extent
from draftwood.models.kv_rows import from_rows, to_rows
from draftwood.models.recurrent_fold import StateStore


@dataclass(slots=True)
class Scores:
    """How queries and keys [..., D] make scores: times `scale` (None: D ** -0.5), then cap * tanh(score / cap).

    `sinks` [heads]: a score more in the softmax of each head, which adds nothing.
    """

    scale: float | None = None
    cap: float | None = None
    sinks: Tensor | None = None

    def factor(self, width: int) -> float:
        """The scale of heads `width` wide."""
        return width**-0.5 if self.scale is None else self.scale


PLAIN_SCORES = Scores()


@dataclass(slots=True)
class AttentionGroup:
    """Segments whose attention is one product: equally many queries each, in neighbouring extents of one capacity."""

    rows: slice  # its rows among the queries
    count: int  # number of segments
    extent: Extent  # of the first segment
    span: int  # slots that are read of each extent
    bias: Tensor  # additive mask, shaped as `attend` wants it


@dataclass(slots=True)
class AttentionMetadata:
    """The data that layers with the same window share in a forward: rotary tables, masks, the attention function."""

    cos: Tensor | None  # [1, N, 1, rotary_dim] of each row's position; None: no rotation
    sin: Tensor | None
    attend: Callable[..., Tensor]
    bias: Tensor | None = None  # mask in training, where there are no groups; None: causal
    groups: Sequence[AttentionGroup] = ()
    query_rows: Tensor | None = None  # [Q] row of the batch for each query of the groups; None: the rows in order
    row_queries: Tensor | None = None  # [N] query of each row, to undo `query_rows`
    query_factors: Tensor | None = None  # [B, N, 1, 1] that queries are multiplied by
    beside: Tensor | None = None  # [B, N, D] what trained heads read beside the rows: the tokens' embeddings
    per_layer_inputs: Tensor | None = None  # [B, N, layers, W] of layers with per-layer embeddings


class KVStore(Protocol):
    """The keys and values of one layer, which attention writes and reads, and the states of a recurrent mixer."""

    states: StateStore | None

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, meta: AttentionMetadata, scores: Scores) -> Tensor:
        """Store k and v [1, N, kv_heads, D] of N rows; return attention [1, N, heads * D] of q [1, N, heads, D].

        Values may have another D, which the result then has.

        Without k and v those are read that an earlier layer has stored.
        """
        ...


@dataclass(slots=True)
class CachedKV:
    """The keys and values of one layer in a `Cache`: in a plane and the next one."""

    cache: Cache
    first_plane: int
    index: Tensor  # [N * kv_heads] rows of both planes that are written
    states: StateStore | None = None

    def write(self, k: Tensor | None, v: Tensor | None) -> None:
        """Store keys and values [1, N, kv_heads, D] of N rows."""
        for plane, values in enumerate((k, v), self.first_plane):
            if values is not None:
                stored, width = self.cache.planes[plane], values.shape[-1]
                stored.index_copy_(0, self.index, to_rows(values.reshape(-1, width), stored.dtype))

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, meta: AttentionMetadata, scores: Scores) -> Tensor:
        self.write(k, v)
        rows = q[0] if meta.query_rows is None else q[0, meta.query_rows]
        parts: list[Tensor] = []
        for group in meta.groups:
            keys, values = (
                from_rows(self.cache.read(plane, group.extent, group.span, group.count), q.dtype, width)
                for plane, width in enumerate((q.shape[-1], (q if v is None else v).shape[-1]), self.first_plane)
            )
            queries = rows[group.rows].view(group.count, -1, *rows.shape[1:])
            parts.append(meta.attend(queries, keys, values, group.bias, scores).flatten(0, 1))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (out if meta.row_queries is None else out[meta.row_queries])[None]


@dataclass(slots=True)
class TextKV:
    """The keys and values of one layer in training, where rows of whole texts see one another; others may read them."""

    made: tuple[Tensor, Tensor] | None = None  # [B, kv_heads, N, D] each
    states: StateStore | None = None

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, meta: AttentionMetadata, scores: Scores) -> Tensor:
        if k is not None and v is not None:
            self.made = k.transpose(1, 2), v.transpose(1, 2)
        assert self.made is not None
        out: Tensor = meta.attend(q, *self.made, meta.bias, scores)
        return out


@dataclass(slots=True)
class TextPass:
    """Whole texts on their way through the layers, in training: where they begin, and what layers read beside x."""

    x: Tensor  # [B, T, D] input of the first layer
    metadata: list[AttentionMetadata]  # of each kind of layer
    stores: list[TextKV | None]  # of each layer


def written_rows(batch: Batch, cache: Cache, heads: int) -> Tensor:
    """The rows [N * heads] int64 of a plane with `heads` heads that a batch writes.

    Padding rows, which repeat the last row of the batch, write the same values to the same place.
    """
    rows = cache.index(heads, [(segment.extent, segment.slots) for segment in batch.segments])
    padding = len(batch.tokens) - len(rows) // heads
    return torch.cat((rows, rows[-heads:].repeat(padding))) if padding else rows


def group_segments(batch: Batch, min_rows: int) -> tuple[list[tuple[list[Segment], int]], list[int], list[int]]:
    """Group the segments of a batch whose attention is one product, and pad each to `min_rows` query rows at least.

    Returns the groups, each as its segments and the number of query rows of each; the row of the batch that each query
    is (padding repeats a segment's last row); and the query of each row.
    """
    groups: list[tuple[list[Segment], int]] = []
    query_rows: list[int] = []
    row_queries: list[int] = []
    row, single = 0, len(batch.segments) == 1
    for segment in batch.segments:
        count = len(segment)
        rows = len(batch.tokens) if single else max(count, min_rows)
        row_queries.extend(range(len(query_rows), len(query_rows) + count))
        query_rows.extend(range(row, row + count))
        row += count
        query_rows.extend(range(row, len(batch.tokens)) if single else [row - 1] * (rows - count))
        if groups and groups[-1][1] == rows:
            before = groups[-1][0][-1].extent
            if (segment.extent.base, segment.extent.capacity) == (before.base + before.capacity, before.capacity):
                groups[-1][0].append(segment)
                continue
        groups.append(([segment], rows))
    padding = len(batch.tokens) - len(row_queries)
    row_queries.extend(range(len(row_queries), len(batch.tokens)) if single else [row_queries[-1]] * padding)
    return groups, query_rows, row_queries


def visibility(segments: Sequence[Segment], rows: int, device: torch.device) -> Tensor:
    """A bool mask [count, rows, span]: True where a row of a segment of a group sees a slot.

    span is rounded up to a multiple of SPAN_MULTIPLE. The mask is [1, 1, span] where all rows of the only segment see
    the same slots. Padding rows see what the last row sees.
    """
    spans = [segment.span for segment in segments]
    masks = [segment.mask(span) for segment, span in zip(segments, spans, strict=True)]
    if len(segments) == 1 and masks[0] is None:
        rows = 1
    visible = np.zeros((len(segments), rows, -(-max(spans) // SPAN_MULTIPLE) * SPAN_MULTIPLE), np.bool_)
    for seen, span, mask in zip(visible, spans, masks, strict=True):
        if mask is None:
            seen[:, :span] = True
        else:
            seen[: len(mask), :span] = mask
            seen[len(mask) :, :span] = mask[-1]
    return torch.from_numpy(visible).to(device)
