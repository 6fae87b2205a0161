"""Attention over cache slots."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore, Scores
from draftwood.models.functions import rms_norm, sigmoid
from draftwood.models.layers.part import Part, norm_parameters
from draftwood.models.modules import Linear
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.rotary import rotate, rotate_leading


class Attention(Part):
    """Multi-head attention, with fewer heads of keys and values where the family has it."""

    mixes = True

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        c = config
        self.heads, self.head_dim = c.num_attention_heads, c.head_dim
        self.kv_heads = c.num_key_value_heads
        self.own_kv = self.kv_heads if c.kv_layer is None else 0  # heads whose keys and values it makes itself
        self._make_inputs()
        self.inner_norm = self._inner_norm(self.heads * c.value_dim)
        self.o = Linear(self.heads * c.value_dim, c.hidden_size, c.o_bias)
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if c.sinks else None
        self.rotate = rotate if c.rotary_dim is None else rotate_leading

    def _make_inputs(self) -> None:
        """Make the modules that queries, keys and values come from."""
        c = self.config
        queries = self.heads * (2 if c.output_gate else 1)
        self.qkv = Linear(c.hidden_size, (queries + 2 * self.own_kv) * self.head_dim, c.qkv_bias)
        if c.qk_norm:
            self.q_norm, self.q_norm_bias = self._head_norm(self.heads)
            self.k_norm, self.k_norm_bias = self._head_norm(self.own_kv)

    def _head_norm(self, heads: int) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        width = self.head_dim if self.config.qk_norm == "one" else heads * self.head_dim
        return norm_parameters(self.config, width) if heads else (None, None)

    @property
    def first(self) -> nn.Module:
        """The first product."""
        return self.qkv

    @property
    def scores(self) -> Scores:
        """How queries and keys make scores."""
        return Scores(self.config.attention_scale, self.config.attention_softcap, self.sinks)

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        q, k, v, gate = self._split(x, meta)
        if meta.query_factors is not None:
            q = q * meta.query_factors
        if store is None:
            assert k is not None and v is not None
            out: Tensor = meta.attend(q, k.transpose(1, 2), v.transpose(1, 2), meta.bias, self.scores)
        else:
            out = store.attend(q, k, v, meta, self.scores)
        made: Tensor = self.o(self._normalised_inner(out if gate is None else out * sigmoid(gate)))
        return made

    def keys_and_values(self, x: Tensor, meta: AttentionMetadata) -> tuple[Tensor | None, Tensor | None]:
        """Keys and values [B, N, kv_heads, D] of the input [B, N, W] of the first product; nothing else of it."""
        return self._split(x, meta)[1:3]

    def _split(self, x: Tensor, meta: AttentionMetadata) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Queries, keys and values [B, N, heads, D], normalised and turned, and the gate [B, N, heads * D]."""
        c, dim, gate, made = self.config, self.head_dim, None, self.qkv(x)
        if c.qkv_clip is not None:
            made = made.clamp(-c.qkv_clip, c.qkv_clip)
        if c.output_gate:
            both, rest = made.view(*made.shape[:2], -1, dim).tensor_split([2 * self.heads], 2)
            made, gate = torch.cat((both[:, :, ::2], rest), 2), both[:, :, 1::2].flatten(2)
        else:
            made = made.view(*made.shape[:2], -1, dim)
        turned, v = made[:, :, : self.heads + self.own_kv], made[:, :, self.heads + self.own_kv :]
        if c.qk_norm and not c.late_qk_norm:
            turned = self._normalise_heads(turned)
        if meta.cos is not None and meta.sin is not None:
            turned = self.rotate(turned, meta.cos, meta.sin)
        if c.qk_norm and c.late_qk_norm:
            turned = self._normalise_heads(turned)
        if not self.own_kv:
            return turned, None, None, gate
        if c.value_norm:
            v = rms_norm(v, None, None, self.eps)
        return turned[:, :, : self.heads], turned[:, :, self.heads :], v, gate

    def _normalise_heads(self, qk: Tensor) -> Tensor:
        """Norms over the components of queries and keys [B, Q, heads + kv_heads, head_dim]."""
        q = self._normalised(qk[:, :, : self.heads], self.q_norm, self.q_norm_bias)
        if not self.own_kv:
            return q
        return torch.cat((q, self._normalised(qk[:, :, self.heads :], self.k_norm, self.k_norm_bias)), 2)

    def _normalised(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        if self.config.qk_norm == "one":
            return self.normalise(x, weight, bias, self.eps)
        if self.config.qk_norm == "whole":
            return self.normalise(x.flatten(2), weight, bias, self.eps).view(x.shape)
        heads, dim = x.shape[2:]
        weights, biases = weight.view(heads, dim), [None] * heads if bias is None else bias.view(heads, dim)
        return torch.stack([self.normalise(x[:, :, h], weights[h], biases[h], self.eps) for h in range(heads)], 2)
