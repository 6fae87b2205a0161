"""Forwards on a CPU by the native library: all layers in one call; a row has the same bits whatever the others are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, byref, c_void_p
from dataclasses import dataclass
from struct import Struct
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.row_tops import RowTops
from draftwood.errors import ModelError
from draftwood.models.alibi import Alibi
from draftwood.models.backend.native import (
    ATTENTION_PART,
    EXPERTS_PART,
    FEED_FORWARD_PART,
    PER_LAYER_INPUT_PART,
    PLANE_TYPES,
    QK_NORMS,
    LatentShape,
    MixtureShape,
    ModelEntry,
    ModelPart,
    ModelShape,
    NativeEmbedding,
    NativeMatrix,
)
from draftwood.models.backend.recurrent import NativeWalks, native_recurrence
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, data_pointers
from draftwood.models.decoder_weights import DecoderWeights
from draftwood.models.layers.attention import Attention
from draftwood.models.layers.experts import Experts
from draftwood.models.layers.experts_beside_mlp import ExpertsBesideMlp
from draftwood.models.layers.feed_forward import XIELU, XIELU_NAME, FeedForward
from draftwood.models.layers.latent_attention import LatentAttention
from draftwood.models.layers.part import Part
from draftwood.models.layers.per_layer_input import PerLayerEmbeddings, PerLayerInput
from draftwood.models.layers.recurrent import Recurrence
from draftwood.models.recurrent_states import RecurrentStates
from draftwood.models.rotary import Rotary
from draftwood.util.native_library import check, loaded_library

ACTIVATION_NUMBERS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 3}
ACTIVATION_NUMBERS |= {"relu2": 4, "steep silu": 5, XIELU_NAME: 6}
# dw_batch: rows, segments, slots, reach; 15 places from token to sin; start, stop, wanted_count, wanted_first; wanted,
# logits, output; states_count; states_after, states; threads, plane_type; beside, given; reads_count; reads_after,
# reads, best, log_sums; leading_count; leading, leading_logits
_CALL = Struct("@4i15P4i3Pi2P2i2Pi4Pi2P")


class Program:
    """The forward pass of a decoder whose matrices are all `NativeMatrix`, as one call of the library."""

    def __init__(self, decoder: DecoderWeights, empty: int = 0) -> None:
        """`empty` layers without sublayers follow; with one, the rows before the final norm are a state to return."""
        lib, c = loaded_library(), decoder.config
        self.config, self.n_layers = c, decoder.n_layers + empty  # not the decoder, which would go late in a circle
        self.context = decoder.context
        self._kept: list[Any] = []  # what the library holds pointers to
        self._biases: dict[Alibi, Tensor] = {}
        self._free = lib.dw_model_free
        embeds = self._embeddings(decoder)
        shape = ModelShape(
            *(c.hidden_size, c.vocab_size, c.norm.startswith("layer")),
            *(decoder.position is not None and decoder.position.weight.dtype == torch.bfloat16, c.position_offset or 0),
            *(c.rms_norm_eps, c.logit_softcap or 0, c.logit_scale),
            float(torch.tensor(c.embedding_scale, dtype=decoder.dtype)),  # rounded, as when the models were trained
            embeds,
            self._keep(decoder.position.weight) if embeds and decoder.position is not None else None,
            *(self._norm(decoder.norm), self._vector(decoder.norm_bias), self._matrix(decoder.head)),
        )
        if decoder.per_layer_embeddings is not None:
            self._inputs(shape, decoder.per_layer_embeddings, decoder.dtype)
        self.handle = lib.dw_model(byref(shape), self.n_layers)
        check(not self.handle)
        if decoder.embed_norm is not None:
            norms = self._norm(decoder.embed_norm), self._vector(decoder.embed_norm_bias)
            check(lib.dw_model_embedding_norm(self.handle, *norms) != 0)
        self._before = 0, 0  # numbers of earlier recurrent layers in a token's inputs, and in a state
        self._ropes = [kind.rotary for kind in decoder.attention_kinds]
        for layer, parts in enumerate(decoder.parts()):
            for part, joined in parts:
                native = self._part(part, joined)
                native.rope = decoder.kinds[layer]
                native.keys, native.values = (at := decoder.first_planes[layer]), at + 1
                self._append(lib, layer, part, native)
        self._tables = RotaryTables((), 0, array("Q"), array("Q"))
        self._forward = lib.dw_forward
        self._vocabulary = c.vocab_size
        self._given = 0  # columns of what rows begin with; 0: they begin with tokens or hidden states
        self.embeds_beside = False  # whether rows' tokens say what lies beside them, else a forward is given it

    def begin_with(
        self,
        fc: nn.Module,
        table: nn.Module,
        beside_norm: Tensor,
        state_norm: Tensor | None = None,
        given_norm: Tensor | None = None,
        groups: int = 1,
    ) -> None:
        """Rows begin with what is given of another model, of which `fc` makes one, or, where that ends in NaN, with it.

        Beside a row lies the normalised embedding of its token, from `table` if that is native, else from what is
        given. `state_norm` normalises rows, `given_norm` what is given, each of so many `groups` by itself.
        """
        c, made = self.config, ModelEntry()
        assert isinstance(fc, NativeMatrix)
        self.embeds_beside, self._given = isinstance(table, NativeEmbedding), fc.in_features
        made.fc, made.embeddings = self._matrix(fc), self._table(table) if self.embeds_beside else None
        made.beside_norm, made.state_norm = self._norm(beside_norm), self._norm(state_norm)
        made.given_norm, made.groups, made.eps = self._vector(given_norm), groups, c.rms_norm_eps
        check(loaded_library().dw_model_entry(self.handle, byref(made)) != 0)

    def name_tokens(self, tokens: Tensor, vocabulary: int, absent: float) -> None:
        """The head's outputs are `tokens` of a larger vocabulary; others get the logit `absent`."""
        tokens = tokens.to(torch.int64).contiguous()
        check(loaded_library().dw_model_tokens(self.handle, tokens.data_ptr(), vocabulary, absent) != 0)
        self._vocabulary = vocabulary

    def _append(self, lib: Any, layer: int, part: Part, native: ModelPart) -> None:
        """Append a part to a layer of the library's model."""
        if not isinstance(part, Recurrence):
            check(lib.dw_model_part(self.handle, layer, byref(native)) != 0)
            return
        steps = native_recurrence(part, *self._before, self._vector)
        self._before = self._before[0] + part.inputs, self._before[1] + part.state
        check(lib.dw_model_recurrence(self.handle, layer, byref(native), byref(steps)) != 0)

    def __del__(self) -> None:
        if handle := self.__dict__.pop("handle", None):
            self._free(handle)

    def _embeddings(self, decoder: DecoderWeights) -> Any:
        """The handle of the matrix of embeddings; None for a model that reads hidden states."""
        embed = decoder.embed
        return self._table(embed) if isinstance(embed, NativeEmbedding) or len(embed.weight) else None

    def _table(self, embed: Any) -> Any:
        return self._matrix(embed.matrix if isinstance(embed, NativeEmbedding) else NativeMatrix(embed.weight, None))

    def _inputs(self, shape: ModelShape, given: PerLayerEmbeddings, dtype: torch.dtype) -> None:
        shape.inputs, shape.input_width = self.config.num_hidden_layers, given.width
        shape.input_scale = float(torch.tensor(given.width**0.5, dtype=dtype))
        shape.input_table, shape.input_projection = self._table(given.table), self._matrix(given.project)
        shape.input_norm = self._norm(given.norm)

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _vector(self, values: Tensor | None) -> int | None:
        return None if values is None else self._keep(values.detach().float().contiguous())

    def _norm(self, weight: Tensor | None) -> int | None:
        offset = weight is not None and self.config.norm.endswith("_offset")
        return self._vector(1 + weight.detach().float() if offset and weight is not None else weight)

    def _matrix(self, module: nn.Module) -> Any:
        assert isinstance(module, NativeMatrix)
        self._kept.append(module)
        return module.handle

    def _part(self, part: Part, joined: bool) -> ModelPart:
        """Half a layer as the library has it; the places of keys and values are for the caller."""
        c, native, norms = part.config, ModelPart(), ["norm", "post_norm"]
        native.joined, native.layer_norm, native.eps = joined, c.norm.startswith("layer"), c.rms_norm_eps
        native.multiplier, native.scalar = part.multiplier, self._vector(part.scalar)
        up: nn.Module | None
        down: nn.Module | None
        native.inner_norm = self._norm(part.inner_norm)
        if isinstance(part, Attention):
            up, down, native.kind = part.first, part.o, ATTENTION_PART
            self._attention(native, part)
            native.heads, native.kv_heads, native.head_dim = part.heads, part.kv_heads, part.head_dim
            native.window, native.rotary_dim = -c.window if c.chunked else c.window, c.rotated
            native.scale, native.softcap, native.clip = c.query_scale, c.attention_softcap or 0, c.qkv_clip or 0
            native.borrowed, native.gate, native.value_norm = c.kv_layer is not None, c.output_gate, c.value_norm
            native.qk_norm, native.late_norm = QK_NORMS[c.qk_norm or "one"], c.late_qk_norm
            native.sinks = self._vector(part.sinks)
            norms += [] if isinstance(part, LatentAttention) else ["q_norm", "k_norm"]
        elif isinstance(part, Experts):
            up = down = None
            native.kind, native.experts = EXPERTS_PART, addressof(self._mixture(part))
            native.activation = ACTIVATION_NUMBERS["steep silu" if part.how.limit else c.hidden_act]
            native.group_top, native.jitter = part.how.group_top, part.how.jitter
        elif isinstance(part, Recurrence):
            up, down = part.into, part.out
        elif isinstance(part, PerLayerInput):
            up, down, native.kind, native.input = part.gate, part.project, PER_LAYER_INPUT_PART, part.number
            native.activation = ACTIVATION_NUMBERS[c.hidden_act]
        else:
            assert isinstance(part, FeedForward) and c.gate_cutoff is None
            up, down, native.kind = part.gate_up if part.gated else part.up, part.down, FEED_FORWARD_PART
            native.activation, native.gated = ACTIVATION_NUMBERS[c.hidden_act], c.gated
            native.gate_scale = c.gate_multiplier
            if isinstance(part.activation, XIELU):
                native.numbers = self._vector(torch.cat(part.activation.numbers()))
        native.up, native.down = (None if matrix is None else self._matrix(matrix) for matrix in (up, down))
        if getattr(part, "norm_first", False):
            norms.remove("norm")  # the rows are normalised already
        for name in norms:
            setattr(native, name, self._norm(getattr(part, name, None)))
            setattr(native, f"{name}_bias", self._vector(getattr(part, f"{name}_bias", None)))
        return native

    def _attention(self, native: ModelPart, part: Attention) -> None:
        """Set the knobs of attention that few families have."""
        c = part.config
        native.value_dim = c.value_dim
        if c.query_growth is not None:
            grows = c.query_growth
            native.growth, native.growth_length, native.growth_start = grows.beta, grows.length, grows.start
        if c.alibi is not None:
            table = self._biases.setdefault(c.alibi, c.alibi.table(-(-self.context // 16) * 16))
            native.bias, native.bias_stride = self._keep(table), table.shape[1]
        if isinstance(part, LatentAttention):
            known = part.latent
            made = LatentShape(
                *(known.q_rank or 0, known.kv_rank, known.eps),
                *(None if part.q_up is None else self._matrix(part.q_up), self._matrix(part.kv_up)),
                *(self._vector(part.q_norm), self._vector(part.kv_norm)),
            )
            self._kept.append(made)
            native.latent = addressof(made)

    def _mixture(self, part: Experts) -> MixtureShape:
        """A mixture as the library has it; the router and the gate of the shared expert are one matrix."""
        e = part.how
        router: nn.Module = part.router
        if part.shared_gate is not None:
            router = NativeMatrix(torch.cat([_weight(matrix) for matrix in (router, part.shared_gate)]), None)
        experts = [*part.experts, *([] if part.shared is None else [part.shared])]
        ups, downs = (
            (c_void_p * len(experts))(*(self._matrix(getattr(expert, name)) for expert in experts))
            for name in ("first", "down")
        )
        made = MixtureShape(
            *(
                e.count,
                e.chosen,
                2 if e.weighs_inputs else e.scoring == "sigmoid",
                e.normalised,
                e.groups,
                e.chosen_groups,
            ),
            *(part.shared is not None, part.shared_gate is not None, e.scale, e.limit or 0),
            *(self._matrix(router), self._vector(part.selection_bias), addressof(ups), addressof(downs)),
        )
        if isinstance(part, ExpertsBesideMlp):
            assert part.router_norm is not None
            made.router_norm, made.expert_scale = (
                self._vector(values) for values in (part.router_norm * part.router_scale, part.expert_scale)
            )
            made.own_norm, made.own_post_norm, made.shared_post_norm = (
                self._norm(weight) for weight in (part.experts_norm, part.experts_post_norm, part.shared_post_norm)
            )
        self._kept += [made, ups, downs]
        return made

    def _rotary(self, reach: int) -> RotaryTables:
        """Rotary tables of each kind of layer, for positions below `reach` or more."""
        if reach > self._tables.reach:
            self._tables = RotaryTables.of([None if rope is None else _halves(rope, reach) for rope in self._ropes])
        return self._tables

    def forward(self, batch: Batch, cache: Cache, beside: Tensor | None = None) -> Tensor:
        """The same as `Decoder.forward`, with hidden states in float32. Raises ModelError for a batch beyond the cache.

        `beside` [N, D] is put before the rows as input of the first product; trained heads read embeddings there. If
        rows begin with what is given, `batch.hidden` holds that [N, W].
        """
        config, count, segments, states = self.config, len(batch), batch.segments, batch.states
        stop = self.n_layers if batch.stop is None else batch.stop
        slots: list[int] = []
        seen: list[int] = []
        path: list[int] = []
        ends: list[int] = []  # of each row's part of it
        owner: list[int] = []
        bases: list[int] = []
        capacities: list[int] = []
        lengths: list[int] = []
        trunks: list[int] = []
        for number, segment in enumerate(segments):
            slots += segment.slots
            seen += segment.seen
            owner += [number] * len(segment.slots)
            for one in segment.paths:
                path += one
                ends.append(len(path))
            bases.append(segment.extent.base)
            capacities.append(segment.extent.capacity)
            place, length = segment.trunk.buffer_info()
            trunks.append(place)
            lengths.append(length)
        if not count == len(slots) == len(seen) == len(ends):
            raise ModelError(f"a batch of {count} tokens has {len(slots)} slots; give one for each token")
        width = self._given or config.hidden_size
        if batch.hidden is not None and batch.hidden.shape != (count, width):
            wanted = [count, width]
            raise ModelError(f"hidden states of a batch must be {wanted}, not {list(batch.hidden.shape)}")
        table = array("i", [*slots, *seen, *ends, *owner, *bases, *capacities, *lengths, *path])
        trunk, numbers = array("Q", trunks), _start(batch.numbers)
        rotary = self._rotary(batch.reach)
        hidden = None if batch.hidden is None else batch.hidden.float().contiguous()
        if isinstance(batch.wanted, slice):
            place, (first, end, _) = 0, batch.wanted.indices(count)
            wanted_count = max(0, end - first)
        else:
            place, first, wanted_count = batch.wanted.data_ptr(), 0, batch.wanted.shape[0]
        to_end = stop == self.n_layers
        best, log_sums = array("q", bytes(8 * wanted_count)), array("f", bytes(4 * wanted_count))
        few = min(batch.leading, self._vocabulary) if to_end and batch.head else 0
        leading, logits = array("q", bytes(8 * few * wanted_count)), array("f", bytes(4 * few * wanted_count))
        if to_end:
            out = torch.empty(wanted_count, self._vocabulary if batch.head else 0)
        else:
            out = torch.empty(count, config.hidden_size)
        for layer in states:
            batch.kept[layer] = torch.empty(wanted_count, config.hidden_size)
        for layer in batch.reads:
            batch.read[layer] = torch.empty(count, config.hidden_size)
        after, kept = array("i", states), data_pointers([batch.kept[layer] for layer in states])
        read_after, read = array("i", batch.reads), data_pointers([batch.read[layer] for layer in batch.reads])
        at, row, some = _start(table), 4 * count, 4 * len(segments)
        plane_type = PLANE_TYPES[cache.layout[0][2]] if cache.layout else 0
        base = at + 4 * row
        states_at = 0 if hidden is None else hidden.data_ptr()
        call = _CALL.pack(
            *(count, len(segments), cache.slots, min(self.context, rotary.reach)),
            *(numbers, numbers + 8 * count, at, at + row, at + 2 * row, at + 3 * row),
            *(base + 3 * some, 0 if self._given else states_at, base, base + some, base + 2 * some),
            *(_start(trunk), _start(cache.pointers), _start(rotary.cos), _start(rotary.sin)),
            *(batch.start, stop, wanted_count, first, place),
            *(out.data_ptr() if to_end and batch.head else 0, 0 if to_end else out.data_ptr()),
            *(len(states), _start(after), _start(kept), torch.get_num_threads(), plane_type),
            *(0 if beside is None else beside.data_ptr(), states_at if self._given else 0),
            *(len(batch.reads), _start(read_after), _start(read), _start(best), _start(log_sums)),
            *(few, _start(leading), _start(logits)),
        )
        if isinstance(cache.states, RecurrentStates):
            with cache.states.planned(batch) as plan:
                walks = NativeWalks(cache.states, plan)
                check(loaded_library().dw_forward_walks(self.handle, call, walks.call) != 0)
        else:
            check(self._forward(self.handle, call) != 0)
        if to_end and batch.head:
            parts = [slice(row * few, row * few + few) for row in range(wanted_count if few else 0)]
            batch.tops = RowTops(best, log_sums, [(leading[part].tolist(), logits[part].tolist()) for part in parts])
        return out


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines [positions, rotary_dim / 2] of each kind of layer, and their addresses; 0 where it has none."""

    tables: Sequence[tuple[Tensor, Tensor] | None]
    reach: int  # number of positions
    cos: array[int]
    sin: array[int]

    @classmethod
    def of(cls, tables: Sequence[tuple[Tensor, Tensor] | None]) -> RotaryTables:
        reach = min((len(pair[0]) for pair in tables if pair), default=1 << 60)
        cos, sin = (array("Q", [pair[i].data_ptr() if pair else 0 for pair in tables]) for i in (0, 1))
        return cls(tables, reach, cos, sin)


def _weight(matrix: nn.Module) -> Tensor:
    """The weights [N, K] of a packed matrix, in float32."""
    assert isinstance(matrix, NativeMatrix)
    return matrix.rows(torch.arange(matrix.out_features))


def _halves(rope: Rotary, reach: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, rotary_dim / 2] for `reach` positions or more."""
    cos, sin = rope.tables(reach, torch.device("cpu"), torch.float32)
    return cos[:, 0].chunk(2, -1)[0].contiguous(), sin[:, 0].chunk(2, -1)[1].contiguous()


def _start(values: array[int] | array[float]) -> int:
    return values.buffer_info()[0]
