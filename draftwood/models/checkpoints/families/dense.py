"""Families of Llama's build with knobs of their own: norms in other places, layers without rotation, multipliers."""

from __future__ import annotations

from typing import Any

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    layer_windows,
    llama_like,
    no_windows,
    renamed,
    shape_of,
    shared_shape,
    sliding_window,
    usual_rope,
)
from draftwood.models.checkpoints.tensor_names import HEAD_NORMS, LLAMA, PHI_3, Names
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.util.safe_parsing import short_repr

_LAYER = "model.layers.{i}"
OLMO: Names = {**LLAMA, **dict.fromkeys(("norm", "layers.{i}.mixer.norm", "layers.{i}.feed.norm"), ())}  # all ones
OLMO_2: Names = {
    **LLAMA,
    **HEAD_NORMS,
    "layers.{i}.mixer.post_norm": (f"{_LAYER}.post_attention_layernorm.weight",),
    "layers.{i}.feed.post_norm": (f"{_LAYER}.post_feedforward_layernorm.weight",),
}
ARCEE: Names = {
    **LLAMA,
    **{f"layers.{{i}}.feed.up.{x}": (f"{_LAYER}.mlp.up_proj.{x}",) for x in ("weight", "bias")},
}
HUNYUAN: Names = {
    **LLAMA,
    "layers.{i}.mixer.q_norm": (f"{_LAYER}.self_attn.query_layernorm.weight",),
    "layers.{i}.mixer.k_norm": (f"{_LAYER}.self_attn.key_layernorm.weight",),
}
APERTUS: Names = {
    **ARCEE,
    **HEAD_NORMS,
    "layers.{i}.mixer.norm": (f"{_LAYER}.attention_layernorm.weight",),
    "layers.{i}.feed.norm": (f"{_LAYER}.feedforward_layernorm.weight",),
    **{
        f"layers.{{i}}.feed.activation.{x}": (f"{_LAYER}.mlp.act_fn.{x}",)
        for x in ("alpha_p", "alpha_n", "beta", "eps")
    },
}
BITNET: Names = {
    **LLAMA,
    "layers.{i}.mixer.inner_norm": (f"{_LAYER}.self_attn.attn_sub_norm.weight",),
    "layers.{i}.feed.inner_norm": (f"{_LAYER}.mlp.ffn_sub_norm.weight",),
}
GLM: Names = {**LLAMA, "layers.{i}.feed.gate_up.weight": PHI_3["layers.{i}.feed.gate_up.weight"]}
GLM_4: Names = {
    **GLM,
    "layers.{i}.mixer.post_norm": (f"{_LAYER}.post_self_attn_layernorm.weight",),
    "layers.{i}.feed.norm": (f"{_LAYER}.post_attention_layernorm.weight",),
    "layers.{i}.feed.post_norm": (f"{_LAYER}.post_mlp_layernorm.weight",),
}


def rotating_layers(raw: Raw, layers: int) -> list[int]:
    """1 for each layer that rotates queries and keys, 0 for others: by default for every fourth."""
    every = keys.positive_int(raw, "no_rope_layer_interval", 4)
    rotates: Any = raw.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(rotates, list) or len(rotates) < layers or any(each not in (0, 1) for each in rotates):
        raise ModelError(f"no_rope_layers is {short_repr(rotates)}, but must have 0 or 1 for each of {layers} layers")
    return rotates[:layers]


def smollm3(raw: Raw) -> DecoderConfig:
    """Every fourth layer does not rotate."""
    shape = shape_of(raw, 128256, 2048, 11008, 36, 16, 4, None)
    layers = shape["num_hidden_layers"]
    rotates = rotating_layers(raw, layers)
    window = sliding_window(raw, None) if keys.flag(raw, "use_sliding_window", False) else 0
    windows = layer_windows(raw, layers, window, lambda layer: window > 0 and not rotates[layer])
    return DecoderConfig(
        **llama_like(usual_rope(raw, 2e6), shape, 32768, tied=True),
        **attention_bias(raw),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
        layers=per_layer(window=windows, rotary_dim=[None if each else 0 for each in rotates]),
    )


