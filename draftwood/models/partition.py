"""Which part of a decoder each of several processes holds, and what they exchange in a forward (Megatron-LM §3).

Query heads, key/value heads, hidden units of the MLPs and the rows of the head are shared out: `qkv`, `gate_up` (or
`up`) and `head` are split by outputs, `o` and `down` by inputs, so that a layer takes two sums over the processes.
Key/value heads that are fewer than the processes are held by several. Norms are held by all, embeddings by the first
process alone: the others are sent what the first layer reads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, ChangeLog
from draftwood.models.decoder_config import DecoderConfig

ALL_COLUMNS = slice(None)
NO_EXCHANGE = nullcontext()


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """The part of a parameter that a process holds: some rows, in order, and of each some columns.

    `silent`: zeros stand there instead, since the values are added once for all processes.
    """

    rows: tuple[slice, ...]
    columns: slice = field(default_factory=lambda: ALL_COLUMNS)
    silent: bool = False

    def shape(self, whole: torch.Size) -> list[int]:
        """The shape of the part of a parameter of a shape."""
        count = sum(rows.stop - rows.start for rows in self.rows)
        return [count, *(len(range(width)[self.columns]) for width in whole[1:])]


class Parallel:
    """One of the processes that compute a decoder together. This one is alone: it holds and does everything itself."""

    rank, size = 0, 1
    broken: str | None = None  # why nothing can be computed any more

    @property
    def drives(self) -> bool:
        """Whether it takes batches from the executor; the other processes follow it."""
        return self.rank == 0

    def words(self, vocabulary: int, rank: int | None = None) -> slice:
        """The tokens whose logits a process computes, this one by default; numbers of them differ by one at most."""
        rank = self.rank if rank is None else rank
        return slice(rank * vocabulary // self.size, (rank + 1) * vocabulary // self.size)

    def local(self, config: DecoderConfig) -> DecoderConfig:
        """The shape of what this process holds of the layers and the head."""
        words, n = self.words(config.vocab_size), self.size
        return replace(
            config,
            vocab_size=words.stop - words.start,
            num_attention_heads=config.num_attention_heads // n,
            num_key_value_heads=max(1, config.num_key_value_heads // n),
            intermediate_size=config.intermediate_size // n,
        )

    def piece(self, name: str, shape: torch.Size, config: DecoderConfig) -> ParameterPart | None:
        """What this process holds of a decoder's parameter of a name and shape; None: nothing."""
        kind = name.split(".", 2)[-1] if name.startswith("layers.") else name
        module, c, n = kind.partition(".")[0], config, self.size
        whole = (slice(0, shape[0]),)
        if kind in ("embed.weight", "position.weight"):
            return ParameterPart(whole) if self.drives else None
        if kind == "head.weight":
            return ParameterPart((self.words(shape[0]),))
        if module == "qkv":
            queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
            first = self.rank * c.num_key_value_heads // n * c.head_dim
            span = max(1, c.num_key_value_heads // n) * c.head_dim
            starts = queries + first, queries + keys + first
            return ParameterPart((self._share(queries), *(slice(start, start + span) for start in starts)))
        if module in ("gate_up", "up"):
            inner, one = c.intermediate_size, self._share(c.intermediate_size)
            return ParameterPart(tuple(slice(at + one.start, at + one.stop) for at in range(0, shape[0], inner)))
        if module in ("o", "down"):
            summed = len(shape) == 1
            return ParameterPart(whole, ALL_COLUMNS if summed else self._share(shape[1]), summed and not self.drives)
        return ParameterPart(whole)

    def _share(self, count: int) -> slice:
        """This process's part of what divides evenly."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def together(
        self, batch: Batch, cache: Cache, x: Tensor, skipped: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> AbstractContextManager[None]:
        """A forward from the input x [N, D] of its first layer on: the followers do what is done inside, too.

        `skipped`: the layers whose attention, and those whose MLP, the model leaves out.
        """
        return NO_EXCHANGE

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over the processes, the same bits in each."""
        return x

    def gather(self, x: Tensor, words: int) -> Tensor:
        """Logits [n, words] in the first process, of the parts [n, ...] that each of them has."""
        return x

    def head(self, head: nn.Module, words: int) -> nn.Module:
        """A head of so many logits, of which this process may hold a part, for inputs beside the forwards."""
        return head

    def change_log(self) -> ChangeLog | None:
        """Where a cache notes what changes in it, for the followers' caches; None: there are none."""
        return None


UNSPLIT = Parallel()


def check(config: DecoderConfig, size: int, source: object) -> None:
    """Raise ModelError where a decoder cannot be shared out evenly among so many processes."""
    if not _fits(config, size):
        best = max(count for count in range(1, size) if _fits(config, count))
        raise ModelError(
            f"{source} has {config.num_attention_heads} attention heads, {config.num_key_value_heads} key/value heads "
            f"and {config.intermediate_size} hidden units in its MLPs, which {size} processes cannot share out evenly; "
            f"use tensor_parallel={best}"
        )


def _fits(config: DecoderConfig, size: int) -> bool:
    c = config
    shared = c.num_key_value_heads % size == 0 or size % c.num_key_value_heads == 0
    return shared and not (c.num_attention_heads % size or c.intermediate_size % size) and c.vocab_size >= size
