"""Model families: how each one's config.json becomes a DecoderConfig and what its tensors are called.

A family is a table entry. Knows the keys, the defaults and the names; refuses to know files and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftwood.errors import ModelError, did_you_mean
from draftwood.models.decoder import ACTIVATIONS, DecoderConfig, RopeScaling


@dataclass(frozen=True)
class Family:
    """One model family: how its config.json becomes a DecoderConfig and which tensors make up each parameter.

    `names` maps a parameter to the checkpoint's tensors, concatenated along dimension 0; {i} is the layer.
    """

    config: Callable[[dict[str, Any]], DecoderConfig]
    names: dict[str, tuple[str, ...]]


LLAMA_NAMES: dict[str, tuple[str, ...]] = {
    "embed.weight": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.attention_norm": ("model.layers.{i}.input_layernorm.weight",),
    "layers.{i}.mlp_norm": ("model.layers.{i}.post_attention_layernorm.weight",),
    "layers.{i}.qkv.weight": tuple(f"model.layers.{{i}}.self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.qkv.bias": tuple(f"model.layers.{{i}}.self_attn.{x}_proj.bias" for x in "qkv"),
    "layers.{i}.o.weight": ("model.layers.{i}.self_attn.o_proj.weight",),
    "layers.{i}.o.bias": ("model.layers.{i}.self_attn.o_proj.bias",),
    "layers.{i}.gate_up.weight": tuple(f"model.layers.{{i}}.mlp.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.gate_up.bias": tuple(f"model.layers.{{i}}.mlp.{x}_proj.bias" for x in ("gate", "up")),
    "layers.{i}.down.weight": ("model.layers.{i}.mlp.down_proj.weight",),
    "layers.{i}.down.bias": ("model.layers.{i}.mlp.down_proj.bias",),
}


def _whole(raw: dict[str, Any], key: str, default: int) -> int:
    """A positive whole number of config.json; absent or null means the family's default."""
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{key} is {value!r}, but must be a positive whole number")
    return value


def _number(raw: dict[str, Any], key: str, default: float | None) -> float:
    """A positive number of config.json; with no default it must be there."""
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"{key} is {'missing' if value is None else repr(value)}, but must be a positive number")
    return float(value)


def _flag(raw: dict[str, Any], key: str, default: bool) -> bool:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, bool):
        raise ModelError(f"{key} is {value!r}, but must be true or false")
    return value


def _rope(raw: dict[str, Any], context: int) -> tuple[float, RopeScaling]:
    """Base and scaling, in the spelling of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"rope_parameters is {rope!r}, but must be an object")
    theta = _number(rope, "rope_theta", _number(raw, "rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rotary scaling {kind!r} is not supported; supported are default, linear and llama3")
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1):
        raise ModelError("partial_rotary_factor is not supported for this family")
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling(kind, _number(rope, "factor", None))
    return theta, RopeScaling(
        kind,
        _number(rope, "factor", None),
        _number(rope, "low_freq_factor", None),
        _number(rope, "high_freq_factor", None),
        _whole(rope, "original_max_position_embeddings", context),
    )


def _llama_config(raw: dict[str, Any]) -> DecoderConfig:
    """LlamaConfig; absent keys have the values of its class."""
    heads = _whole(raw, "num_attention_heads", 32)
    kv_heads = _whole(raw, "num_key_value_heads", heads)
    hidden = _whole(raw, "hidden_size", 4096)
    head_dim = _whole(raw, "head_dim", max(1, hidden // heads))
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{heads} attention heads, {kv_heads} key/value heads and head_dim {head_dim} do not fit together; "
            "the first must be a multiple of the second, and the third even"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"activation {activation!r} is not supported" + did_you_mean(str(activation), ACTIVATIONS))
    context = _whole(raw, "max_position_embeddings", 2048)
    theta, scaling = _rope(raw, context)
    bias = _flag(raw, "attention_bias", False)
    return DecoderConfig(
        vocab_size=_whole(raw, "vocab_size", 32000),
        hidden_size=hidden,
        intermediate_size=_whole(raw, "intermediate_size", 11008),
        num_hidden_layers=_whole(raw, "num_hidden_layers", 32),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_act=activation,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=_flag(raw, "mlp_bias", False),
        tie_word_embeddings=_flag(raw, "tie_word_embeddings", False),
    )


FAMILIES: dict[str, Family] = {"llama": Family(_llama_config, LLAMA_NAMES)}
