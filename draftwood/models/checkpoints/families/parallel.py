"""Families with layer norms, most of whose attention and MLP read the same rows: Cohere, Phi, GPT-NeoX and others."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.models.alibi import Alibi, geometric_slopes
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    layer_windows,
    llama_like,
    no_windows,
    shape_of,
    shared_shape,
    sliding_window,
    usual_rope,
)
from draftwood.models.checkpoints.tensor_names import LLAMA, Names, both
from draftwood.models.decoder_config import DecoderConfig, per_layer

_LAYER = "model.layers.{i}"


def norm_names(first: str, second: str, last: str) -> Names:
    """Weights and biases of a layer's norms and of the last one."""
    places = {"layers.{i}.mixer.norm": first, "layers.{i}.feed.norm": second, "norm": last}
    return {
        **{key: (f"{name}.weight",) for key, name in places.items()},
        **{f"{key}_bias": (f"{name}.bias",) for key, name in places.items()},
    }


def mlp_names(up: str, down: str) -> Names:
    """Weights and biases of an MLP without gates."""
    places = {"up": up, "down": down}
    return {f"layers.{{i}}.feed.{k}.{x}": (f"{name}.{x}",) for k, name in places.items() for x in ("weight", "bias")}


COHERE: Names = {**LLAMA, "layers.{i}.feed.norm": (f"{_LAYER}.input_layernorm.weight",)}  # one norm for both
PHI: Names = {
    **LLAMA,
    "head.bias": ("lm_head.bias",),
    **norm_names(f"{_LAYER}.input_layernorm", f"{_LAYER}.input_layernorm", "model.final_layernorm"),
    **{f"layers.{{i}}.mixer.o.{x}": (f"{_LAYER}.self_attn.dense.{x}",) for x in ("weight", "bias")},
    **mlp_names(f"{_LAYER}.mlp.fc1", f"{_LAYER}.mlp.fc2"),
}
USUAL_NORMS = norm_names(f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm", "model.norm")
STABLELM: Names = {**LLAMA, **USUAL_NORMS}
STARCODER_2: Names = {**STABLELM, **mlp_names(f"{_LAYER}.mlp.c_fc", f"{_LAYER}.mlp.c_proj")}
NEMOTRON: Names = {**STABLELM, **mlp_names(f"{_LAYER}.mlp.up_proj", f"{_LAYER}.mlp.down_proj")}
_NEOX = "gpt_neox.layers.{i}"
GPT_NEOX: Names = {
    "embed.weight": ("gpt_neox.embed_in.weight",),
    "head.weight": ("embed_out.weight",),
    **norm_names(f"{_NEOX}.input_layernorm", f"{_NEOX}.post_attention_layernorm", "gpt_neox.final_layer_norm"),
    **{f"layers.{{i}}.mixer.qkv.{x}": (f"{_NEOX}.attention.query_key_value.{x}",) for x in ("weight", "bias")},
    **{f"layers.{{i}}.mixer.o.{x}": (f"{_NEOX}.attention.dense.{x}",) for x in ("weight", "bias")},
    **mlp_names(f"{_NEOX}.mlp.dense_h_to_4h", f"{_NEOX}.mlp.dense_4h_to_h"),
}

PERSIMMON: Names = {
    **LLAMA,
    **norm_names(f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm", "model.final_layernorm"),
    **both("layers.{i}.mixer.qkv", f"{_LAYER}.self_attn.query_key_value"),
    **both("layers.{i}.mixer.o", f"{_LAYER}.self_attn.dense"),
    **mlp_names(f"{_LAYER}.mlp.dense_h_to_4h", f"{_LAYER}.mlp.dense_4h_to_h"),
    **{f"layers.{{i}}.mixer.{x}_norm": (f"{_LAYER}.self_attn.{x}_layernorm.weight",) for x in "qk"},
    **{f"layers.{{i}}.mixer.{x}_norm_bias": (f"{_LAYER}.self_attn.{x}_layernorm.bias",) for x in "qk"},
}
_FALCON = "transformer.h.{i}"
FALCON: Names = {  # norms are of falcon_names
    "embed.weight": ("transformer.word_embeddings.weight",),
    "head.weight": ("lm_head.weight",),
    "norm": ("transformer.ln_f.weight",),
    **both("layers.{i}.mixer.qkv", f"{_FALCON}.self_attention.query_key_value"),
    **both("layers.{i}.mixer.o", f"{_FALCON}.self_attention.dense"),
    **mlp_names(f"{_FALCON}.mlp.dense_h_to_4h", f"{_FALCON}.mlp.dense_4h_to_h"),
}


def heads_together(config: DecoderConfig) -> Tensor:
    """The order of rows that lie as one head's key and value behind the queries that read them, then the next's."""
    kv_heads = config.num_key_value_heads
    rows = torch.arange((config.num_attention_heads + 2 * kv_heads) * config.head_dim)
    together = rows.view(kv_heads, -1, config.head_dim)
    return torch.cat([part.reshape(-1) for part in (together[:, :-2], together[:, -2], together[:, -1])])


TOGETHER = {f"layers.{{i}}.mixer.qkv.{x}": heads_together for x in ("weight", "bias")}


def cohere_names(raw: Raw, config: DecoderConfig) -> Names:
    """Of norms of each head's own."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    return {
        f"layers.{{i}}.mixer.{x}_norm": tuple(f"{_LAYER}.self_attn.{x}_norm.weight[{head}]" for head in range(number))
        for x, number in heads.items()
    }


def stablelm_names(raw: Raw, config: DecoderConfig) -> Names:
    """Of norms of each head's own, which have no biases, and of the one norm that parallel halves of a layer share."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    names: Names = {}
    for x, number in heads.items():
        each = tuple(f"{_LAYER}.self_attn.{x}_layernorm.norms.{head}.weight" for head in range(number))
        names |= {f"layers.{{i}}.mixer.{x}_norm": each, f"layers.{{i}}.mixer.{x}_norm_bias": ()}
    if config.joined:
        names |= norm_names(f"{_LAYER}.input_layernorm", f"{_LAYER}.input_layernorm", "model.norm")
    return names


def _with_eps(raw: Raw, key: str, usual: float = 1e-5) -> Raw:
    """A config with the epsilon of its norms under the usual key."""
    return {**raw, "rms_norm_eps": keys.positive_number(raw, key, usual)}


def cohere(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 256000, 8192, 22528, 40, 64, None, None)
    normed = "each" if keys.flag(raw, "use_qk_norm", False) else None
    return DecoderConfig(**_cohere_like(usual_rope(raw, 500000.0), shape), qk_norm=normed)


def _cohere_like(raw: Raw, shape: Raw) -> Raw:
    return {
        **llama_like(_with_eps(raw, "layer_norm_eps"), shape, 8192, tied=True),
        **attention_bias(raw),
        "norm": "layer_plain",
        "joined": True,
        "logit_scale": keys.positive_number(raw, "logit_scale", 0.0625),
    }


def cohere2(raw: Raw) -> DecoderConfig:
    """Layers without a window do not rotate."""
    shape = shared_shape(raw, 256000, 8192, 22528, 40, 64, None)
    every = keys.positive_int(raw, "sliding_window_pattern", 4)
    windows = layer_windows(
        raw, shape["num_hidden_layers"], sliding_window(raw, 4096), lambda layer: (layer + 1) % every != 0
    )
    rotated = [None if window else 0 for window in windows]
    return DecoderConfig(**_cohere_like(raw, shape), layers=per_layer(window=windows, rotary_dim=rotated))


def phi(raw: Raw) -> DecoderConfig:
    """Phi-1, 1.5 and 2; the head has a bias."""
    no_windows(raw)
    keys.only(raw, "qk_layernorm", False)
    shape = shape_of(raw, 51200, 2048, 8192, 24, 32, None, None)
    rotary = usual_rope(_with_eps(raw, "layer_norm_eps"), part=0.5)
    return DecoderConfig(
        **llama_like(rotary, shape, 2048, activation="gelu_new", partial=True),
        norm="layer",
        joined=True,
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


def stablelm(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shared_shape(raw, 50304, 2560, 6912, 32, 32, 32)
    rotary = usual_rope(_with_eps(raw, "layer_norm_eps"), part=0.25)
    return DecoderConfig(
        **llama_like(rotary, shape, 4096, partial=True),
        norm="layer",
        joined=keys.flag(raw, "use_parallel_residual", False),
        qk_norm="each" if keys.flag(raw, "qk_layernorm", False) else None,
        qkv_bias=keys.flag(raw, "use_qkv_bias", False),
    )


def gpt_neox(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shared_shape({**raw, "num_key_value_heads": None}, 50432, 6144, 24576, 44, 64, None)
    rotary = usual_rope(
        _with_eps({**raw, "rope_theta": raw.get("rope_theta", raw.get("rotary_emb_base"))}, "layer_norm_eps"),
        part=keys.positive_number(raw, "rotary_pct", 0.25),
    )
    bias = keys.flag(raw, "attention_bias", True)
    return DecoderConfig(
        **llama_like(rotary, shape, 2048, activation="gelu", partial=True),
        norm="layer",
        joined=keys.flag(raw, "use_parallel_residual", True),
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
    )


def starcoder2(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 49152, 3072, 12288, 30, 24, 2, None)
    bias = keys.flag(raw, "use_bias", True)
    return DecoderConfig(
        **llama_like(_with_eps(raw, "norm_epsilon"), shape, 4096, activation="gelu_pytorch_tanh", tied=True),
        norm="layer",
        gated=False,
        window=sliding_window(raw, None),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


def nemotron(raw: Raw) -> DecoderConfig:
    """Nemotron-4 and Minitron: norms multiply by 1 + weight."""
    no_windows(raw)
    shape = shape_of(raw, 256000, 6144, 24576, 32, 48, None, 128)
    rotary = usual_rope(_with_eps(raw, "norm_eps"), part=0.5)
    return DecoderConfig(
        **llama_like(rotary, shape, 4096, activation="relu2", partial=True),
        **attention_bias(raw),
        norm="layer_offset",
        gated=False,
        mlp_bias=keys.flag(raw, "mlp_bias", False),
    )


def persimmon(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shared_shape({**raw, "num_key_value_heads": None}, 262144, 4096, 16384, 36, 64, None)
    rotary = usual_rope(_with_eps(raw, "layer_norm_eps"), part=0.5)
    return DecoderConfig(
        **llama_like(rotary, shape, 16384, activation="relu2", partial=True),
        norm="layer",
        qk_norm="one" if keys.flag(raw, "qk_layernorm", True) else None,
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
    )


def falcon(raw: Raw) -> DecoderConfig:
    """Falcon 1 and 2, and Falcon-RW, which has linear biases in place of rotary positions."""
    no_windows(raw)
    raw = {**raw, "hidden_size": raw.get("n_embed") or raw.get("hidden_size")}
    hidden, new = keys.positive_int(raw, "hidden_size", 4544), keys.flag(raw, "new_decoder_architecture", False)
    heads = {
        "num_key_value_heads": 1 if keys.flag(raw, "multi_query", True) and not new else raw.get("num_kv_heads"),
        "intermediate_size": keys.positive_int(raw, "ffn_hidden_size", 4 * hidden),
    }
    shape = shared_shape({**raw, **heads}, 65024, hidden, 4 * hidden, 32, 71, None)
    if new:
        keys.only(raw, "parallel_attn", True)
    bias = keys.flag(raw, "bias", False)
    rotary = {**_with_eps(raw, "layer_norm_epsilon"), "hidden_act": raw.get("activation")}
    made = llama_like(rotary, shape, 2048, activation="gelu", tied=True)
    if keys.flag(raw, "alibi", False):
        slopes = geometric_slopes(shape["num_attention_heads"])
        made |= {"rotary_dim": 0, "alibi": Alibi(slopes, shape["head_dim"] ** -0.5, rounded=True)}
    return DecoderConfig(
        **made,
        norm="layer",
        joined=new or keys.flag(raw, "parallel_attn", True),
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


def falcon_names(raw: Raw, config: DecoderConfig) -> Names:
    """Of norms: attention and MLP have one or two, beside or behind each other."""
    new = keys.flag(raw, "new_decoder_architecture", False)
    if new and keys.positive_int(raw, "num_ln_in_parallel_attn", 2) == 2:
        return norm_names(f"{_FALCON}.ln_attn", f"{_FALCON}.ln_mlp", "transformer.ln_f")
    second = "input_layernorm" if config.joined else "post_attention_layernorm"
    return norm_names(f"{_FALCON}.input_layernorm", f"{_FALCON}.{second}", "transformer.ln_f")
