"""One configurable decoder. Knows layers, positions and how to run any range of layers over cache slots.

Refuses to know checkpoints, tokens' meaning, trees and requests. A family of models is a `DecoderConfig`, never a
subclass; what a family needs beyond the present knobs becomes a knob. Knobs that are off cost no operation: what a
layer does is chosen when it is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.models.base import Batch
from draftwood.models.cache import Cache


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides all, `llama3` divides the slow ones (Llama 3.1)."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


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
    rope_scaling: RopeScaling = RopeScaling()
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


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return torch.rms_norm(x, weight.shape, weight, eps)


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


def rotary_table(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [context, 1, rotary_dim] in float32; the sign of rotate-half is folded into the sines.

    Frequencies and angles are rounded to float32 in every dtype, as they were when the published models were trained:
    at position 100,000 exact angles would differ by 0.001, and the logits with them.
    """
    half = (config.rotary_dim or config.head_dim) // 2
    frequency = 1 / config.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)  # [half]
    scaling = config.rope_scaling
    if scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling.kind == "llama3":
        turns = scaling.original_context * frequency / (2 * math.pi)  # rotations within the original context
        smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = smooth.clamp(0, 1)
        frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
    angle = torch.arange(config.max_position_embeddings, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, Q, heads, head_dim] with cos and signed sin [B, Q, 1, head_dim]."""
    low, high = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((high, low), -1), sin)


def rotate_leading(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first components of each head, as many as the table has, and keep the others."""
    width = cos.shape[-1]
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), -1)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, cap: float) -> Tensor:
    """Attention whose scores pass cap * tanh(score / cap), which the fused kernel cannot do.

    q [B, heads, Q, D], k and v [B, kv_heads, span, D], additive mask [B, 1, Q, span] -> [B, heads, Q, D].
    """
    b, heads, n, width = q.shape
    grouped = q.reshape(b, k.shape[1], -1, n, width)  # [B, kv_heads, group, Q, D]
    scores = grouped @ k[:, :, None].transpose(-1, -2) * (width**-0.5 if scale is None else scale)
    scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores + mask[:, :, None]
    weights = scores.softmax(-1, torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return (weights @ v[:, :, None]).reshape(b, heads, n, width)


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

    def forward(
        self,
        x: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        mask: Tensor | None,
        layer: int,
        batch: Batch | None,
        cache: Cache | None,
    ) -> Tensor:
        b, n, _ = x.shape
        normed = self.normalise(x, self.attention_norm, self.attention_norm_bias, self.eps)
        qkv = self.qkv(normed).view(b, n, -1, self.head_dim)
        turned, v = qkv[:, :, : self.heads + self.kv_heads], qkv[:, :, self.heads + self.kv_heads :]
        if self.qk_norm:
            turned = self._normalise_heads(turned)
        if cos is not None and sin is not None:
            turned = self.rotate(turned, cos, sin)
        q, k = turned[:, :, : self.heads], turned[:, :, self.heads :]
        if cache is not None and batch is not None:
            cache.write(2 * layer, batch.slots, k.flatten(0, 1))
            cache.write(2 * layer + 1, batch.slots, v.flatten(0, 1))
            k = cache.read(2 * layer, batch.rows, batch.span)
            v = cache.read(2 * layer + 1, batch.rows, batch.span)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, heads, Q or span, head_dim]
        if self.softcap is None:
            attended = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=cache is None and mask is None,
                scale=self.scale,
                enable_gqa=self.heads != self.kv_heads,
            )
        else:
            attended = capped_attention(q, k, v, mask, self.scale, self.softcap)
        out: Tensor = self.o(attended.transpose(1, 2).reshape(b, n, -1))
        if self.sandwich:
            out = self.normalise(out, self.post_attention_norm, self.post_attention_norm_bias, self.eps)
        x = x + out
        normed = self.normalise(x, self.mlp_norm, self.mlp_norm_bias, self.eps)
        if self.gated:
            gate, up = self.gate_up(normed).chunk(2, -1)
            out = self.down(self.activation(gate) * up)
        else:
            out = self.down(self.activation(self.up(normed)))
        if self.sandwich:
            out = self.normalise(out, self.post_mlp_norm, self.post_mlp_norm_bias, self.eps)
        return x + out

    def _normalise_heads(self, qk: Tensor) -> Tensor:
        """Norms over each head's components of queries and keys [B, Q, heads + kv_heads, head_dim]."""
        q = self.normalise(qk[:, :, : self.heads], self.q_norm, self.q_norm_bias, self.eps)
        k = self.normalise(qk[:, :, self.heads :], self.k_norm, self.k_norm_bias, self.eps)
        return torch.cat((q, k), 2)


# What the layers of one kind share in a forward: cosines, signed sines (None: no rotation) and the additive mask.
View = tuple[Tensor | None, Tensor | None, Tensor | None]


