"""One configurable decoder. Knows layers, rotary positions and how to run any range of layers over cache slots.

Refuses to know checkpoints, tokens' meaning, trees and requests. A family of models is a `DecoderConfig`, never a
subclass; what a family needs beyond the present knobs becomes a knob.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    hidden_act: str = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


def rotary_table(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [context, 1, head_dim] in float32; the sign of rotate-half is folded into the sines.

    Frequencies and angles are rounded to float32 in every dtype, as they were when the published models were trained:
    at position 100,000 exact angles would differ by 0.001, and the logits with them.
    """
    half = config.head_dim // 2
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


class Block(nn.Module):
    """One pre-norm transformer layer: attention over cache slots, then a gated MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim, self.eps = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.rms_norm_eps,
        )
        self.attention_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.qkv = nn.Linear(
            c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim, c.qkv_bias
        )
        self.o = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, c.o_bias)
        self.mlp_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.gate_up = nn.Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
        self.activation = ACTIVATIONS[c.hidden_act]

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        layer: int,
        batch: Batch | None,
        cache: Cache | None,
    ) -> Tensor:
        b, n, width = x.shape
        normed = F.rms_norm(x, (width,), self.attention_norm, self.eps)
        qkv = self.qkv(normed).view(b, n, -1, self.head_dim)
        turned = rotate(qkv[:, :, : self.heads + self.kv_heads], cos, sin)
        q, k, v = turned[:, :, : self.heads], turned[:, :, self.heads :], qkv[:, :, self.heads + self.kv_heads :]
        if cache is not None and batch is not None:
            cache.write(2 * layer, batch.slots, k.flatten(0, 1))
            cache.write(2 * layer + 1, batch.slots, v.flatten(0, 1))
            k = cache.read(2 * layer, batch.rows, batch.span)
            v = cache.read(2 * layer + 1, batch.rows, batch.span)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=cache is None,
            enable_gqa=self.heads != self.kv_heads,
        )  # [B, heads, Q, head_dim]
        x = x + self.o(attended.transpose(1, 2).reshape(b, n, -1))
        gate, up = self.gate_up(F.rms_norm(x, (width,), self.mlp_norm, self.eps)).chunk(2, -1)
        out: Tensor = x + self.down(self.activation(gate) * up)
        return out


class Decoder(nn.Module):
    """A decoder-only transformer of the Llama shape; see `draftwood.models.base.CausalModel` for `forward`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embed.weight
        cos, sin = rotary_table(config)
        self.register_buffer("cos", cos.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("sin", sin.to(torch.get_default_dtype()), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    def new_cache(self, rows: int, capacity: int) -> Cache:
        tail = (self.config.num_key_value_heads, self.config.head_dim)
        return Cache([tail] * (2 * self.n_layers), self.dtype, self.device, rows, capacity)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        x = self.embed(batch.tokens) if batch.hidden is None else batch.hidden
        mask = None
        if batch.mask is not None:  # additive, once for all layers: a bool mask would be converted in every layer
            mask = torch.zeros(batch.mask.shape, dtype=x.dtype, device=x.device)
            mask = mask.masked_fill_(batch.mask.logical_not(), -torch.inf)[:, None]  # [B, 1, Q, span]
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        stop = self.n_layers if batch.stop is None else batch.stop
        for layer in range(batch.start, stop):
            x = self.layers[layer](x, cos, sin, mask, layer, batch, cache)
        if batch.stop is not None and batch.stop < self.n_layers:
            return x
        return self.logits(x.flatten(0, 1) if batch.wanted is None else x.flatten(0, 1)[batch.wanted])

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [n, D] -> logits [n, V], in float32 unless the model is float64."""
        out: Tensor = self.head(F.rms_norm(hidden, (hidden.shape[-1],), self.norm, self.config.rms_norm_eps))
        return out if out.dtype == torch.float64 else out.float()

    def train_forward(self, tokens: Tensor) -> Tensor:
        """Plain causal forward without a cache, differentiable: tokens [B, T] -> logits [B, T, V]."""
        x = self.embed(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, None, 0, None, None)
        out: Tensor = self.head(F.rms_norm(x, (x.shape[-1],), self.norm, self.config.rms_norm_eps))
        return out
