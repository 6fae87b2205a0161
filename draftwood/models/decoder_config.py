"""The shape and the knobs of a decoder: all that tells one family of models from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor

from draftwood.models.alibi import Alibi
from draftwood.models.altup_config import AltUpConfig
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.latent_config import LatentConfig
from draftwood.models.recurrent_config import RecurrentConfig
from draftwood.models.rotary import UNSCALED, RopeScaling


@dataclass(frozen=True)
class QueryGrowth:
    """Queries are multiplied by 1 + beta * log(1 + floor((position + start) / length)) (Llama 4)."""

    beta: float
    length: int
    start: int = 0

    def factors(self, positions: Tensor) -> Tensor:
        """Factors of queries at positions [...], float32."""
        return 1 + self.beta * ((positions + self.start) // self.length).float().log1p()


Differences: TypeAlias = tuple[tuple[str, Any], ...]  # (knob, value) of one layer


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and knobs of a decoder; field names follow Hugging Face's config.json where one exists.

    Knobs are those of all layers, but for the `layers` that differ; `layer` has those of one layer.
    """

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
    head_bias: bool = False
    norm: str = "rms"  # of functions.NORMS
    pre_norm: bool = True  # norms before mixer and feed-forward
    post_norm: bool = False  # norms behind them, before the sums
    joined: bool = False  # mixer and feed-forward read the same rows (a parallel residual)
    scalar: bool = False  # the rows behind each layer are multiplied by a number of the layer
    hidden_size_per_layer_input: int = 0  # width of what each layer gets of a token beside the rows; 0: nothing
    vocab_size_per_layer_input: int | None = None  # tokens from here on get what token 0 gets; None: all have their own
    altup: AltUpConfig | None = None  # rows are several vectors
    residual_multiplier: float = 1.0  # of what mixer and feed-forward add
    qk_norm: str | None = None  # of queries and keys: one weight for all heads, each their own, the whole of them
    late_qk_norm: bool = False  # it comes after the rotation
    value_norm: bool = False  # values are divided by their root mean square
    qkv_clip: float | None = None  # largest size of components of queries, keys and values
    alibi: Alibi | None = None  # scores have a bias that falls with the distance
    query_growth: QueryGrowth | None = None
    latent: LatentConfig | None = None  # keys and values come from a small vector
    inner_norm: bool = False  # of what the second product of mixer and feed-forward reads
    sinks: bool = False  # each head has a score more, of nothing, in its softmax
    output_gate: bool = False  # what a head gets is multiplied by the sigmoid of a gate, which follows its query
    kv_layer: int | None = None  # the layer whose keys and values are read; None: its own
    feed_multiplier: float = 1.0  # of what the feed-forward adds, beside that
    gate_multiplier: float = 1.0  # of gates before their activation
    gate_cutoff: float | None = None  # gates less so many standard deviations above their mean, at least 0, are taken
    gated: bool = True  # MLP with a gate; else up, activation, down
    position_offset: int | None = None  # learned positions, number p in row p + offset; None: rotary positions
    rotary_dim: int | None = None  # leading components of each head that are rotated, 0 none; None: all
    window: int = 0  # positions that a row sees, its own included; 0: all
    chunked: bool = False  # positions are in chunks as wide as the window, and a row sees those of its own chunk
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    experts: ExpertsConfig | None = None  # a mixture in place of the feed-forward
    recurrent: RecurrentConfig | None = None  # a mixer that reads the past through a state
    attends: bool = True  # with attention, beside such a mixer if there is one
    feeds: bool = True  # with a feed-forward
    layers: tuple[Differences, ...] = ()  # of each layer; empty: all are alike

    def layer(self, number: int) -> DecoderConfig:
        """The knobs of one layer."""
        return replace(self, layers=(), **dict(self.layers[number])) if self.layers else self

    @cached_property
    def has_latent_experts(self) -> bool:
        """True if experts read and make less than rows, which no native library knows."""
        each = [self.layer(number) for number in range(self.num_hidden_layers)] if self.layers else [self]
        return any(c.experts is not None and c.experts.latent_size for c in each)

    @property
    def rotated(self) -> int:
        """How many components of each head are rotated."""
        if self.position_offset is not None:
            return 0
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def value_dim(self) -> int:
        """Components of a head's values."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def query_scale(self) -> float:
        """The factor of attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


def per_layer(**knobs: Sequence[Any]) -> tuple[Differences, ...]:
    """`DecoderConfig.layers` of knobs that have a value for each layer."""
    return tuple(tuple(zip(knobs, values, strict=True)) for values in zip(*knobs.values(), strict=True))
