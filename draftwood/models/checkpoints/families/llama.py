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
from draftwood.models.decoder_config import DecoderConfig, QueryGrowth
from draftwood.util.safe_parsing import short_repr

MINISTRAL_3_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}


def llama(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 32000, 4096, 11008, 32, 32, None, None)
    mlp_bias = keys.flag(raw, "mlp_bias", False)
    return DecoderConfig(**llama_like(raw, shape, 2048), **attention_bias(raw), mlp_bias=mlp_bias)


def mistral(raw: Raw) -> DecoderConfig:
    if raw.get("layer_types") is not None:  # Ministral 8B, as transformers reads it
        return ministral(raw)
    shape = shape_of(raw, 32000, 4096, 14336, 32, 32, 8, None)
    return DecoderConfig(**llama_like(raw, shape, 4096 * 32), window=sliding_window(raw, 4096))


def ministral(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 32000, 4096, 14336, 32, 32, 8, None)
    window = sliding_window(raw, 4096)
    windows = layer_windows(raw, shape["num_hidden_layers"], window, lambda layer: window > 0)
    return DecoderConfig(**llama_like(raw, shape, 4096 * 32), **in_windows(windows))


def ministral3(raw: Raw) -> DecoderConfig:
    """Behind the original context queries grow with their position."""
    no_windows(raw)
    shape = shape_of(raw, 131072, 4096, 14336, 34, 32, 8, 128)
    if not keys.rope_object(raw):
        raw = {**raw, "rope_parameters": MINISTRAL_3_ROPE}
    known = llama_like(raw, shape, 262144, 1e-5)
    growth = query_growth(keys.rope_object(raw), known["max_position_embeddings"])
    return DecoderConfig(**known, window=sliding_window(raw, None), query_growth=growth)


def query_growth(rope: Raw, context: int) -> QueryGrowth | None:
    """How queries grow with their position, where rotary settings say so."""
    if not rope.get("llama_4_scaling_beta"):
        return None
    beta = keys.positive_number(rope, "llama_4_scaling_beta", None)
    return QueryGrowth(beta, keys.positive_int(rope, "original_max_position_embeddings", context))


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


def qwen2_vl(raw: Raw) -> DecoderConfig:
    """The text part of Qwen 2 and 2.5 VL."""
    raw = {"max_window_layers": 80, "rope_theta": 1_000_000.0, **raw}
    shape = shape_of(raw, 152064, 8192, 29568, 80, 64, 8, None)
    windows = qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**llama_like(raw, shape, 32768, 1e-5), qkv_bias=True, **windows)


def qwen3_vl(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    raw = {"rope_theta": 500_000.0, **raw}
    shape = shape_of(raw, 151936, 4096, 22016, 32, 32, 32, 128)
    return DecoderConfig(**llama_like(raw, shape, 128000), **attention_bias(raw), qk_norm="one")


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