class Decoder(nn.Module):
    """A decoder-only transformer; see `draftwood.models.base.CausalModel` for `forward`.

    Windows count positions, while masks and slots come from outside: where a layer has a window, the cache has one
    more plane, which remembers the position of every slot.
    """

    cos: Tensor | None
    sin: Tensor | None
    local_cos: Tensor | None
    local_sin: Tensor | None

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
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
        for name in ("cos", "sin", "local_cos", "local_sin"):
            self.register_buffer(name, None, persistent=False)
        self.make_tables(self.norm.device, torch.get_default_dtype())

    def make_tables(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the rotary tables anew, on a device and in a dtype."""
        c = self.config
        if c.position_offset is not None:
            return
        self.cos, self.sin = (table.to(device, dtype) for table in rotary_table(c))
        if c.local_rope_theta is not None:
            local = replace(c, rope_theta=c.local_rope_theta, rope_scaling=RopeScaling())
            self.local_cos, self.local_sin = (table.to(device, dtype) for table in rotary_table(local))

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    def new_cache(self, rows: int, capacity: int) -> Cache:
        tail = (self.config.num_key_value_heads, self.config.head_dim)
        cache = Cache([tail] * (2 * self.n_layers), self.dtype, self.device, rows, capacity)
        if self.windows != [0]:  # the positions of the slots, exact in every dtype
            cache.planes.append(torch.zeros(rows * capacity, dtype=torch.int64, device=self.device))
        return cache

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        x = self.embedded(batch.tokens, batch.positions) if batch.hidden is None else batch.hidden
        views = [self._view(window, batch, cache, x.dtype) for window in self.windows]
        kinds = self.kinds
        stop = self.n_layers if batch.stop is None else batch.stop
        for layer in range(batch.start, stop):
            cos, sin, mask = views[kinds[layer]]
            x = self.layers[layer](x, cos, sin, mask, layer, batch, cache)
        if batch.stop is not None and batch.stop < self.n_layers:
            return x
        return self.logits(x.flatten(0, 1) if batch.wanted is None else x.flatten(0, 1)[batch.wanted])

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Input of the first layer [B, Q, D]."""
        x: Tensor = self.embed(tokens)
        if self.config.embedding_scale != 1:  # rounded to the dtype first, as it was when the models were trained
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        if self.position is not None:
            x = x + self.position(positions + self.config.position_offset if self.config.position_offset else positions)
        return x

    def _view(self, window: int, batch: Batch, cache: Cache, dtype: torch.dtype) -> View:
        """What the layers with this window need: the mask is additive, a bool one would be converted in every layer."""
        visible = batch.mask
        if window:
            place = 2 * self.n_layers
            if batch.start == 0:
                cache.write(place, batch.slots, batch.positions.flatten())
            if batch.span > window:  # else no visible slot is far: a cell's ancestors and itself fill the span at most
                near = cache.read(place, batch.rows, batch.span)[:, None] > batch.positions[:, :, None] - window
                visible = near if visible is None else visible & near  # [B, Q, span]
        mask = None
        if visible is not None:
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            mask = mask.masked_fill_(visible.logical_not(), -torch.inf)[:, None]  # [B, 1, Q, span]
        cos, sin = self._tables(window)
        return None if cos is None else cos[batch.positions], None if sin is None else sin[batch.positions], mask

    def _tables(self, window: int) -> tuple[Tensor | None, Tensor | None]:
        return (self.cos, self.sin) if not window or self.local_cos is None else (self.local_cos, self.local_sin)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [n, D] -> logits [n, V], in float32 unless the model is float64."""
        out = self._head(hidden)
        return out if out.dtype == torch.float64 else out.float()

    def _head(self, hidden: Tensor) -> Tensor:
        normalise, cap = NORMS[self.config.norm], self.config.logit_softcap
        out: Tensor = self.head(normalise(hidden, self.norm, self.norm_bias, self.config.rms_norm_eps))
        return out if cap is None else cap * torch.tanh(out / cap)

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Plain causal forward without a cache, differentiable: tokens [B, T] -> logits [B, T, V]."""
        n = tokens.shape[1]
        x = self.embedded(tokens, torch.arange(n, device=tokens.device)[None])
        views: list[View] = []
        for window in self.windows:
            mask = None  # the fused kernel knows the causal one
            if self.config.attention_softcap is not None or 0 < window < n:
                visible = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
                visible = visible.triu(1 - window) if window else visible
                mask = torch.zeros(n, n, dtype=x.dtype, device=x.device).masked_fill(~visible, -torch.inf)[None, None]
            cos, sin = self._tables(window)
            views.append((None if cos is None else cos[:n], None if sin is None else sin[:n], mask))
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            x = layer(x, *views[kind], 0, None, None)
        return self._head(x)
