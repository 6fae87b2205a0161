"""One configurable decoder, any range of whose layers runs over cache slots.

A family of models is a `DecoderConfig`, never a subclass; what a family needs beyond the present knobs becomes a knob.
Knobs that are off cost no operation: what a layer does is chosen when it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.attention import FEWEST_ROWS, additive, folded, fused, ordered
from draftwood.models.backend.native import NativeMatrix, Program, kernels
from draftwood.models.base import Batch
from draftwood.models.cache import Budget, Cache, Plane
from draftwood.models.flat import Group, Layered, Memory, View, index, packs, visible
from draftwood.models.functions import ACTIVATIONS, NORMS, activate
from draftwood.models.modules import Embedding, Linear
from draftwood.models.parallel.split import ALONE, Parallel
from draftwood.models.rotary import UNSCALED, RopeScaling, Rotary, rotate, rotate_leading
from draftwood.models.wrapper import bytes_of


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and knobs of a decoder; field names follow Hugging Face's config.json where one exists."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5  # of every norm, whatever its kind
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = UNSCALED
    hidden_act: str = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    norm: str = "rms"  # rms; rms_offset, which multiplies by 1 + weight; layer, with a bias
    sandwich: bool = False  # norms after attention and MLP too, before the sums
    qk_norm: bool = False  # each head's query and key is normalised before its rotation
    gated: bool = True  # MLP with a gate; else up, activation, down
    position_offset: int | None = None  # learned positions, number p in row p + offset; None: rotary positions
    rotary_dim: int | None = None  # leading components of each head that are rotated; None: all
    windows: tuple[int, ...] = ()  # positions that each layer sees, its own included, 0 = all; empty: all see all
    local_rope_theta: float | None = None  # rotary base of the layers with a window, unscaled; None: as the others
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None
    logit_softcap: float | None = None


def _norm_parameters(config: DecoderConfig, width: int) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Weight and bias of a norm that starts as the plain one; no bias where the kind has none."""
    weight = torch.zeros(width) if config.norm == "rms_offset" else torch.ones(width)
    return nn.Parameter(weight), nn.Parameter(torch.zeros(width)) if config.norm == "layer" else None


