"""One configurable decoder, any range of whose layers runs over cache slots.

A family of models is a `DecoderConfig`, never a subclass; what a family needs beyond the present knobs becomes a knob.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from draftwood.models.backend.attention import MIN_BITWISE_ROWS, additive, folded, fused, ordered
from draftwood.models.backend.native import NativeMatrix
from draftwood.models.backend.program import Program
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, Plane
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.decoder_weights import AttentionKind, DecoderWeights
from draftwood.models.flat import (
    AttentionGroup,
    AttentionMetadata,
    CachedKV,
    KVStore,
    TextKV,
    TextPass,
    group_segments,
    visibility,
    written_rows,
)
from draftwood.models.functions import NORMS
from draftwood.models.kv_rows import row_width
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.recurrent_fold import CachedStates
from draftwood.models.recurrent_states import RecurrentStates
from draftwood.util.native_library import kernels


class Decoder(DecoderWeights):
    """A decoder-only transformer; see `draftwood.models.base.CausalModel` for `forward`.

    A layer with an attention window of w sees the tokens at the last w positions. Slots do not tell positions, so where
    masks depend on them, the last plane of the cache stores the position of the token in each slot. With `parallel`
    the decoder is the part of a model that one of several processes computes.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT, lent: Sequence[int] = ()) -> None:
        super().__init__(config, parallel, lent)
        group = min(kind.heads // kind.kv_heads for kind in self.attention_kinds)
        self._min_rows = -(-MIN_BITWISE_ROWS // group)
        self.kv_dtype: torch.dtype | None = None  # that new caches store keys and values in; None: the decoder's
        self._program: Program | None = None  # made when it is first needed

    @property
    def native(self) -> bool:
        """True if the native library computes forwards, for which the matrices are packed."""
        return isinstance(self.head, NativeMatrix)

    @property
    def by_program(self) -> bool:
        """True if one call of the native library computes a forward; else PyTorch goes from part to part."""
        apart = self.streams is not None or self.config.has_latent_experts
        return self._program is not None or (self.native and not apart)

    @property
    def kernels(self) -> str:
        """The name of the native kernel set that computes forwards; empty where PyTorch does."""
        return kernels()[0] if self.native else ""

    @property
    def skipped_parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of the layers whose attention, and of those whose MLP, is left out of the full model."""
        return (), ()

    @property
    def broken(self) -> str | None:
        """None, or the reason why nothing can be computed: a process with a part of the model has ended."""
        return self.parallel.broken

    def padded_rows(self, count: int) -> int:
        if self.by_program:
            return count
        if self.native:
            return max(count, self._min_rows)
        return max(count, self._min_rows, getattr(self.head, "fewest_rows", 2))

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        parallel, dtype = self.parallel, self.kv_dtype or self.dtype
        planes: list[Plane] = []
        for number in range(self.n_layers):
            c = self.local.layer(number)
            if c.attends and c.kv_layer is None:
                planes += [(c.num_key_value_heads, row_width(dtype, dim), dtype) for dim in (c.head_dim, c.value_dim)]
        if self.stores_positions:  # the positions of the slots, exact in every dtype
            planes.append((1, 1, torch.int64))
        copies = parallel.size if self.device.type == "cpu" else 1  # memory of GPUs is each one's own
        cache = Cache(planes, self.device, slots, budget, copies=copies, change_log=parallel.change_log())
        if self.recurrent_shapes:
            wide = torch.promote_types(self.dtype, torch.float32)
            shapes, layers = self.recurrent_shapes, self.n_layers
            cache.states = RecurrentStates(shapes, layers, self.device, wide, cache.budget, cache.slot_bytes)
        return cache

    @property
    def stores_positions(self) -> bool:
        """True if it writes the positions of slots to the cache's last plane, where PyTorch needs them for masks."""
        return any(kind.by_position for kind in self.attention_kinds) and not (self.by_program or self.borrows)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if self._program is None and self.by_program:
            self._program = Program(self)
        if self._program is not None:
            return self._program.forward(batch, cache)
        stop = self.n_layers if batch.stop is None else batch.stop
        x = self.embedded(batch.tokens, batch.positions) if batch.hidden is None else batch.hidden
        with self.parallel.together(batch, cache, x, self.skipped_parts):
            metadata, stores = self.attention_metadata(batch, cache), self.kv_stores(batch, cache)
            with self._states(batch, cache, stores):
                x = self.run(x[None], metadata, stores, batch.start, stop, batch)[0]
            return x if stop < self.n_layers else self._answer(x, batch)

    @contextmanager
    def _states(self, batch: Batch, cache: Cache, stores: Sequence[CachedKV]) -> Iterator[None]:
        """Give recurrent layers their states of a forward, which are kept when it is through."""
        if not isinstance(cache.states, RecurrentStates):
            yield
            return
        with cache.states.planned(batch) as plan:
            for number, shape in enumerate(self.recurrent_shapes):
                stores[shape.layer].states = CachedStates(cache.states, plan, number)
            yield

    def _answer(self, x: Tensor, batch: Batch) -> Tensor:
        """Logits [n, V] of the wanted rows of x [N, D]; the states in `batch.kept` are cut to these rows."""
        if self.n_layers in batch.reads:
            batch.read[self.n_layers] = self.normed(x)
        x = x[batch.wanted]
        for layer, states in batch.kept.items():
            batch.kept[layer] = states[batch.wanted]
        if self.n_layers in batch.states:
            batch.kept[self.n_layers] = self.normed(x)
        return self.logits(x) if batch.head else x.new_empty(len(x), 0)

    def run(
        self,
        x: Tensor,
        metadata: Sequence[AttentionMetadata],
        kv_stores: Sequence[KVStore],
        start: int,
        stop: int,
        batch: Batch | None = None,
    ) -> Tensor:
        """Compute layers [start, stop) of rows x [1, N, D] -> [1, N, D]; put states that are asked for in `batch`."""
        for layer in range(start, stop):
            x = self.layers[layer](x, metadata[self.kinds[layer]], kv_stores[layer])
            if batch is not None and layer + 1 in batch.states and layer + 1 < self.n_layers:
                batch.kept[layer + 1] = x[0]
            if batch is not None and layer + 1 in batch.reads and layer + 1 < self.n_layers:
                batch.read[layer + 1] = x[0]
        return x

    def kv_stores(self, batch: Batch, cache: Cache) -> list[CachedKV]:
        """For each layer the store that its keys and values of the batch are written to."""
        rows = {count: written_rows(batch, cache, count) for count in {kind.kv_heads for kind in self.attention_kinds}}
        kinds = [self.attention_kinds[number] for number in self.kinds]
        return [CachedKV(cache, at, rows[kind.kv_heads]) for at, kind in zip(self.first_planes, kinds, strict=True)]

    def attention_metadata(self, batch: Batch, cache: Cache) -> list[AttentionMetadata]:
        """For each kind of layer: rotary tables of the rows' positions, and the groups of segments with their masks."""
        count, place = len(batch.tokens), len(cache.planes) - 1
        if self.stores_positions and batch.start == 0:
            cache.planes[place].index_copy_(0, written_rows(batch, cache, 1), batch.positions[:, None])
        groups_of, query_rows, row_queries = group_segments(batch, self._min_rows)
        visibles = [visibility(segments, rows, self.device) for segments, rows in groups_of]
        in_order = query_rows == list(range(count))
        taken = None if in_order else torch.tensor(query_rows, device=self.device)
        places = None if in_order else torch.tensor(row_queries, device=self.device)
        cpu, dtype = self.device.type == "cpu", torch.float32 if self.native else self.dtype
        metadata = []
        for kind in self.attention_kinds:
            groups, first = [], 0
            for (segments, rows), seen in zip(groups_of, visibles, strict=True):
                last = first + len(segments) * rows
                extent, span = segments[0].extent, seen.shape[-1]
                stored = at = None
                if kind.by_position:
                    stored = cache.read(place, extent, span, len(segments))[:, 0, None, :, 0]  # [count, 1, span]
                    at = (batch.positions if taken is None else batch.positions[taken])[first:last]
                    at = at.view(len(segments), -1, 1)
                bias = _mask(kind, seen, stored, at, batch.reach, dtype)
                if cpu:
                    bias = folded(bias, kind.heads, kind.kv_heads)
                groups.append(AttentionGroup(slice(first, last), len(segments), extent, span, bias))
                first = last
            cos = sin = None
            if kind.rotary is not None:
                tables = kind.rotary.tables(batch.reach, self.device, dtype)
                cos, sin = (part[batch.positions][None] for part in tables)
            attend, factors = ordered if cpu else fused, _factors(kind, batch.positions[None], dtype)
            metadata.append(AttentionMetadata(cos, sin, attend, None, groups, taken, places, factors))
        return self._with_inputs(metadata, batch.tokens[None])

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embeddings of tokens at positions, of one shape [...]: the input [..., D] of the first layer."""
        x = self._scaled(tokens)
        if self.position is not None:
            x = x + self.position(positions + self.config.position_offset if self.config.position_offset else positions)
        if self.embed_norm is not None:
            x = self._normalised(x, self.embed_norm, self.embed_norm_bias)
        return x if self.streams is None else self.streams.expand(x)

    def _scaled(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embed(tokens)
        if self.config.embedding_scale != 1:  # rounded to the dtype first, as it was when the models were trained
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        return x

    def _with_inputs(self, metadata: list[AttentionMetadata], tokens: Tensor | None) -> list[AttentionMetadata]:
        """The metadata of rows of tokens [B, N] with their per-layer inputs, where the model has some."""
        if self.per_layer_embeddings is not None and tokens is not None:
            inputs = self.per_layer_embeddings(tokens, self._scaled(tokens))
            for meta in metadata:
                meta.per_layer_inputs = inputs
        return metadata

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [n, D] -> logits [n, V], in float32 unless the model is float64."""
        return self.normed_logits(self.normed(hidden))

    def normed_logits(self, normed: Tensor) -> Tensor:
        """The head alone: logits [n, V], as `logits`, of states [n, D] that are normalised."""
        out = self._head(normed)
        return out if out.dtype == torch.float64 else out.float()

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm [n, D] of what comes from the last layer."""
        hidden = hidden if self.streams is None else self.streams.merge(hidden)
        return self._normalised(hidden, self.norm, self.norm_bias)

    def _normalised(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return NORMS[self.config.norm](x, weight, bias, self.config.rms_norm_eps)

    def _head(self, normed: Tensor) -> Tensor:
        cap = self.config.logit_softcap
        out = self.parallel.gather(self.head(normed), self.vocab_size)
        if self.config.logit_scale != 1:
            out = out * self.config.logit_scale
        return out if cap is None else cap * torch.tanh(out / cap)

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Plain causal forward without a cache, differentiable: tokens [B, T] -> logits [B, T, V]."""
        texts = self.texts(tokens)
        return self._head(self.normed(self.train_layers(texts.x, 0, self.n_layers, texts)))

    def texts(self, tokens: Tensor, dtype: torch.dtype | None = None) -> TextPass:
        """Texts of tokens [B, T] for `train_layers`, one range of layers after the other, in `dtype` or the model's."""
        x = self.embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device)[None]).to(dtype)
        return TextPass(x, self.train_metadata(x, tokens), self._text_stores())

    def train_layers(self, x: Tensor, start: int, stop: int, texts: TextPass | None = None) -> Tensor:
        """Layers [start, stop) of `train_forward`: x [B, T, D] at positions 0, 1, ... -> [B, T, D].

        `texts` are needed where layers read more than x: per-layer embeddings, keys and values of earlier layers.
        """
        texts = texts or TextPass(x, self.train_metadata(x), self._text_stores())
        for layer in range(start, stop):
            x = self.layers[layer](x, texts.metadata[self.kinds[layer]], texts.stores[layer])
        return x

    def _text_stores(self) -> list[TextKV | None]:
        """Of each layer, where it makes keys and values for others or reads another's."""
        lenders = [self.config.layer(number).kv_layer for number in range(self.n_layers)]
        stores: list[TextKV | None] = [TextKV() if number in lenders else None for number in range(self.n_layers)]
        return [own if lender is None else stores[lender] for own, lender in zip(stores, lenders, strict=True)]

    def train_metadata(self, x: Tensor, tokens: Tensor | None = None) -> list[AttentionMetadata]:
        """For each kind of layer: rotary tables and the causal mask of texts x [B, T, D] at positions 0, 1, ..."""
        n = x.shape[1]
        metadata: list[AttentionMetadata] = []
        at = torch.arange(n, device=x.device)[None]
        for kind in self.attention_kinds:
            bias = None  # the fused kernel knows the causal one
            if kind.by_position:
                causal = torch.ones(1, n, n, dtype=torch.bool, device=x.device).tril()
                bias = _mask(kind, causal, at[:, None], at[..., None], n, x.dtype)
            cos = sin = None
            if kind.rotary is not None:
                cos, sin = (table[:n] for table in kind.rotary.tables(n, x.device, x.dtype))
            metadata.append(AttentionMetadata(cos, sin, fused, bias, query_factors=_factors(kind, at, x.dtype)))
        return self._with_inputs(metadata, tokens)


def _mask(
    kind: AttentionKind, seen: Tensor, stored: Tensor | None, at: Tensor | None, reach: int, dtype: torch.dtype
) -> Tensor:
    """The mask that is added to scores [B, (heads,) Q or 1, S] of rows that see slots `seen` [B, Q or 1, S].

    `stored` [B, 1, S] are the slots' positions, `at` [B, Q, 1] the rows', below `reach`; without them all see alike.
    """
    if stored is None or at is None:
        return additive(seen, dtype)
    if kind.window and seen.shape[-1] > kind.window:  # in a span of at most `window` slots nothing is too far
        seen = seen & (stored >= (at // kind.window * kind.window if kind.chunked else at - kind.window + 1))
    bias = additive(seen, dtype)
    if kind.alibi is None:
        return bias
    table = kind.alibi.table(reach).to(bias.device, torch.promote_types(dtype, torch.float32))
    distances = table[:, stored.clamp(0, reach - 1)] - table[:, at]  # [heads, B, Q, S]
    return bias[:, None] + distances.transpose(0, 1).to(dtype)


def _factors(kind: AttentionKind, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Factors of queries [B, N, heads, D] at positions [B, N]."""
    return None if kind.growth is None else kind.growth.factors(positions)[..., None, None].to(dtype)
