"""One configurable decoder, any range of whose layers runs over cache slots.

A family of models is a `DecoderConfig`, never a subclass; what a family needs beyond the present knobs becomes a knob.
Knobs that are off cost no operation: what a layer does is chosen when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.attention import FEWEST_ROWS, additive, folded, fused, ordered
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, put
from draftwood.models.rotary import UNSCALED, RopeScaling, Rotary, rotate, rotate_leading


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


def gelu(x: Tensor) -> Tensor:
    """PyTorch has two kernels of it, one for contiguous tensors."""
    return F.gelu(x.contiguous())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


SERIAL = 16000  # elements up to which PyTorch computes an activation in one thread


def activate(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An activation of x [B, Q, width], a few rows at a time on a CPU.

    Shared among threads, a row may be cut inside a vector, and the rest of a vector is computed by other instructions
    with another rounding: a row's result would depend on the number of rows.
    """
    if x.numel() <= SERIAL or x.is_cuda or torch.is_grad_enabled():
        return activation(x)
    rows = max(1, SERIAL // (len(x) * x.shape[-1]))
    return torch.cat([activation(some) for some in torch.split(x, rows, 1)], 1)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """PyTorch has no kernel of it for CPUs; the layer norm of x beside -x, whose mean is zero, is the same in one."""
    if x.is_cuda or torch.is_grad_enabled():
        return torch.rms_norm(x, weight.shape, weight, eps)
    width = weight.shape[0]
    return torch.layer_norm(torch.cat((x, -x), -1), (2 * width,), None, None, eps)[..., :width] * weight


def rms_offset_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """In float32 inside: 1 + weight would lose the weight's last digits in a shorter dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, 1 + weight.to(wide), eps).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], Tensor]] = {
    "rms": rms_norm,
    "rms_offset": rms_offset_norm,
    "layer": layer_norm,
}


def _norm_parameters(config: DecoderConfig, width: int) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Weight and bias of a norm that starts as the plain one; no bias where the kind has none."""
    weight = torch.zeros(width) if config.norm == "rms_offset" else torch.ones(width)
    return nn.Parameter(weight), nn.Parameter(torch.zeros(width)) if config.norm == "layer" else None


@dataclass(slots=True)
class View:
    """What the layers of one kind share in a forward."""

    cos: Tensor | None  # [B, Q, 1, rotary_dim], of packed cells [1, n, 1, rotary_dim]; None: no rotation
    sin: Tensor | None
    bias: Tensor | None  # additive mask, as `attend` wants it; None: causal
    attend: Callable[..., Tensor]
    cells: Tensor | None = None  # [n] where only these of the B * Q cells are computed: x is packed, [1, n, D]


class Block(nn.Module):
    """One transformer layer: attention over cache slots, then an MLP, a norm before each."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim, self.eps = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.rms_norm_eps,
        )
        self.normalise = NORMS[c.norm]
        self.attention_norm, self.attention_norm_bias = _norm_parameters(c, c.hidden_size)
        self.qkv = nn.Linear(
            c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim, c.qkv_bias
        )
        self.o = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, c.o_bias)
        self.mlp_norm, self.mlp_norm_bias = _norm_parameters(c, c.hidden_size)
        if c.gated:
            self.gate_up = nn.Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        else:
            self.up = nn.Linear(c.hidden_size, c.intermediate_size, c.mlp_bias)
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
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

    def forward(self, x: Tensor, view: View, memory: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
        """x [B, Q, D] -> [B, Q, D]; `memory` is where keys and values are kept: both planes and the slots [B, Q].

        Where the view names cells, x is packed: attention alone has the cells of each row apart, with padding.
        """
        return self.feed(self.attend(x, view, memory))

    def attend(self, x: Tensor, view: View, memory: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
        """The first half of the layer: x + attention."""
        b, n, _ = x.shape
        normed = self.normalise(x, self.attention_norm, self.attention_norm_bias, self.eps)
        qkv = self.qkv(normed).view(b, n, -1, self.head_dim)
        turned, v = qkv[:, :, : self.heads + self.kv_heads], qkv[:, :, self.heads + self.kv_heads :]
        if self.qk_norm:
            turned = self._normalise_heads(turned)
        if view.cos is not None and view.sin is not None:
            turned = self.rotate(turned, view.cos, view.sin)
        if view.cells is not None and memory is not None:
            whole = x.new_zeros(memory[2].numel(), self.heads + 2 * self.kv_heads, self.head_dim)
            whole[view.cells] = torch.cat((turned[0], v[0]), 1)
            whole = whole.view(*memory[2].shape, -1, self.head_dim)
            turned, v = whole[:, :, : self.heads + self.kv_heads], whole[:, :, self.heads + self.kv_heads :]
        q, k = turned[:, :, : self.heads], turned[:, :, self.heads :]
        if memory is None:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        else:
            keys, values, slots = memory
            put(keys, slots, k)
            put(values, slots, v)
            assert view.bias is not None
            span = view.bias.shape[-1]
            k, v = keys[:, :, :span], values[:, :, :span]
        out: Tensor = view.attend(q, k, v, view.bias, self.scale, self.softcap)
        if view.cells is not None:
            out = out.flatten(0, 1)[view.cells][None]
        out = self.o(out)
        if self.sandwich:
            out = self.normalise(out, self.post_attention_norm, self.post_attention_norm_bias, self.eps)
        return x + out

    def feed(self, x: Tensor) -> Tensor:
        """The second half of the layer: x + MLP."""
        normed = self.normalise(x, self.mlp_norm, self.mlp_norm_bias, self.eps)
        out: Tensor
        if self.gated:
            gate, up = self.gate_up(normed).chunk(2, -1)
            out = self.down(activate(self.activation, gate) * up)
        else:
            out = self.down(activate(self.activation, self.up(normed)))
        if self.sandwich:
            out = self.normalise(out, self.post_mlp_norm, self.post_mlp_norm_bias, self.eps)
        return x + out

    def _normalise_heads(self, qk: Tensor) -> Tensor:
        """Norms over each head's components of queries and keys [B, Q, heads + kv_heads, head_dim]."""
        q = self.normalise(qk[:, :, : self.heads], self.q_norm, self.q_norm_bias, self.eps)
        k = self.normalise(qk[:, :, self.heads :], self.k_norm, self.k_norm_bias, self.eps)
        return torch.cat((q, k), 2)


class Decoder(nn.Module):
    """A decoder-only transformer; see `draftwood.models.base.CausalModel` for `forward`.

    Windows count positions, while masks and slots come from outside: where a layer has a window, the cache has one
    more plane, which remembers the position of every slot.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
        self.home: Path | None = None  # the directory that it was loaded from
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = (
            None
            if config.position_offset is None
            else nn.Embedding(self.context + config.position_offset, config.hidden_size)
        )
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm, self.norm_bias = _norm_parameters(config, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
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
        group = c.num_attention_heads // c.num_key_value_heads
        self._fewest = -(-FEWEST_ROWS // group)

    def must_be_plain(self, purpose: str) -> None:
        """Raise a ModelError where matrices are held packed or quantised, which cannot be turned back."""
        if not all(isinstance(module, nn.Linear) for module in (self.head, *(layer.qkv for layer in self.layers))):
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
        total = 0
        for module in self.modules():
            if module is self.embed or module is self.position:
                continue
            held = getattr(module, "weight_bytes", None) if module is not self else None
            parts = module.parameters(recurse=False)
            total += held if held is not None else sum(part.numel() * part.element_size() for part in parts)
        return total

    def cells(self, count: int) -> int:
        return max(count, self._fewest, getattr(self.head, "fewest_rows", 2))

    def new_cache(self, rows: int, capacity: int) -> Cache:
        tail = (self.config.num_key_value_heads, self.config.head_dim)
        cache = Cache([tail] * (2 * self.n_layers), self.dtype, self.device, rows, capacity)
        if self.windows != [0]:  # the positions of the slots, exact in every dtype
            cache.add((1, 1), torch.int64)
        return cache

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        stop = self.n_layers if batch.stop is None else batch.stop
        views, planes = self.views(batch, cache), cache.of(batch.rows)
        if batch.cells is None or batch.start > 0 or stop < self.n_layers or len(batch.cells) < self.cells(1):
            x = self.embedded(batch.tokens, batch.positions) if batch.hidden is None else batch.hidden
            x = self.run(x, views, batch.slots, planes, batch.start, stop, batch)
            return x if stop < self.n_layers else self._answer(x.flatten(0, 1), batch.wanted, batch)
        if batch.hidden is None:
            x = self.embedded(*(part.flatten()[batch.cells][None] for part in (batch.tokens, batch.positions)))
        else:
            x = batch.hidden.flatten(0, 1)[batch.cells][None]
        for view in views:
            view.cells = batch.cells
            if view.cos is not None and view.sin is not None:
                view.cos, view.sin = (part.flatten(0, 1)[batch.cells][None] for part in (view.cos, view.sin))
        x = self.run(x, views, batch.slots, planes, 0, stop, batch)
        place = torch.empty(batch.tokens.numel(), dtype=torch.int64, device=x.device)
        place[batch.cells] = torch.arange(len(batch.cells), device=x.device)
        return self._answer(x[0], place[batch.wanted], batch)

    def _answer(self, x: Tensor, wanted: Tensor | slice, batch: Batch) -> Tensor:
        """Logits of the wanted cells of x [cells, D]; the asked states of these cells are kept."""
        x = x[wanted]
        for layer, states in batch.kept.items():
            batch.kept[layer] = states.flatten(0, 1)[wanted]
        if self.n_layers in batch.states:
            batch.kept[self.n_layers] = self.normed(x)
        return self.logits(x) if batch.head else x.new_empty(len(x), 0)

    def run(
        self,
        x: Tensor,
        views: Sequence[View],
        slots: Tensor,
        planes: Sequence[Tensor],
        start: int,
        stop: int,
        batch: Batch | None = None,
    ) -> Tensor:
        """Layers [start, stop) over cells x [B, Q, D] -> [B, Q, D], with `planes` of the rows only."""
        for layer in range(start, stop):
            memory = planes[2 * layer], planes[2 * layer + 1], slots
            x = self.layers[layer](x, views[self.kinds[layer]], memory)
            if batch is not None and layer + 1 in batch.states and layer + 1 < self.n_layers:
                batch.kept[layer + 1] = x
        return x

    def views(self, batch: Batch, cache: Cache) -> list[View]:
        """What each kind of layer needs beside the cells."""
        return [self._view(window, batch, cache) for window in self.windows]

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Input of the first layer [B, Q, D]."""
        x: Tensor = self.embed(tokens)
        if self.config.embedding_scale != 1:  # rounded to the dtype first, as it was when the models were trained
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        if self.position is not None:
            x = x + self.position(positions + self.config.position_offset if self.config.position_offset else positions)
        return x

    def _view(self, window: int, batch: Batch, cache: Cache) -> View:
        """What the layers with this window need: the mask is additive, a bool one would be converted in every layer."""
        visible = batch.mask
        if window:
            place = 2 * self.n_layers
            if batch.start == 0:
                cache.write(place, batch.rows, batch.slots, batch.positions[:, :, None, None])
            if batch.span > window:  # else no visible slot is far: a cell's ancestors and itself fill the span at most
                near = cache.read(place, batch.rows, batch.span)[:, 0, None, :, 0]  # [B, 1, span]
                near = near > batch.positions[:, :, None] - window
                visible = near if visible is None else visible & near  # [B, Q, span]
        device, dtype = batch.tokens.device, self.dtype
        attend: Callable[..., Tensor] = fused
        bias = additive(visible, batch.span, dtype, device)
        if device.type == "cpu":
            attend = ordered
            bias = folded(bias, self.config.num_attention_heads, self.config.num_key_value_heads)
        rotary = self._rotary(window)
        if rotary is None:
            return View(None, None, bias, attend)
        cos, sin = rotary.tables(cache.capacity, device, dtype)  # every ancestor of a cell has a slot
        return View(cos[batch.positions], sin[batch.positions], bias, attend)

    def _rotary(self, window: int) -> Rotary | None:
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
        out: Tensor = self.head(self.normed(hidden))
        return out if cap is None else cap * torch.tanh(out / cap)

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Plain causal forward without a cache, differentiable: tokens [B, T] -> logits [B, T, V]."""
        x = self.embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device)[None])
        return self._head(self.train_layers(x, 0, self.n_layers))

    def train_layers(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Layers [start, stop) of the same: x [B, T, D], the positions 0, 1, ... of each row -> [B, T, D]."""
        n = x.shape[1]
        views: list[View] = []
        for window in self.windows:
            bias = None  # the fused kernel knows the causal one
            if 0 < window < n:
                visible = torch.ones(1, n, n, dtype=torch.bool, device=x.device).tril().triu(1 - window)
                bias = additive(visible, n, x.dtype, x.device)[:, :, :n]
            rotary = self._rotary(window)
            cos, sin = (None, None) if rotary is None else rotary.tables(n, x.device, x.dtype)
            views.append(View(cos if cos is None else cos[:n], sin if sin is None else sin[:n], bias, fused))
        for layer in range(start, stop):
            x = self.layers[layer](x, views[self.kinds[layer]], None)
        return x
