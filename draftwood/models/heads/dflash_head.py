"""DFlash (Chen et al. 2026, arXiv 2602.06036): a few layers draft a block of tokens in one pass.

The target's states of each verified token become, fused and normalised, its keys and values in every layer. The rows of
a block are the embedding of the anchor, the last token, and of masks for those to come; they see all that lies before
the anchor and, but for some windows, one another. Each row has a distribution of its own, independent of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.attention import fused
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, CachedKV, Scores
from draftwood.models.functions import rms_norm
from draftwood.models.heads.block_head import Block, BlockMask, answers, blocks_of, repeated, wanted_rows
from draftwood.models.heads.eagle_head import check_reads, shape
from draftwood.models.heads.markov_head import MarkovHead
from draftwood.models.heads.state_head import StateHead
from draftwood.models.layers.attention import Attention
from draftwood.models.modules import Linear


class DFlashHead(StateHead):
    """A block drafter; its embeddings are the target's, and its head too unless its vocabulary is smaller.

    `masks` say what the rows of a block see in each layer. Row `first` of a block is that of the token after the
    anchor: 1, or 0 where the anchor's own row is. Embeddings are multiplied by `embedding_scale`. With `markov`, as in
    DSpark, the distribution of a place depends on the token before it, see `follow`.
    """

    head_kind = "dflash"
    before = 0

    def __init__(
        self,
        config: DecoderConfig,
        reads: Sequence[int],
        target: Decoder,
        block: int,
        first: int = 1,
        masks: Sequence[BlockMask] = (),
        embedding_scale: float = 1.0,
        whose: str = "",
    ) -> None:
        """`config` describes the layers and the head of a drafter for a target with the fingerprint `whose`."""
        super().__init__(config, reads, config.hidden_size, target.vocab_size, target.embed, whose)
        self.block, self.first_row, self.count = block, first, block - first
        self.vocab_size = self.count * self.vocabulary
        self.masks = tuple(masks) or (BlockMask(),) * config.num_hidden_layers
        self.embedding_scale = embedding_scale
        self.fc = Linear(self.states, config.hidden_size, bias=False)
        self.state_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.mask = nn.Parameter(torch.zeros(config.hidden_size))  # the row of a token that is not known
        self.markov: MarkovHead | None = None
        self.borrows_head = config.vocab_size == target.vocab_size
        if self.borrows_head:
            self.decoder.head = target.head

    @staticmethod
    def of(target: Decoder, layers: int, block: int, reads: Sequence[int] | None = None) -> DFlashHead:
        """A new head in float32 for training, whose layers begin as the target's last ones where shapes are equal.

        Its rows are those of the Llama family; fc passes the mean of the states that are read.
        """
        target.must_be_plain("given a DFlash head")
        reads = usual_reads(target.n_layers, layers) if reads is None else tuple(reads)
        check_reads(reads, target)
        if not 1 <= layers <= target.n_layers or block < 2:
            raise ModelError(
                f"a block of {block} tokens by {layers} layers cannot be made; give 2 tokens or more, and 1 to "
                f"{target.n_layers} layers"
            )
        made = DFlashHead(trained_shape(target, layers), reads, target, block, whose=fingerprint(target))
        known, generator = dict(target.named_parameters()), torch.Generator().manual_seed(0)
        skipped = target.n_layers - layers
        with torch.no_grad():
            for name, part in made.named_parameters():
                if name.startswith("decoder.layers."):
                    number, rest = name.removeprefix("decoder.layers.").split(".", 1)
                    source = known.get(f"layers.{int(number) + skipped}.{rest}")
                    plain = part.dim() > 1 or target.config.norm == "rms"  # another norm's weights mean something else
                    if source is not None and plain and source.shape == part.shape:
                        part.copy_(source)
                    elif part.dim() > 1:
                        part.copy_(torch.randn(part.shape, generator=generator) * part.shape[1] ** -0.5)
            made.fc.weight.copy_(torch.eye(made.width).repeat(1, len(reads)) / len(reads))
            if target.config.norm == "rms":
                made.decoder.norm.copy_(target.norm)
            made.mask.copy_(target.embed.weight.float().mean(0))
        if target.dtype != torch.float32:
            made.decoder.head = deepcopy(target.head).float().requires_grad_(False)
        return made.to(target.device)

    @property
    def mixers(self) -> list[Attention]:
        """The attention of each layer."""
        layers: list[Any] = list(self.decoder.layers)
        return [layer.mixer for layer in layers]

    def padded_rows(self, count: int) -> int:
        """Rows of the batch are not those of products, which are padded where they are made."""
        return count

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits [n, count * V] of the blocks behind the wanted rows; other rows leave keys and values alone.

        States after the final norm, [n, count * D], are put in `batch.kept` where they are wanted.
        """
        if batch.hidden is None:
            raise ModelError(
                "a DFlash head reads hidden states of its target; it cannot run alone as a draft model: use method "
                "dflash, or drafter=dflash with beams and mcsd"
            )
        self._read_context(batch, cache, set(wanted_rows(batch)))
        each = blocks_of(batch, self.block)
        blocks = [block for some in each for block in some]
        if not blocks:
            return torch.empty(0, self.vocab_size, device=self.device)
        whole, x = self._block_rows(batch, blocks)
        start = 0
        for mask, run in groupby(self.masks):
            stop = start + len(list(run))
            last = stop == self.decoder.n_layers
            pairs = zip(batch.segments, each, strict=True)
            segments = [mask.segment(segment, some) for segment, some in pairs if some]
            part = replace(whole, segments=segments, start=start, stop=None if last else stop, hidden=x)
            x, start = self.through(part, cache, x), stop
        for layer, states in whole.kept.items():
            batch.kept[layer] = answers(states, self.count, batch)
        return answers(x, self.count, batch)

    @torch.inference_mode()
    def follow(self, logits: Tensor, states: Tensor, tokens: Sequence[int]) -> Tensor:
        """Logits [n, V] of places of blocks behind tokens [n], from those without these and states [n, D]."""
        if self.markov is None:
            return logits
        count, many = len(tokens), self.decoder.padded_rows(len(tokens))
        before = repeated(torch.tensor(tokens, device=self.device), many)
        more: Tensor = self.markov(before, repeated(states.to(self.computed), many))[:count].to(logits.dtype)
        if self.words is None:
            return torch.add(logits, more)
        return logits.index_add(-1, self.words, more)

    def _read_context(self, batch: Batch, cache: Cache, anchors: set[int]) -> None:
        """Store keys and values of the rows that are no anchors, from the target's states at them."""
        rows = [row for row in range(len(batch)) if row not in anchors]
        if not rows:
            return
        assert batch.hidden is not None
        slots, first = [], 0
        for segment in batch.segments:
            slots.append((segment.extent, [slot for i, slot in enumerate(segment.slots, first) if i not in anchors]))
            first += len(segment)
        decoder, place = self.decoder, torch.tensor(rows, device=self.device)
        count = decoder.padded_rows(len(rows))
        x = self.fused(repeated(batch.hidden[place], count))[None]
        meta = self._turned(repeated(batch.positions[place], count)[None], batch.reach, x.dtype)
        (kind,) = decoder.attention_kinds
        index = cache.index(kind.kv_heads, slots).view(len(rows), kind.kv_heads)
        index = repeated(index, count).reshape(-1)  # rows that were repeated write the same values again
        for mixer, plane in zip(self.mixers, decoder.first_planes, strict=True):
            CachedKV(cache, plane, index).write(*mixer.keys_and_values(x, meta))

    def _turned(self, positions: Tensor, reach: int, dtype: torch.dtype) -> AttentionMetadata:
        """The inputs that layers share, of rows at positions [B, N] below `reach`."""
        (kind,) = self.decoder.attention_kinds
        assert kind.rotary is not None
        cos, sin = (table[positions] for table in kind.rotary.tables(reach, self.device, dtype))
        return AttentionMetadata(cos, sin, fused)

    def fused(self, states: Tensor) -> Tensor:
        """The target's states, side by side [..., W], as the layers read them [..., D]."""
        x = self.fc(states.to(self.computed))
        return rms_norm(x, self.state_norm.to(x.dtype), None, self.decoder.config.rms_norm_eps)

    def entered(self, tokens: Tensor) -> Tensor:
        """The rows [..., block, D] of blocks behind anchors [...]."""
        anchors = self.embedded(tokens) * self.embedding_scale
        masks = self.mask.to(anchors.dtype).expand(*tokens.shape, self.block - 1, self.width)
        return torch.cat((anchors[..., None, :], masks), -2)

    def _block_rows(self, batch: Batch, blocks: Sequence[Block]) -> tuple[Batch, Tensor]:
        """A batch of the rows of some blocks, without segments, and the rows [N, D]."""
        tokens = torch.tensor([batch.numbers[block.row] for block in blocks], device=self.device)
        positions = [block.position + i for block in blocks for i in range(self.block)]
        wanted = [i for i in range(len(positions)) if i % self.block >= self.first_row]
        x = self.entered(tokens).view(-1, self.width)
        numbers = [0] * len(positions)
        made = Batch.of(self.decoder, numbers, positions, (), wanted, x, head=batch.head, states=batch.states)
        assert made.hidden is not None
        return made, made.hidden

    def train_forward(self, states: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Logits [B, A, count, V] of the blocks behind A anchors of each text, differentiable.

        states [B, T, W] of the target at each of tokens [B, T]; anchors [B, A] are positions. A block sees the text
        before its anchor alone.
        """
        b, a = anchors.shape
        x = self.entered(tokens.gather(1, anchors)).flatten(1, 2)  # [B, A * block, D]
        context = self.fused(states).to(x.dtype)
        at = (anchors[..., None] + torch.arange(self.block, device=anchors.device)).flatten(1)
        places = torch.arange(tokens.shape[1], device=anchors.device)[None]
        reach = tokens.shape[1] + self.block
        here, there = self._turned(at, reach, x.dtype), self._turned(places, reach, x.dtype)
        seen = (places[:, None] < anchors[..., None]).repeat_interleave(self.block, 1)  # [B, A * block, T]
        number = torch.arange(a * self.block, device=anchors.device) // self.block
        own = (number[:, None] == number).expand(b, -1, -1)
        visible = torch.cat((seen, own), -1)
        for layer, mixer in zip(self.decoder.layers, self.mixers, strict=True):
            keys, values = mixer.keys_and_values(context, there)
            assert keys is not None and values is not None
            meta = replace(here, attend=_Beside(keys, values, visible))
            x = layer(x, meta, None)
        rows = x.view(b, a, self.block, -1)[:, :, self.first_row :]
        return self.decoder.logits(rows)

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, on the CPU, but for the target's."""
        self.decoder.must_be_plain("saved")
        borrowed = ("decoder.embed.weight", *(["decoder.head."] if self.borrows_head else []))  # its bias, too
        return {name: part.detach().cpu() for name, part in self.named_parameters() if not name.startswith(borrowed)}


class _Beside:
    """Attention of rows to keys and values of other rows, and behind these to one another."""

    def __init__(self, keys: Tensor, values: Tensor, visible: Tensor) -> None:
        """keys and values [B, T, kv_heads, D]; visible [B, Q, T + Q] is True where a row sees another."""
        self.keys, self.values, self.visible = keys, values, visible

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, how: Scores) -> Tensor:
        bias = torch.zeros(self.visible.shape, dtype=q.dtype, device=q.device)
        bias = bias.masked_fill(~self.visible, -torch.inf)
        keys, values = (
            torch.cat((there.transpose(1, 2), here), 2) for there, here in ((self.keys, k), (self.values, v))
        )
        return fused(q, keys, values, bias, how)


def trained_shape(target: Decoder, layers: int) -> DecoderConfig:
    """The config of a head that is trained here: rows of the target's sizes, of the Llama family."""
    c = target.config
    plain = shape(c, None)
    return replace(plain, num_hidden_layers=layers, logit_softcap=c.logit_softcap, logit_scale=c.logit_scale)


def usual_reads(target_layers: int, layers: int) -> tuple[int, ...]:
    """The default numbers of layers after which a target is read, one for each of the drafter's `layers`."""
    if layers == 1:
        chosen = [target_layers // 2]
    else:
        span = target_layers - 4
        chosen = [round(1 + i * span / (layers - 1)) for i in range(layers)]
    return tuple(min(max(n + 1, 1), target_layers - 1) for n in chosen)