class Block(nn.Module):
    """One transformer layer: attention over cache slots, then an MLP, a norm before each.

    With `parallel` it is one process's part of a layer, of the heads and hidden units that `config` says.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = ALONE) -> None:
        super().__init__()
        c = config
        self.parallel = parallel
        self.heads, self.kv_heads, self.head_dim, self.eps = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.rms_norm_eps,
        )
        self.normalise = NORMS[c.norm]
        self.attention_norm, self.attention_norm_bias = _norm_parameters(c, c.hidden_size)
        self.qkv = Linear(c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim, c.qkv_bias)
        self.o = Linear(c.num_attention_heads * c.head_dim, c.hidden_size, c.o_bias)
        self.mlp_norm, self.mlp_norm_bias = _norm_parameters(c, c.hidden_size)
        if c.gated:
            self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        else:
            self.up = Linear(c.hidden_size, c.intermediate_size, c.mlp_bias)
        self.down = Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
        self.activation = ACTIVATIONS[c.hidden_act]
        self.gated, self.sandwich, self.qk_norm = c.gated, c.sandwich, c.qk_norm
        if c.sandwich:
            self.post_attention_norm, self.post_attention_norm_bias = _norm_parameters(c, c.hidden_size)
            self.post_mlp_norm, self.post_mlp_norm_bias = _norm_parameters(c, c.hidden_size)
        if c.qk_norm:
            self.q_norm, self.q_norm_bias = _norm_parameters(c, c.head_dim)
            self.k_norm, self.k_norm_bias = _norm_parameters(c, c.head_dim)
        self.rotate = rotate if c.rotary_dim is None else rotate_leading
        self.scale, self.softcap = c.attention_scale, c.attention_softcap

    @property
    def parts(self) -> list[tuple[Block, bool]]:
        return [(self, True), (self, False)]

    def forward(self, x: Tensor, view: View, memory: Memory | None) -> Tensor:
        """x [B, N, D] -> [B, N, D]; B = 1 where keys and values are kept in `memory`."""
        return self.feed(self.attend(x, view, memory))

    def attend(self, x: Tensor, view: View, memory: Memory | None) -> Tensor:
        """The first half of the layer: x + attention."""
        b, n, _ = x.shape
        qkv = self.qkv(self.enter(x, view)).view(b, n, -1, self.head_dim)
        turned, v = qkv[:, :, : self.heads + self.kv_heads], qkv[:, :, self.heads + self.kv_heads :]
        if self.qk_norm:
            turned = self._normalise_heads(turned)
        if view.cos is not None and view.sin is not None:
            turned = self.rotate(turned, view.cos, view.sin)
        q, k = turned[:, :, : self.heads], turned[:, :, self.heads :]
        if memory is None:
            out: Tensor = view.attend(q, k.transpose(1, 2), v.transpose(1, 2), view.bias, self.scale, self.softcap)
        else:
            out = memory.attend(q, k, v, view, self.scale, self.softcap)
        out = self.parallel.sum(self.o(out))
        if self.sandwich:
            out = self.normalise(out, self.post_attention_norm, self.post_attention_norm_bias, self.eps)
        return x + out

    def enter(self, x: Tensor, view: View) -> Tensor:
        """What queries, keys and values are made of."""
        return self.normalise(x, self.attention_norm, self.attention_norm_bias, self.eps)

    def feed(self, x: Tensor) -> Tensor:
        """The second half of the layer: x + MLP."""
        normed = self.normalise(x, self.mlp_norm, self.mlp_norm_bias, self.eps)
        out: Tensor
        if self.gated:
            gate, up = self.gate_up(normed).chunk(2, -1)
            out = self.down(activate(self.activation, gate) * up)
        else:
            out = self.down(activate(self.activation, self.up(normed)))
        out = self.parallel.sum(out)
        if self.sandwich:
            out = self.normalise(out, self.post_mlp_norm, self.post_mlp_norm_bias, self.eps)
        return x + out

    def _normalise_heads(self, qk: Tensor) -> Tensor:
        """Norms over each head's components of queries and keys [B, Q, heads + kv_heads, head_dim]."""
        q = self.normalise(qk[:, :, : self.heads], self.q_norm, self.q_norm_bias, self.eps)
        k = self.normalise(qk[:, :, self.heads :], self.k_norm, self.k_norm_bias, self.eps)
        return torch.cat((q, k), 2)


