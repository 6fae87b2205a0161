"""Llama and the families close to it."""

from __future__ import annotations

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    in_windows,
    layer_windows,
    llama_like,
    no_windows,
    shape_of,
    sliding_window,
)
from draftwood.models.decoder_config import DecoderConfig
from draftwood.util.safe_parsing import short_repr


def llama(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 32000, 4096, 11008, 32, 32, None, None)
    mlp_bias = keys.flag(raw, "mlp_bias", False)
    return DecoderConfig(**llama_like(raw, shape, 2048), **attention_bias(raw), mlp_bias=mlp_bias)


def mistral(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 32000, 4096, 14336, 32, 32, 8, None)
    keys.only(raw, "layer_types")  # transformers ignores the key here and asks for another class
    return DecoderConfig(**llama_like(raw, shape, 4096 * 32), window=sliding_window(raw, 4096))


def _qwen_windows(raw: Raw, layers: int) -> Raw:
    window = sliding_window(raw, 4096) if keys.flag(raw, "use_sliding_window", False) else 0
    first = raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelError(f"max_window_layers is {short_repr(first)}, but must be a whole number")
    return in_windows(layer_windows(raw, layers, window, lambda layer: window > 0 and layer >= first))


def qwen2(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 4096, 22016, 32, 32, 32, None)
    windows = _qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**llama_like(raw, shape, 32768), qkv_bias=True, **windows)


def qwen3(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 4096, 22016, 32, 32, 32, 128)
    windows = _qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**llama_like(raw, shape, 32768), **attention_bias(raw), qk_norm="one", **windows)


def phi3(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 32064, 3072, 8192, 32, 32, None, None)
    rope = dict(keys.rope_object(raw))
    keys.only({"rope_type": keys.rope_type(rope)}, "rope_type", "default")
    outer = keys.positive_number(raw, "partial_rotary_factor", 1.0)
    factor = keys.positive_number(rope, "partial_rotary_factor", outer)
    rotated = int(shape["head_dim"] * factor)
    if factor > 1 or rotated < 2 or rotated % 2:
        raise ModelError(
            f"partial_rotary_factor {factor} rotates {rotated} of {shape['head_dim']} components of a head, "
            "but must rotate an even number of them"
        )
    unscaled = {key: value for key, value in raw.items() if key not in ("partial_rotary_factor", "rope_scaling")}
    unscaled["rope_parameters"] = {key: value for key, value in rope.items() if key != "partial_rotary_factor"}
    return DecoderConfig(
        **llama_like(unscaled, shape, 4096, 1e-5),
        rotary_dim=None if rotated == shape["head_dim"] else rotated,
        window=sliding_window(raw, None),
    )
