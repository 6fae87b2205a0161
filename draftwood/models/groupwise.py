"""Attention of a transformers model over our cache, separately for each group of requests.

The rows of several requests go through the model as one sequence. Only attention must keep them apart: during such a
forward the model's attention function is replaced by one that calls it once for each group (`ForwardCache.attend`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache as TransformersCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.extents import Extent
from draftwood.models.flat import group_segments, visibility

ATTENTION_NAMES = ("eager", "sdpa")  # the implementations that take any mask as a tensor
GROUPWISE_PREFIX = "draftwood_"  # before their names: called group by group


@dataclass(frozen=True)
class AttentionReach:
    """The positions that layers of one type see: a sliding window or a chunk of `reach` positions, or all."""

    kind: str
    reach: int = 0

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[B, Q, span] bool by position, from queries [B, Q] and keys [B, span]; None = everything."""
        if self.kind == "sliding_attention":
            return queries[:, :, None] - keys[:, None] < self.reach
        if self.kind == "chunked_attention":
            return queries[:, :, None] // self.reach == keys[:, None] // self.reach
        return None


class CacheRecorder(TransformersCache):
    """Takes the place of the cache in a first forward, and records the shapes of each layer's keys and values."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.tails: dict[int, list[tuple[int, int]]] = {}  # (heads, width) of a layer's keys, of its values

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.tails[layer_idx] = [(x.shape[1], x.shape[3]) for x in (key_states, value_states)]
        return key_states, value_states


@dataclass
class MaskedGroup:
    """Requests whose attention is one product, as `flat.AttentionGroup`, with a mask for each type of layer."""

    rows: slice  # of the batch
    count: int
    extent: Extent  # the first one
    span: int
    masks: dict[str, Tensor]  # layer type -> [count, 1, rows, span], additive: eager attention would misread booleans


def grouped(batch: Batch, cache: Cache, types: Sequence[AttentionReach], dtype: torch.dtype) -> list[MaskedGroup]:
    """The groups of a batch, in the order of its rows. Where a type has a reach, the last plane holds positions."""
    groups: list[MaskedGroup] = []
    first, device = 0, batch.tokens.device
    for segments, count in group_segments(batch, 1)[0]:
        rows = slice(first, first := first + len(segments) * count)
        seen, positions = visibility(segments, count, device), batch.positions[rows].view(-1, count)
        shape, masks = (*positions.shape, seen.shape[-1]), {}
        for each in types:
            within_reach = None
            if each.reach:
                places = cache.read(-1, segments[0].extent, shape[-1], len(segments))[:, 0, :, 0]
                within_reach = each.sees(positions, places)
            mask = torch.zeros(shape, dtype=dtype, device=device)
            mask.masked_fill_(~(seen if within_reach is None else seen & within_reach), torch.finfo(dtype).min)
            masks[each.kind] = mask[:, None]
        groups.append(MaskedGroup(rows, len(segments), segments[0].extent, shape[-1], masks))
    return groups


class ForwardCache(TransformersCache):
    """Our cache as transformers uses it in one forward: layers write the rows' slots, and read those of a group."""

    def __init__(
        self, cache: Cache, planes: dict[int, int], types: Sequence[str], groups: Sequence[MaskedGroup]
    ) -> None:
        """`planes`: the first one of each layer; `types` of the layers, or the only one."""
        super().__init__(layers=[])
        self.cache, self.planes, self.types, self.groups = cache, planes, types, groups
        self.rows = slice(groups[0].rows.start, groups[-1].rows.stop)
        self.index: dict[int, Tensor] = {}  # heads -> rows of a plane that are written
        self.layer = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.layer = layer_idx
        for plane, states in enumerate((key_states, value_states), self.planes[layer_idx]):  # [B, heads, Q, width]
            rows = states.transpose(1, 2).reshape(-1, states.shape[-1])
            self.cache.planes[plane].index_copy_(0, self.index[states.shape[1]], rows)
        return self.read(self.groups[0]) if len(self.groups) == 1 else (key_states, value_states)

    def read(self, group: MaskedGroup) -> tuple[Tensor, Tensor]:
        """Keys and values [count, heads, span, width] of the layer that was written last."""
        plane = self.planes[self.layer]
        keys, values = (self.cache.read(plane + i, group.extent, group.span, group.count) for i in range(2))
        return keys, values

    def attend(self, plain: Callable[..., Any], module: Any, query: Tensor, **options: Any) -> tuple[Tensor, None]:
        """Attention [1, N, heads, width] of query [1, heads, N, width], by the model's function for each group."""
        kind = self.types[self.layer if len(self.types) > 1 else 0]
        parts = []
        for group in self.groups:
            rows = slice(group.rows.start - self.rows.start, group.rows.stop - self.rows.start)
            queries = query[0, :, rows].view(query.shape[1], group.count, -1, query.shape[-1]).transpose(0, 1)
            parts.append(plain(module, queries, *self.read(group), group.masks[kind], **options)[0].flatten(0, 1))
        return torch.cat(parts)[None], None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.groups[0].span - self.groups[0].masks[self.types[0]].shape[2]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.groups[0].span, 0


_FORWARD: ContextVar[ForwardCache | None] = ContextVar("forward", default=None)  # of several groups, in this thread


@contextmanager
def groupwise(config: Any, forward: ForwardCache) -> Iterator[None]:
    """A context in which models of a configuration attend group by group; for one thread at a time."""
    used, token = config._attn_implementation, _FORWARD.set(forward)
    config._attn_implementation = GROUPWISE_PREFIX + used
    try:
        yield
    finally:
        config._attn_implementation = used
        _FORWARD.reset(token)


def _offer(name: str) -> None:
    """Register a variant of attention function `name` with transformers that is called group by group."""

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        file: Any = sys.modules[type(module).__module__]
        plain = file.ALL_ATTENTION_FUNCTIONS.get_interface(name, getattr(file, "eager_attention_forward", None))
        forward = _FORWARD.get()
        if forward is None:  # someone else's forward meanwhile
            return plain(module, query, key, value, mask, **options)
        return forward.attend(plain, module, query, **options)

    ALL_ATTENTION_FUNCTIONS.register(GROUPWISE_PREFIX + name, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPWISE_PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])


for _name in ATTENTION_NAMES:
    _offer(_name)
