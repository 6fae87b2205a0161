"""One transformer layer: attention over cache slots, then an MLP.

Knobs that are off cost no operation: what a layer does is chosen when it is built.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import ACTIVATIONS, NORMS, activate
from draftwood.models.modules import Linear
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.rotary import rotate, rotate_leading


def norm_parameters(config: DecoderConfig, width: int) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Weight and bias of a norm over `width` components that multiplies by 1; the bias is None where it has none."""
    weight = torch.zeros(width) if config.norm == "rms_offset" else torch.ones(width)
    return nn.Parameter(weight), nn.Parameter(torch.zeros(width)) if config.norm == "layer" else None


class Block(nn.Module):
    """One transformer layer: attention over cache slots, then an MLP, with a norm before each.

    With `parallel` it is the part of a layer that one of several processes computes: `config` has the number of its
    heads and hidden units.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
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
        self.attention_norm, self.attention_norm_bias = norm_parameters(c, c.hidden_size)
        self.qkv = Linear(c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim, c.qkv_bias)
        self.o = Linear(c.num_attention_heads * c.head_dim, c.hidden_size, c.o_bias)
        self.mlp_norm, self.mlp_norm_bias = norm_parameters(c, c.hidden_size)
        if c.gated:
            self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        else:
            self.up = Linear(c.hidden_size, c.intermediate_size, c.mlp_bias)
        self.down = Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
        self.activation = ACTIVATIONS[c.hidden_act]
        self.gated, self.sandwich, self.qk_norm = c.gated, c.sandwich, c.qk_norm
        if c.sandwich:
            self.post_attention_norm, self.post_attention_norm_bias = norm_parameters(c, c.hidden_size)
            self.post_mlp_norm, self.post_mlp_norm_bias = norm_parameters(c, c.hidden_size)
        if c.qk_norm:
            self.q_norm, self.q_norm_bias = norm_parameters(c, c.head_dim)
            self.k_norm, self.k_norm_bias = norm_parameters(c, c.head_dim)
        self.rotate = rotate if c.rotary_dim is None else rotate_leading
        self.scale, self.softcap = c.attention_scale, c.attention_softcap

    @property
    def parts(self) -> list[tuple[Block, bool]]:
        """The sublayers in order: (block, True for its attention and False for its MLP)."""
        return [(self, True), (self, False)]

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """x [B, N, D] -> [B, N, D]. B is 1 with a `store` of keys and values; else rows of x see one another."""
        return self.feed(self.attend(x, meta, store))

    def attend(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """The first half of the layer: x + attention."""
        b, n, _ = x.shape
        qkv = self.qkv(self.enter(x, meta)).view(b, n, -1, self.head_dim)
        turned, v = qkv[:, :, : self.heads + self.kv_heads], qkv[:, :, self.heads + self.kv_heads :]
        if self.qk_norm:
            turned = self._normalise_heads(turned)
        if meta.cos is not None and meta.sin is not None:
            turned = self.rotate(turned, meta.cos, meta.sin)
        q, k = turned[:, :, : self.heads], turned[:, :, self.heads :]
        if store is None:
            out: Tensor = meta.attend(q, k.transpose(1, 2), v.transpose(1, 2), meta.bias, self.scale, self.softcap)
        else:
            out = store.attend(q, k, v, meta, self.scale, self.softcap)
        out = self.parallel.sum(self.o(out))
        if self.sandwich:
            out = self.normalise(out, self.post_attention_norm, self.post_attention_norm_bias, self.eps)
        return x + out

    def enter(self, x: Tensor, meta: AttentionMetadata) -> Tensor:
        """The input [B, N, W] of the product that makes queries, keys and values: the normalised rows."""
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
    """Some sublayers of other layers, in order, that take the place of one layer; without any, rows pass unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[Block, bool]] = []  # as `Block.parts`; not registered, because another model owns them

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """The same as `Block.forward`, of these sublayers."""
        for block, attention in self.parts:
            x = block.attend(x, meta, store) if attention else block.feed(x)
        return x
