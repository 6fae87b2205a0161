"""The shape and the knobs of a decoder: all that tells one family of models from another."""

from __future__ import annotations

from dataclasses import dataclass

from draftwood.models.rotary import UNSCALED, RopeScaling


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
