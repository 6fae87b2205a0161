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
    """Reads a target whose matrices are packed; its rows lie in a cache of their own, which every call overwrites.

    States are kept for the next time that a row is read, in up to `room` bytes: then only the output layer is computed.
    Other rows have the same bits.
    """

    def __init__(self, packed: Decoder, room: int = 0) -> None:
        self.packed, self.room = packed, room
        self.cache = packed.new_cache()
        self.extents: list[Extent] = []
        self._kept: dict[tuple[bytes, tuple[int, ...]], Tensor] = {}

    @torch.no_grad()
    def __call__(self, tokens: Tensor, layers: Sequence[int], answered: bool) -> Read:
        last = self.packed.n_layers
        wanted = tuple(sorted({*layers, *([last] if answered else [])}))
        if not wanted:
            return {}, None
        keys = [(row.numpy().tobytes(), wanted) for row in tokens]
        found = {key: self._kept[key] for key in keys if key in self._kept}
        missing = [number for number, key in enumerate(keys) if key not in found]
        if missing:
            for number, row in zip(missing, self._states(tokens[missing], wanted), strict=True):
                found[keys[number]] = row
                if keys[number] not in self._kept and row.nbytes <= self.room:
                    self._kept[keys[number]] = row.clone()
                    self.room -= row.nbytes
        rows = torch.stack([found[key] for key in keys])
        states = dict(zip(wanted, rows.unbind(1), strict=True))
        if not answered:
            return states, None
        logits = self.packed.normed_logits(states[last].flatten(0, 1))
        return states, torch.log_softmax(logits, -1).view(*tokens.shape, -1)

    def _states(self, tokens: Tensor, layers: tuple[int, ...]) -> Tensor:
        """The states [B, L, T, D] after so many layers of rows of tokens [B, T]."""
        count, length = tokens.shape
        while self.extents and self.extents[-1].capacity < length:
            self.cache.release(self.extents.pop())
        while len(self.extents) < count:
            self.extents.append(self.cache.lend(length))
        segments = [Segment.causal(extent, 0, length) for extent in self.extents[:count]]
        stop = None if layers[-1] == self.packed.n_layers else layers[-1]
        batch = Batch.of(
            self.packed,
            tokens.flatten().tolist(),
            [*range(length)] * count,
            segments,
            states=layers if stop is None else layers[:-1],
            stop=stop,
            head=False,
        )
        out = self.packed(batch, self.cache)
        each = [out if layer == stop else batch.kept[layer] for layer in layers]
        return torch.stack([rows[: count * length].view(count, length, -1) for rows in each], 1)
