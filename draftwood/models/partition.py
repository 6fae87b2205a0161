"""Tensor parallelism (Megatron-LM §3): which part of each parameter of a decoder a process has.

Query heads, key/value heads, hidden units of the MLPs and the rows of the head are divided among the processes: `qkv`,
`gate_up` (or `up`) and `head` are split by outputs, `o` and `down` by inputs, so that a layer needs two sums over the
processes. Where there are fewer key/value heads than processes, several have the same one. Norms are in all processes,
embeddings in the first one alone, which sends the input of the first layer to the others.
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
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")  # knobs that are shared out


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """The part of a parameter [rows, columns] that a process has: some rows, in order, and some columns of each.

    `silent`: the process has zeros instead, as of a bias that only one process may add.
    """

    rows: tuple[slice, ...]
    columns: slice = field(default_factory=lambda: ALL_COLUMNS)
    silent: bool = False

    def shape(self, full_shape: torch.Size) -> list[int]:
        """The shape of this part of a parameter of shape `full_shape`."""
        count = sum(rows.stop - rows.start for rows in self.rows)
        return [count, *(len(range(width)[self.columns]) for width in full_shape[1:])]


class Parallel:
    """One of `size` processes that compute a decoder together; this class is the only process of a model not split.

    `parallel.group.ProcessGroup` is one of several.
    """

    rank, size = 0, 1
    broken: str | None = None  # the reason why nothing can be computed any more

    @property
    def drives(self) -> bool:
        """True for the process that receives batches from the executor; the others repeat its forwards."""
        return self.rank == 0

    def words(self, vocabulary: int, rank: int | None = None) -> slice:
        """The token ids whose logits process `rank` computes (None: this one); their numbers differ by at most one."""
        rank = self.rank if rank is None else rank
        return slice(rank * vocabulary // self.size, (rank + 1) * vocabulary // self.size)

    def local(self, config: DecoderConfig) -> DecoderConfig:
        """The config of the part of the layers and the head that this process has."""
        words, n = self.words(config.vocab_size), self.size
        return replace(
            config,
            vocab_size=words.stop - words.start,
            **{knob: max(1, getattr(config, knob) // n) for knob in DIVIDED},
            layers=tuple(
                tuple((knob, max(1, value // n) if knob in DIVIDED else value) for knob, value in layer)
                for layer in config.layers
            ),
        )

    def piece(self, name: str, shape: torch.Size, config: DecoderConfig) -> ParameterPart | None:
        """The part of a decoder's parameter, given by name and full shape, that this process has; None: nothing."""
        layer, kind = name.split(".", 3)[1::2] if name.startswith("layers.") else ("", name)
        module, c, n = kind.partition(".")[0], config.layer(int(layer)) if layer else config, self.size
        all_rows = (slice(0, shape[0]),)
        if kind in ("embed.weight", "position.weight"):
            return ParameterPart(all_rows) if self.drives else None
        if module == "head":
            return ParameterPart((self.words(shape[0]),))
        first = self.rank * c.num_key_value_heads // n * c.head_dim
        span = max(1, c.num_key_value_heads // n) * c.head_dim
        if c.qk_norm == "each" and module[:6] in ("q_norm", "k_norm"):
            return ParameterPart((self._share(shape[0]) if module[0] == "q" else slice(first, first + span),))
        if module == "qkv":
            queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
            queries *= 2 if c.output_gate else 1
            if c.kv_layer is not None:
                return ParameterPart((self._share(queries),))
            starts = queries + first, queries + keys + first
            return ParameterPart((self._share(queries), *(slice(start, start + span) for start in starts)))
        if module in ("gate_up", "up"):
            inner, one = c.intermediate_size, self._share(c.intermediate_size)
            return ParameterPart(tuple(slice(at + one.start, at + one.stop) for at in range(0, shape[0], inner)))
        if module in ("o", "down"):
            summed = len(shape) == 1
            return ParameterPart(all_rows, ALL_COLUMNS if summed else self._share(shape[1]), summed and not self.drives)
        return ParameterPart(all_rows)

    def _share(self, count: int) -> slice:
        """This process's range of `count` things, which `size` divides."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def together(
        self, batch: Batch, cache: Cache, x: Tensor, skipped: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> AbstractContextManager[None]:
        """A context for the part of a forward after the embeddings: followers compute the same forward meanwhile.

        x [N, D] is the input of layer `batch.start`. `skipped`: numbers of the layers whose attention, and of those
        whose MLP, the model leaves out.
        """
        return NO_EXCHANGE

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over the processes, the same bits in each."""
        return x

    def gather(self, x: Tensor, words: int) -> Tensor:
        """In the first process: the logits [n, words], joined from the columns x [n, ...] of each process."""
        return x

    def head(self, head: nn.Module, words: int) -> nn.Module:
        """A module that computes all `words` logits of inputs outside of forwards, from the part `head` of a head."""
        return head

    def change_log(self) -> ChangeLog | None:
        """A new log for the changes of a cache, which followers repeat in theirs; None where there are no followers."""
        return None


UNSPLIT = Parallel()


def check(config: DecoderConfig, size: int, source: object) -> None:
    """Raise ModelError where a decoder cannot be divided evenly among `size` processes."""
    each = [config.layer(number) for number in range(config.num_hidden_layers)]
    whole = {
        "recurrent layers": any(layer.recurrent for layer in each),
        "experts": any(layer.experts for layer in each),
        "norms over all heads": any(layer.qk_norm == "whole" for layer in each),
        "sinks": any(layer.sinks for layer in each),
        "layers that read the keys of others": any(layer.kv_layer is not None for layer in each),
        "per-layer embeddings": config.hidden_size_per_layer_input > 0,
        "linear biases of attention": any(layer.alibi for layer in each),
        "latent attention": any(layer.latent for layer in each),
        "norms before the last product": any(layer.inner_norm for layer in each),
    }
    if any(whole.values()):
        what = next(name for name, there in whole.items() if there)
        raise ModelError(f"{source} has {what}, which processes cannot share out; leave out tensor_parallel")
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
