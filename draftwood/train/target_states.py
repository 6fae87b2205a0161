"""The source of a run's examples: the target's states and probabilities at every place of rows of text.

Native kernels read them where they can: several times faster than PyTorch, and in the bits that drafting will see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from draftwood.models.base import Batch, Segment
from draftwood.models.decoder import Decoder
from draftwood.models.extents import Extent

Read = tuple[dict[int, Tensor], Tensor | None]


class TargetReader(Protocol):
    """Reads rows of tokens [B, T], each a text from position 0, without gradients."""

    def __call__(self, tokens: Tensor, layers: Sequence[int], answered: bool) -> Read:
        """The states [B, T, D] after the layers, after the last layer normalised, and, if asked for, the
        log-probabilities [B, T, V] of the next token."""


class PlainReader:
    """Reads a target with plain parameters through PyTorch; `autocast` makes the context of its arithmetic."""

    def __init__(self, target: Decoder, autocast: Callable[[], AbstractContextManager[object]]) -> None:
        self.target, self.autocast = target, autocast

    @torch.no_grad()
    def __call__(self, tokens: Tensor, layers: Sequence[int], answered: bool) -> Read:
        target, states, before = self.target, dict[int, Tensor](), 0
        last = target.n_layers
        with self.autocast():
            texts = target.texts(tokens)
            x = texts.x
            for layer in sorted({*layers, *([last] if answered else [])}):
                states[layer] = x = target.train_layers(x, before, layer, texts)
                before = layer
            answer = torch.log_softmax(target.logits(x), -1) if answered else None
            if last in states:
                states[last] = target.normed(x)
        return states, answer


class PackedReader:
    """Reads a target whose matrices are packed; its rows lie in a cache of their own, which every call overwrites."""

    def __init__(self, packed: Decoder) -> None:
        self.packed = packed
        self.cache = packed.new_cache()
        self.extents: list[Extent] = []

    @torch.no_grad()
    def __call__(self, tokens: Tensor, layers: Sequence[int], answered: bool) -> Read:
        count, length = tokens.shape
        while self.extents and self.extents[-1].capacity < length:
            self.cache.release(self.extents.pop())
        while len(self.extents) < count:
            self.extents.append(self.cache.lend(length))
        segments = [Segment.causal(extent, 0, length) for extent in self.extents[:count]]
        last = self.packed.n_layers
        stop = None if answered or last in layers else max(layers, default=0)
        batch = Batch.of(
            self.packed,
            tokens.flatten().tolist(),
            [*range(length)] * count,
            segments,
            states=tuple(sorted(set(layers) - {stop})),
            stop=stop,
            head=answered,
        )
        out = self.packed(batch, self.cache)[: count * length]
        states = {layer: rows[: count * length] for layer, rows in batch.kept.items()}
        if stop is not None:
            states[stop] = out
        shaped = {layer: rows.view(count, length, -1) for layer, rows in states.items()}
        return shaped, torch.log_softmax(out, -1).view(count, length, -1) if answered else None