class Sublayers(nn.Module):
    """Sublayers that stand for a layer: an attention and the MLPs around it, or none, and rows pass as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[Block, bool]] = []  # (layer, whether its attention); not registered: they are borrowed

    def forward(self, x: Tensor, view: View, memory: Memory | None) -> Tensor:
        """As `Block.forward`."""
        for block, attention in self.parts:
            x = block.attend(x, view, memory) if attention else block.feed(x)
        return x


class Decoder(nn.Module):
    """A decoder-only transformer; see `draftwood.models.base.CausalModel` for `forward`.

    Windows count positions, while masks and slots come from outside: where a layer has a window, the cache has one
    more plane, which remembers the position of every slot. With `parallel` it holds one process's part of the model.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = ALONE) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.local = parallel.local(config)  # the shape of what is held here
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
        self.home: Path | None = None  # the directory that it was loaded from
        rows = (config.vocab_size, self.context + (config.position_offset or 0)) if parallel.drives else (0, 0)
        self.embed = Embedding(rows[0], config.hidden_size)
        self.position = None if config.position_offset is None else Embedding(rows[1], config.hidden_size)
        self.layers = nn.ModuleList(Block(self.local, parallel) for _ in range(config.num_hidden_layers))
        self.norm, self.norm_bias = _norm_parameters(config, config.hidden_size)
        self.head = Linear(config.hidden_size, self.local.vocab_size, bias=False)
        if config.tie_word_embeddings and parallel.size == 1:
            self.head.weight = self.embed.weight
        windows = config.windows[: self.n_layers] or (0,) * self.n_layers
        self.windows = sorted(set(windows))  # one kind of layer each
        self.kinds = [self.windows.index(window) for window in windows]  # kind of each layer
        c, self.rotary, self.local_rotary = config, None, None
        dim = c.rotary_dim or c.head_dim
        if c.position_offset is None:
            self.rotary = Rotary(c.rope_theta, dim, self.context, c.rope_scaling)
            if c.local_rope_theta is not None:
                self.local_rotary = Rotary(c.local_rope_theta, dim, self.context)
        group = self.local.num_attention_heads // self.local.num_key_value_heads
        self._fewest = -(-FEWEST_ROWS // group)
        self._program: Program | None = None  # made when it is first needed

    @property
    def native(self) -> bool:
        """Whether forwards are computed by the native library: its matrices are packed for it."""
        return isinstance(self.head, NativeMatrix)

    @property
    def kernels(self) -> str:
        """The native library's kernel set that forwards are computed with; empty: PyTorch's."""
        return kernels()[0] if self.native else ""

    def parts(self) -> list[list[tuple[Block, bool]]]:
        """Of each layer the sublayers in order: (block, whether it is its attention)."""
        return [layer.parts for layer in self.layers]  # type: ignore[misc]

    @property
    def skipped_parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Layers of the whole model whose attention, and whose MLP, this one leaves out."""
        return (), ()

    @property
    def broken(self) -> str | None:
        """Why it cannot compute any more: a process that had a part of it is gone."""
        return self.parallel.broken

    def must_be_plain(self, purpose: str) -> None:
        """Raise a ModelError where matrices are held packed, quantised or in part, which cannot be turned back."""
        if self.parallel.size > 1:
            raise ModelError(f"a model that is split among processes cannot be {purpose}; leave out tensor_parallel")
        if not all(
            isinstance(module, nn.Linear)
            for module in (self.head, *(block.qkv for parts in self.parts() for block, _ in parts))
        ):
            raise ModelError(f"a model whose matrices are packed cannot be {purpose}; load it with packed=False")

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads, however few cells it has; the table of embeddings is hardly read."""
        own = sum(part.nbytes for part in self.parameters(recurse=False))
        apart = (self, self.embed, self.position)
        return own + sum(bytes_of(module, recurse=False) for module in self.modules() if module not in apart)

    def cells(self, count: int) -> int:
        if self._program is not None or self.native:
            return count
        return max(count, self._fewest, getattr(self.head, "fewest_rows", 2))

    def new_cache(self, slots: int = 0, budget: Budget | None = None) -> Cache:
        c, parallel = self.local, self.parallel
        planes: list[Plane] = [(c.num_key_value_heads, c.head_dim, self.dtype)] * (2 * self.n_layers)
        if self.remembers:  # the positions of the slots, exact in every dtype
            planes.append((1, 1, torch.int64))
        copies = parallel.size if self.device.type == "cpu" else 1  # memory of GPUs is each one's own
        return Cache(planes, self.device, slots, budget, copies=copies, journal=parallel.journal())

    @property
    def remembers(self) -> bool:
        """Whether the cache's last plane holds the positions of slots, for windows; native needs none."""
        return self.windows != [0] and not self.native

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if self._program is None and self.native:
            self._program = Program(self)
        if self._program is not None:
            return self._program.forward(batch, cache)
        stop = self.n_layers if batch.stop is None else batch.stop
        x = self.embedded(batch.tokens, batch.positions) if batch.hidden is None else batch.hidden
        with self.parallel.together(self, batch, cache, x):
            x = self.run(x[None], self.views(batch, cache), self.memories(batch, cache), batch.start, stop, batch)[0]
            return x if stop < self.n_layers else self._answer(x, batch)

    def _answer(self, x: Tensor, batch: Batch) -> Tensor:
        """Logits of the wanted rows of x [N, D]; the asked states of these rows are kept."""
        x = x[batch.wanted]
        for layer, states in batch.kept.items():
            batch.kept[layer] = states[batch.wanted]
        if self.n_layers in batch.states:
            batch.kept[self.n_layers] = self.normed(x)
        return self.logits(x) if batch.head else x.new_empty(len(x), 0)

    def run(
        self,
        x: Tensor,
        views: Sequence[View],
        memories: Sequence[Memory],
        start: int,
        stop: int,
        batch: Batch | None = None,
    ) -> Tensor:
        """Layers [start, stop) over rows x [1, N, D] -> [1, N, D]."""
        for layer in range(start, stop):
            x = self.layers[layer](x, views[self.kinds[layer]], memories[layer])
            if batch is not None and layer + 1 in batch.states and layer + 1 < self.n_layers:
                batch.kept[layer + 1] = x[0]
        return x

    def memories(self, batch: Batch, cache: Cache) -> list[Layered]:
        """Where each layer keeps the rows' keys and values."""
        rows = index(batch, cache, self.local.num_key_value_heads)
        return [Layered(cache, layer, rows) for layer in range(self.n_layers)]

    def views(self, batch: Batch, cache: Cache) -> list[View]:
        """What each kind of layer needs beside the rows: one mask per group, additive, which no layer converts."""
        count, place = len(batch.tokens), 2 * self.n_layers
        if self.remembers and batch.start == 0:
            cache.planes[place].index_copy_(0, index(batch, cache, 1), batch.positions[:, None])
        packed, take, back = packs(batch, self._fewest)
        visibles = [visible(segments, rows, self.device) for segments, rows in packed]
        as_they_are = take == list(range(count))
        taken = None if as_they_are else torch.tensor(take, device=self.device)
        places = None if as_they_are else torch.tensor(back, device=self.device)
        cpu = self.device.type == "cpu"
        views = []
        for window in self.windows:
            groups, first = [], 0
            for (segments, rows), seen in zip(packed, visibles, strict=True):
                last = first + len(segments) * rows
                extent, span = segments[0].extent, seen.shape[-1]
                if window and span > window:  # else no visible slot is far: a row's ancestors and itself fill the span
                    near = cache.read(place, extent, span, len(segments))[:, 0, None, :, 0]  # [count, 1, span]
                    at = (batch.positions if taken is None else batch.positions[taken])[first:last]
                    seen = seen & (near > at.view(len(segments), -1, 1) - window)
                bias = additive(seen, self.dtype)
                if cpu:
                    bias = folded(bias, self.local.num_attention_heads, self.local.num_key_value_heads)
                groups.append(Group(slice(first, last), len(segments), extent, span, bias))
                first = last
            cos = sin = None
            if (rotary := self.rotary_of(window)) is not None:
                tables = rotary.tables(batch.reach, self.device, self.dtype)
                cos, sin = (part[batch.positions][None] for part in tables)
            attend = ordered if cpu else fused
            views.append(View(cos, sin, attend, None, groups, taken, places))
        return views

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Input of the first layer [B, Q, D]."""
        x: Tensor = self.embed(tokens)
        if self.config.embedding_scale != 1:  # rounded to the dtype first, as it was when the models were trained
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        if self.position is not None:
            x = x + self.position(positions + self.config.position_offset if self.config.position_offset else positions)
        return x

    def rotary_of(self, window: int) -> Rotary | None:
        """Rotary positions of the layers with a window; None where positions are learned."""
        return self.rotary if not window or self.local_rotary is None else self.local_rotary

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [n, D] -> logits [n, V], in float32 unless the model is float64."""
        out = self._head(hidden)
        return out if out.dtype == torch.float64 else out.float()

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm [n, D]."""
        return NORMS[self.config.norm](hidden, self.norm, self.norm_bias, self.config.rms_norm_eps)

    def _head(self, hidden: Tensor) -> Tensor:
        cap = self.config.logit_softcap
        out = self.parallel.gather(self.head(self.normed(hidden)), self.vocab_size)
        return out if cap is None else cap * torch.tanh(out / cap)

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Plain causal forward without a cache, differentiable: tokens [B, T] -> logits [B, T, V]."""
        x = self.embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device)[None])
        return self._head(self.train_layers(x, 0, self.n_layers))

    def train_layers(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Layers [start, stop) of the same: x [B, T, D], the positions 0, 1, ... of each row -> [B, T, D]."""
        views = self.train_views(x)
        for layer in range(start, stop):
            x = self.layers[layer](x, views[self.kinds[layer]], None)
        return x

    def train_views(self, x: Tensor) -> list[View]:
        """Of each kind of layer what it needs beside rows x [B, T, D] at the positions 0, 1, ..."""
        n = x.shape[1]
        views: list[View] = []
        for window in self.windows:
            bias = None  # the fused kernel knows the causal one
            if 0 < window < n:
                bias = additive(torch.ones(1, n, n, dtype=torch.bool, device=x.device).tril().triu(1 - window), x.dtype)
            rotary = self.rotary_of(window)
            cos, sin = (None, None) if rotary is None else rotary.tables(n, x.device, x.dtype)
            views.append(View(cos if cos is None else cos[:n], sin if sin is None else sin[:n], fused, bias))
        return views