def olmo(raw: Raw) -> DecoderConfig:
    """Norms have no parameters."""
    no_windows(raw)
    shape = shape_of(raw, 50304, 4096, 11008, 32, 32, None, None)
    clip = raw.get("clip_qkv")
    return DecoderConfig(
        **llama_like({**raw, "rms_norm_eps": 1e-5}, shape, 2048),
        **attention_bias(raw),
        norm="layer_plain",
        qkv_clip=None if clip is None else keys.positive_number(raw, "clip_qkv", None),
    )


def olmo2(raw: Raw) -> DecoderConfig:
    """Norms of what attention and MLP give, none before them, and norms of queries and keys over all heads."""
    no_windows(raw)
    return DecoderConfig(**_olmo2_like(raw, raw))


def _olmo2_like(raw: Raw, rotary: Raw) -> Raw:
    shape = shape_of(raw, 50304, 4096, 11008, 32, 32, None, None)
    return {
        **llama_like(rotary, shape, 2048, 1e-5),
        **attention_bias(raw),
        "pre_norm": False,
        "post_norm": True,
        "qk_norm": "whole",
    }


def olmo3(raw: Raw) -> DecoderConfig:
    """OLMo 2 with windows in three of four layers, whose rotary positions are not scaled."""
    rope = raw.get("rope_parameters") or {}
    if not isinstance(rope, dict) or not rope.keys() <= {"full_attention", "sliding_attention"}:
        raise ModelError("rope_parameters must hold full_attention and sliding_attention, each with its own settings")
    full = {**(rope.get("full_attention") or {}), **(raw.get("rope_scaling") or {})}
    base = {"rope_theta": 500000.0 if raw.get("rope_theta") is None else raw["rope_theta"]}
    kinds = [
        {**raw, "rope_scaling": None, "rope_parameters": {**base, **part}}
        for part in (full, rope.get("sliding_attention") or {})
    ]
    knobs, local = (_olmo2_like(raw, kind) for kind in kinds)
    layers = knobs["num_hidden_layers"]
    windows = layer_windows(raw, layers, sliding_window(raw, 4096), lambda layer: (layer + 1) % 4 != 0)
    return DecoderConfig(
        **knobs,
        layers=per_layer(
            window=windows,
            rope_theta=[(local if window else knobs)["rope_theta"] for window in windows],
            rope_scaling=[(local if window else knobs)["rope_scaling"] for window in windows],
        ),
    )


def granite_multipliers(raw: Raw) -> Raw:
    """The multipliers of embeddings, attention scores, residual sums and logits that Granite was trained with."""
    return {
        "embedding_scale": keys.positive_number(raw, "embedding_multiplier", 1.0),
        "attention_scale": keys.positive_number(raw, "attention_multiplier", 1.0),
        "residual_multiplier": keys.positive_number(raw, "residual_multiplier", 1.0),
        "logit_scale": 1 / keys.positive_number(raw, "logits_scaling", 1.0),
    }


def granite(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 32000, 4096, 11008, 32, 32, None, None)
    return DecoderConfig(
        **llama_like(raw, shape, 2048),
        **attention_bias(raw),
        **granite_multipliers(raw),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
    )


def seed_oss(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 155136, 4096, 27648, 64, 80, 8, 128)
    return DecoderConfig(
        **llama_like(raw, shape, 524288),
        qkv_bias=keys.flag(raw, "attention_bias", True),
        o_bias=keys.flag(raw, "attention_out_bias", False),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
    )


def arcee(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 32000, 2560, 18432, 32, 32, None, None)
    return DecoderConfig(
        **llama_like(raw, shape, 4096, 1e-5, "relu2"),
        **attention_bias(raw),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
        gated=False,
    )


