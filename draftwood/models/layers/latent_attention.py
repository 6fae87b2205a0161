"""Attention whose keys and values come from a small vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.flat import AttentionMetadata
from draftwood.models.functions import rms_norm
from draftwood.models.layers.attention import Attention
from draftwood.models.modules import Linear
from draftwood.models.rotary import rotate, rotate_leading


class LatentAttention(Attention):
    """Multi-head latent attention; each head's rotated components come first. What is kept are keys and values."""

    def _make_inputs(self) -> None:
        c, latent = self.config, self.config.latent
        assert latent is not None
        self.latent, queries = latent, self.heads * self.head_dim
        own = latent.kv_rank + c.rotated  # the latent of keys and values, and what all keys begin with
        self.into = Linear(c.hidden_size, (latent.q_rank or queries) + own, c.qkv_bias)
        self.q_up = Linear(latent.q_rank, queries, bias=False) if latent.q_rank else None
        self.kv_up = Linear(latent.kv_rank, self.heads * (self.head_dim - c.rotated + latent.value_dim), bias=False)
        self.q_norm = nn.Parameter(torch.ones(latent.q_rank)) if latent.q_rank else None
        self.kv_norm = nn.Parameter(torch.ones(latent.kv_rank))

    @property
    def first(self) -> nn.Module:
        return self.into

    def _split(self, x: Tensor, meta: AttentionMetadata) -> tuple[Tensor, Tensor, Tensor, None]:
        """Queries and keys [B, N, heads, D], turned, and values [B, N, heads, value_dim]; no gate."""
        latent, turned = self.latent, self.config.rotated
        q, kv, shared = self.into(x).split(
            [self.into.out_features - latent.kv_rank - turned, latent.kv_rank, turned], -1
        )
        if self.q_up is not None:
            q = self.q_up(rms_norm(q, self.q_norm, None, latent.eps))
        q, shared = q.unflatten(-1, (self.heads, -1)), shared[:, :, None]
        if meta.cos is not None and meta.sin is not None:
            q, shared = rotate_leading(q, meta.cos, meta.sin), rotate(shared, meta.cos, meta.sin)
        made = self.kv_up(rms_norm(kv, self.kv_norm, None, latent.eps))
        own, v = made.split([self.heads * (self.head_dim - turned), self.heads * latent.value_dim], -1)
        own, v = own.unflatten(-1, (self.heads, -1)), v.unflatten(-1, (self.heads, -1))
        return q, torch.cat((shared.expand(-1, -1, self.heads, -1), own), -1), v, None
