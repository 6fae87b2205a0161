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


def qwen_windows(raw: Raw, layers: int) -> Raw:
    window = sliding_window(raw, 4096) if keys.flag(raw, "use_sliding_window", False) else 0
    first = raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelError(f"max_window_layers is {short_repr(first)}, but must be a whole number")
    return in_windows(layer_windows(raw, layers, window, lambda layer: window > 0 and layer >= first))


def qwen2(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 4096, 22016, 32, 32, 32, None)
    windows = qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**llama_like(raw, shape, 32768), qkv_bias=True, **windows)


def qwen3(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 4096, 22016, 32, 32, 32, 128)
    windows = qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**llama_like(raw, shape, 32768), **attention_bias(raw), qk_norm="one", **windows)


def phi3(raw: Raw) -> DecoderConfig:
    """Phi-3 to 4; 'su' and 'yarn' are older names of LongRoPE."""
    shape = shape_of(raw, 32064, 3072, 8192, 32, 32, None, None)
    raw = {"original_max_position_embeddings": 4096, **raw}
    for name in ("rope_parameters", "rope_scaling"):
        rope = raw.get(name)
        if isinstance(rope, dict) and keys.rope_type(rope) in ("su", "yarn"):
            raw[name] = {**rope, "rope_type": "longrope"}
    keys.only({"rope_type": keys.rope_type(keys.rope_object(raw))}, "rope_type", "default", "longrope")
    return DecoderConfig(**llama_like(raw, shape, 4096, 1e-5, partial=True), window=sliding_window(raw, None))