def hunyuan(raw: Raw) -> DecoderConfig:
    """Queries and keys are normalised behind their rotation."""
    no_windows(raw)
    shape = shape_of(raw, 290943, 4096, 11008, 32, 32, None, None)
    rope = keys.rope_object(raw)
    if rope.get("alpha"):  # as 'dynamic' with a base that alpha has raised for good
        keys.only({"rope_type": keys.rope_type(rope)}, "rope_type", "dynamic")
        base = keys.positive_number(rope, "rope_theta", keys.positive_number(raw, "rope_theta", 10000.0))
        if (dim := shape["head_dim"]) < 4:
            raise ModelError(f"rope_parameters with alpha need heads at least 4 wide, not {dim}; correct head_dim")
        base *= keys.positive_number(rope, "alpha", None) ** (dim / (dim - 2))
        raw = {**raw, "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": base}}
    return DecoderConfig(**llama_like(raw, shape, 2048, 1e-5), **attention_bias(raw), qk_norm="one", late_qk_norm=True)


def exaone4(raw: Raw) -> DecoderConfig:
    """Norms behind attention and MLP; in models with windows the layers without one do not rotate."""
    shape = shape_of(raw, 102400, 4096, 16384, 32, 32, 32, None)
    layers, window = shape["num_hidden_layers"], sliding_window(raw, 4096)
    key = "sliding_window_pattern"  # letters beside layer_types, which transformers does not read then
    pattern = keys.positive_int(raw, key, 4) if raw.get(key) and raw.get("layer_types") is None else 4
    windows = layer_windows(raw, layers, window, lambda layer: window > 0 and (layer + 1) % pattern != 0)
    return DecoderConfig(
        **llama_like(raw, shape, 2048, 1e-5),
        pre_norm=False,
        post_norm=True,
        qk_norm="one",
        layers=per_layer(window=windows, rotary_dim=[None if each or not window else 0 for each in windows]),
    )


def ernie4_5(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 103424, 1024, 3072, 18, 16, 2, 128)
    bias = keys.flag(raw, "use_bias", False)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 500000.0), shape, 131072, 1e-5, tied=True),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


def helium(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 48000, 2560, 7040, 24, 20, 20, 128)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 100000.0), shape, 4096, 1e-8),
        qkv_bias=keys.flag(raw, "attention_bias", False),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
    )


def glm(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 151552, 4096, 13696, 40, 32, 2, 128)
    return DecoderConfig(
        **llama_like(usual_rope(raw, part=0.5), shape, 131072, 1.5625e-7, partial=True),
        qkv_bias=keys.flag(raw, "attention_bias", True),
    )


def glm4(raw: Raw) -> DecoderConfig:
    return DecoderConfig(**{**vars(glm(raw)), "post_norm": True})


def internlm3(raw: Raw) -> DecoderConfig:
    """Llama with biases, or without, in attention and MLP alike."""
    no_windows(raw)
    raw = renamed(raw, qkv_bias="attention_bias", bias="mlp_bias")
    bias = keys.flag(raw, "attention_bias", False)
    keys.only(raw, "mlp_bias", bias)
    shape = shape_of(raw, 128512, 4096, 10240, 48, 32, 2, 128)
    return DecoderConfig(**llama_like(raw, shape, 32768, 1e-5), **attention_bias(raw), mlp_bias=bias)


def apertus(raw: Raw) -> DecoderConfig:
    """Norms of queries and keys, and an activation that is learned."""
    no_windows(raw)
    keys.only(raw, "hidden_act", "xielu")
    shape = shape_of(raw, 131072, 4096, 14336, 32, 32, None, None)
    if not keys.rope_object(raw):
        usual = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        raw = {**raw, "rope_parameters": {**usual, "original_max_position_embeddings": 8192}}
    known = llama_like(usual_rope({**raw, "hidden_act": None}, 12e6), shape, 65536, 1e-5)
    return DecoderConfig(**{**known, "hidden_act": "xielu"}, **attention_bias(raw), gated=False, qk_norm="one")


def bitnet(raw: Raw) -> DecoderConfig:
    """BitNet b1.58 with plain weights: norms before the last products of attention and MLP."""
    no_windows(raw)
    if raw.get("quantization_config"):
        raise ModelError(
            "quantization_config asks for ternary weights, and activations of 8 bits, which this decoder has not; give "
            "the checkpoint as hf: to transformers"
        )
    shape = shared_shape(raw, 128256, 2560, 6912, 30, 20, 5)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 500000.0), shape, 2048, 1e-5, "relu2"), **attention_bias(raw), inner_norm=True
    )
