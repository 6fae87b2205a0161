"""The weights of a grown decoder, one parameter at a time, from those of a small one.

Residual channels, heads and hidden units are replicated; where a matrix reads replicas, each gets its share of the
weight plus noise that cancels over the replicas, so no structure is left that hardware could use. Added layers, and
the channels that a width has beyond a multiple of the source's, are all but silent: what they write is
`SILENT_SCALE` times the usual size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from draftwood.models.decoder_config import DecoderConfig

SILENT_SCALE = 1e-8
BLOCK_ROWS = 1024  # rows of a matrix that are made at a time


@dataclass(frozen=True, slots=True)
class Axis:
    """Where each of a dimension's places has its content from: -1 for a silent channel."""

    source: Tensor  # [n] int64
    share: Tensor  # [n] float64, one over the number of replicas; the mean of it for silent channels
    following: Tensor  # [n] int64, the next replica of the same source, in a ring

    @staticmethod
    def of(sources: list[int]) -> Axis:
        places: dict[int, list[int]] = {}
        for place, source in enumerate(sources):
            places.setdefault(source, []).append(place)
        silent = places.pop(-1, [])
        following = list(range(len(sources)))
        share = [len(places) / (len(sources) - len(silent))] * len(sources)
        for ring in places.values():
            for place, after in zip(ring, [*ring[1:], ring[0]], strict=True):
                following[place] = after
                share[place] = 1 / len(ring)
        return Axis(torch.tensor(sources), torch.tensor(share, dtype=torch.float64), torch.tensor(following))

    def times(self, size: int) -> Axis:
        """The same for blocks of `size` places, as heads are."""
        inside = torch.arange(size)
        spread = (axis[:, None] * size + inside for axis in (self.source, self.following))
        source, following = (axis.flatten() for axis in spread)
        return Axis(source, self.share.repeat_interleave(size), following)

    def beside(self, count: int) -> Axis:
        """The same for `count` of these dimensions, side by side."""
        known, size = int(self.source.max()) + 1, len(self.source)
        sources = [torch.where(self.source < 0, -1, self.source + i * known) for i in range(count)]
        following = [self.following + i * size for i in range(count)]
        return Axis(torch.cat(sources), self.share.repeat(count), torch.cat(following))


@dataclass(frozen=True, slots=True)
class Copies:
    """Every dimension of the grown decoder."""

    vocab: Axis
    channels: Axis
    queries: Axis  # components of query heads
    keys: Axis  # and of key/value heads
    hidden: Axis
    louder: float  # factor of the norms' weights, against the silent channels' share of the mean square
    read: Axis | None = None  # what a head's first matrices read, where that is not the channels alone

    @staticmethod
    def of(before: DecoderConfig, after: DecoderConfig) -> Copies:
        a, b = before, after
        whole = b.hidden_size - b.hidden_size % a.hidden_size
        known = a.num_key_value_heads
        group_before, group = a.num_attention_heads // known, b.num_attention_heads // b.num_key_value_heads
        queries, used = [], [0] * known
        for key in range(b.num_key_value_heads):
            source = key % known
            for _ in range(group):  # heads that read a replica take turns at being each of its readers
                queries.append(source * group_before + used[source] % group_before)
                used[source] += 1
        return Copies(
            Axis.of(list(range(a.vocab_size))),
            Axis.of([i % a.hidden_size if i < whole else -1 for i in range(b.hidden_size)]),
            Axis.of(queries).times(b.head_dim),
            Axis.of([key % known for key in range(b.num_key_value_heads)]).times(b.head_dim),
            Axis.of([i % a.intermediate_size for i in range(b.intermediate_size)]),
            math.sqrt(whole / b.hidden_size),
        )


