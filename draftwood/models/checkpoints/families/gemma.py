"""Gemma 1 to 3."""

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
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.rotary import UNSCALED
from draftwood.util.safe_parsing import short_repr


def gemma(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 256000, 3072, 24576, 28, 16, 16, 256)
    keys.only(raw, "use_bidirectional_attention", False)
    tanh = "gelu_pytorch_tanh"
    # the first releases say gelu and mean its tanh approximation
    act = {"hidden_act": tanh} if raw.get("hidden_act") == "gelu" else {}
    return DecoderConfig(
        **llama_like({**raw, **act}, shape, 8192, activation=tanh, tied=True),
        **attention_bias(raw),
        norm="rms_offset",
        embedding_scale=shape["hidden_size"] ** 0.5,
    )


def _gemma_late(raw: Raw, shape: Raw, context: int) -> Raw:
    """The settings that Gemma 2 and 3 have in common."""
    keys.only(raw, "use_bidirectional_attention", False)
    activation = keys.activation(raw, "hidden_activation", "gelu_pytorch_tanh")
    return {
        **llama_like({**raw, "hidden_act": activation}, shape, context, tied=True),
        **attention_bias(raw),
        "norm": "rms_offset",
        "post_norm": True,
        "embedding_scale": shape["hidden_size"] ** 0.5,
        "attention_scale": keys.positive_number(raw, "query_pre_attn_scalar", 256) ** -0.5,
    }


def _cap(raw: Raw, key: str, default: float | None) -> float | None:
    """A softcap: null, unlike an absent key, switches it off."""
    return keys.positive_number(raw, key, None) if raw.get(key) is not None else None if key in raw else default


def gemma2(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 256000, 2304, 9216, 26, 8, 4, 256)
    layers = shape["num_hidden_layers"]
    return DecoderConfig(
        **_gemma_late(raw, shape, 8192),
        **in_windows(layer_windows(raw, layers, sliding_window(raw, 4096), lambda layer: layer % 2 == 0)),
        attention_softcap=_cap(raw, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(raw, "final_logit_softcapping", 30.0),
    )


def gemma3(raw: Raw) -> DecoderConfig:
    """Rotary settings lie in one object per layer type, or in the flat keys of transformers 4."""
    shape = shape_of(raw, 262208, 2304, 9216, 26, 8, 4, 256)
    keys.only(raw, "attn_logit_softcapping")  # transformers reads the key and does not use it
    pattern = keys.positive_int(raw, "sliding_window_pattern", 6)
    rope = keys.rope_object({"rope_parameters": raw.get("rope_parameters")})
    kinds: list[Raw] = []
    for kind, key, base in (
        ("full_attention", "rope_theta", 1_000_000.0),
        ("sliding_attention", "rope_local_base_freq", 10000.0),
    ):
        part = rope.get(kind) or {}
        if not isinstance(part, dict):
            raise ModelError(f"rope_parameters of {kind} is {short_repr(part)}, but must be an object")
        outer = keys.positive_number(raw, key, base)
        kinds.append({**part, "rope_theta": keys.positive_number(part, "rope_theta", outer)})
    if rope and not rope.keys() <= {"full_attention", "sliding_attention"}:
        raise ModelError("rope_parameters must hold full_attention and sliding_attention, each with its own settings")
    full, local = kinds
    both = {"rope_scaling": raw.get("rope_scaling"), "rope_theta": full["rope_theta"]}
    full = keys.rope_object({**both, "rope_parameters": full}) if rope else {**full, **keys.rope_object(both)}
    keys.only(local, "rope_type", "default")
    knobs = _gemma_late({**raw, "rope_scaling": None, "rope_parameters": full}, shape, 131072)
    windows = layer_windows(
        raw, shape["num_hidden_layers"], sliding_window(raw, 4096), lambda layer: (layer + 1) % pattern != 0
    )
    return DecoderConfig(
        **knobs,
        qk_norm="one",
        layers=per_layer(
            window=windows,
            rope_theta=[local["rope_theta"] if window else knobs["rope_theta"] for window in windows],
            rope_scaling=[UNSCALED if window else knobs["rope_scaling"] for window in windows],
        ),
        logit_softcap=_cap(raw, "final_logit_softcapping", None),
    )