def maker(copies: Copies, name: str, weight: Tensor, fresh: bool, seed: int) -> Callable[[torch.dtype], Tensor]:
    """The function that makes a parameter in a dtype from the source's. Noise depends on the seed and the name."""
    kind = name.split(".", 3)[-1] if name.startswith("layers.") else name
    attention = (copies.queries, copies.keys, copies.keys)
    rows, columns = {
        "embed.weight": ((copies.vocab,), None),
        "head.weight": ((copies.vocab,), copies.channels),
        "qkv.weight": (attention, copies.read or copies.channels),
        "fc.weight": ((copies.channels,), copies.read),
        "qkv.bias": (attention, None),
        "o.weight": ((copies.channels,), copies.queries),
        "o.bias": ((copies.channels,), None),
        "gate_up.weight": ((copies.hidden, copies.hidden), copies.channels),
        "gate_up.bias": ((copies.hidden, copies.hidden), None),
        "down.weight": ((copies.channels,), copies.hidden),
        "down.bias": ((copies.channels,), None),
        "lift.weight": ((copies.channels,), copies.channels),
    }.get(kind, ((copies.channels,), None))

    def make(dtype: torch.dtype) -> Tensor:
        fine = torch.promote_types(dtype, torch.float32)
        known = weight.to("cpu", fine)
        if "norm" in kind:
            return (known[copies.channels.source % len(known)] * copies.louder).to(dtype)
        digest = sha256(f"{seed}/{name}".encode()).digest()
        random = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        if kind == "embed.weight":  # its columns are written, not read
            return _replicate(known.T, copies.channels, random).T.to(dtype).contiguous()
        if columns is None:
            return _parts(known, rows, fresh and kind in ("o.bias", "down.bias"), random).to(dtype)
        made = torch.empty(sum(len(axis.source) for axis in rows), len(columns.source), dtype=dtype)
        silenced = fresh and kind in ("o.weight", "down.weight")
        start = offset = 0
        for axis in rows:
            size = int(axis.source.max()) + 1
            part = known[start : start + size]
            for first in range(0, len(axis.source), BLOCK_ROWS):
                block = axis.source[first : first + BLOCK_ROWS]
                _read_replicas(part, block, columns, fresh, silenced, random, made[offset : offset + len(block)])
                offset += len(block)
            start += size
        return made

    return make


def _parts(known: Tensor, rows: tuple[Axis, ...], silenced: bool, random: torch.Generator) -> Tensor:
    """A bias, each part replicated along its own dimension."""
    made, start = [], 0
    for axis in rows:
        size = int(axis.source.max()) + 1
        made.append(_replicate(known[start : start + size], axis, random, silenced))
        start += size
    return torch.cat(made)


def _size(tensor: Tensor) -> float:
    """Root mean square; 1 for a tensor of zeros, which has no size to go by."""
    return float(tensor.pow(2).mean().sqrt()) or 1.0


def _replicate(known: Tensor, axis: Axis, random: torch.Generator, silenced: bool = False) -> Tensor:
    """Copies along the first dimension; silent places, or all, get what hardly counts."""
    made = known[axis.source.clamp(min=0)]
    quiet = (axis.source < 0) | silenced
    noise = torch.randn(int(quiet.sum()), *known.shape[1:], generator=random, dtype=known.dtype)
    made[quiet] = SILENT_SCALE * _size(known) * noise
    return made


def _read_replicas(
    known: Tensor, rows: Tensor, columns: Axis, fresh: bool, silenced: bool, random: torch.Generator, out: Tensor
) -> None:
    """Rows of a matrix that reads `columns`: each replica gets its share of the weight and noise that cancels.

    A fresh matrix is random throughout, of the size that gives the source's outputs from replicas.
    """
    size = _size(known)
    noise = torch.randn(len(rows), len(columns.source), generator=random, dtype=known.dtype)
    share = columns.share.to(known.dtype)
    if fresh:
        made = noise * (size * share.sqrt())
    else:
        silent = columns.source < 0
        ring = (noise - noise.index_select(1, columns.following)) * (size * math.sqrt(0.5) * share)
        weight = known[rows.clamp(min=0)].index_select(1, columns.source.clamp(min=0))
        made = ring.addcmul_(weight, share)  # the ring's noise sums to zero over each source's replicas
        made[:, silent] = noise[:, silent] * (size * share[silent])
    quiet = (rows < 0) | silenced
    made[quiet] = SILENT_SCALE * size * noise[quiet]
    out.copy_(made)
