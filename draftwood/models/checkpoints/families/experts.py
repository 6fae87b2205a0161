"""Families whose layers have a mixture of experts in place of the feed-forward."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.dense import granite_multipliers
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    in_windows,
    layer_windows,
    llama_like,
    no_windows,
    renamed,
    shape_of,
    sliding_window,
    usual_rope,
)
from draftwood.models.checkpoints.families.llama import qwen_windows
from draftwood.models.checkpoints.families.parallel import USUAL_NORMS
from draftwood.models.checkpoints.tensor_names import HEAD_NORMS, LLAMA, QWEN_3, Names
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.rotary import LongRope
from draftwood.util.safe_parsing import short_repr

_MLP = "model.layers.{i}.mlp"
_SHARED: Names = {
    "layers.{i}.feed.shared.gate_up.weight": tuple(f"{_MLP}.shared_expert.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.feed.shared.down.weight": (f"{_MLP}.shared_expert.down_proj.weight",),
    "layers.{i}.feed.shared_gate.weight": (f"{_MLP}.shared_expert_gate.weight",),
}


def _each(module: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Names:
    """Names of experts that are tensors of their own, and of their router."""
    expert = f"{module}.experts.{{e}}"
    return {
        "layers.{i}.feed.router.weight": (f"{module}.gate.weight",),
        "layers.{i}.feed.experts.{e}.gate_up.weight": (f"{expert}.{gate}.weight", f"{expert}.{up}.weight"),
        "layers.{i}.feed.experts.{e}.down.weight": (f"{expert}.{down}.weight",),
    }


QWEN_3_MOE: Names = {**QWEN_3, **_each(_MLP)}
QWEN_2_MOE: Names = {**LLAMA, **_each(_MLP), **_SHARED}
OLMOE: Names = QWEN_3_MOE  # its norms of queries and keys are over all heads
MIXTRAL: Names = {**LLAMA, **_each("model.layers.{i}.block_sparse_moe", "w1", "w3", "w2")}
PHI_MOE: Names = {
    **MIXTRAL,
    "head.bias": ("lm_head.bias",),
    **USUAL_NORMS,
}
GRANITE_MOE: Names = {
    **LLAMA,
    "layers.{i}.feed.router.weight": ("model.layers.{i}.block_sparse_moe.router.layer.weight",),
    "layers.{i}.feed.experts.{e}.gate_up.weight": ("model.layers.{i}.block_sparse_moe.input_linear.weight[{e}]",),
    "layers.{i}.feed.experts.{e}.down.weight": ("model.layers.{i}.block_sparse_moe.output_linear.weight[{e}]",),
}
GLM_4_MOE: Names = {
    **QWEN_3_MOE,
    **{key: tuple(name.replace("shared_expert.", "shared_experts.") for name in n) for key, n in _SHARED.items()},
    "layers.{i}.feed.selection_bias": (f"{_MLP}.gate.e_score_correction_bias",),
}
ERNIE_4_5_MOE: Names = {
    **{name: sources for name, sources in GLM_4_MOE.items() if name not in HEAD_NORMS},
    "layers.{i}.feed.selection_bias": (f"{_MLP}.moe_statics.e_score_correction_bias[0]",),
}
GPT_OSS: Names = {
    **LLAMA,
    "layers.{i}.mixer.sinks": ("model.layers.{i}.self_attn.sinks",),
    "layers.{i}.feed.router.weight": (f"{_MLP}.router.weight",),
    "layers.{i}.feed.router.bias": (f"{_MLP}.router.bias",),
    "layers.{i}.feed.experts.{e}.gate_up.weight": (f"{_MLP}.experts.gate_up_proj[{{e}}]",),
    "layers.{i}.feed.experts.{e}.gate_up.bias": (f"{_MLP}.experts.gate_up_proj_bias[{{e}}]",),
    "layers.{i}.feed.experts.{e}.down.weight": (f"{_MLP}.experts.down_proj[{{e}}]",),
    "layers.{i}.feed.experts.{e}.down.bias": (f"{_MLP}.experts.down_proj_bias[{{e}}]",),
}
QWEN_3_VL_MOE: Names = {
    **QWEN_3,
    "layers.{i}.feed.router.weight": (f"{_MLP}.gate.weight",),
    "layers.{i}.feed.experts.{e}.gate_up.weight": (f"{_MLP}.experts.gate_up_proj[{{e}}]",),
    "layers.{i}.feed.experts.{e}.down.weight": (f"{_MLP}.experts.down_proj[{{e}}]",),
}
STACKED = frozenset(f"layers.{{i}}.feed.experts.{{e}}.{x}.weight" for x in ("gate_up", "down"))  # as [in, out]


def gates_first(config: DecoderConfig) -> Tensor:
    """The order of rows that lie as gate, up, gate, up, ..."""
    assert config.experts is not None
    return torch.arange(2 * config.experts.intermediate_size).view(-1, 2).T.reshape(-1)


GPT_OSS_ORDERS = {f"layers.{{i}}.feed.experts.{{e}}.gate_up.{x}": gates_first for x in ("weight", "bias")}


def experts_of(raw: Raw, count: int, chosen: int, inner: int) -> Raw:
    """Numbers and size of experts; numbers are what absent keys mean."""
    known = {
        "count": keys.positive_int(raw, "num_experts", count, 4096),
        "chosen": keys.positive_int(raw, "num_experts_per_tok", chosen),
        "intermediate_size": keys.positive_int(raw, "moe_intermediate_size", inner),
    }
    if known["chosen"] > known["count"]:
        raise ModelError(f"num_experts_per_tok is {known['chosen']}, but there are {known['count']} experts")
    return known


def sparse_layers(raw: Raw, layers: int) -> list[bool]:
    """Which layers have experts, by Qwen's keys."""
    step, dense = keys.positive_int(raw, "decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise ModelError(f"mlp_only_layers is {short_repr(dense)}, but must be a list of numbers of layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def layers_with(experts: ExpertsConfig, sparse: list[bool], windows: Raw) -> Raw:
    """The knobs of layers with experts where `sparse`, and with windows."""
    if all(sparse):
        return {**windows, "experts": experts}
    layers = dict(windows)
    each = [dict(layer) for layer in layers.pop("layers", [()] * len(sparse))]
    knobs = {name: [layer[name] for layer in each] for name in each[0]}
    return {**layers, "layers": per_layer(**knobs, experts=[experts if has else None for has in sparse])}


def qwen3_moe(raw: Raw) -> DecoderConfig:
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 151936, 2048, 6144, 24, 32, 4, None)
    experts = ExpertsConfig(**experts_of(raw, 128, 8, 768), normalised=keys.flag(raw, "norm_topk_prob", False))
    window = sliding_window(raw, 4096) if keys.flag(raw, "use_sliding_window", False) else 0
    no_windows(raw)
    return DecoderConfig(
        **llama_like(raw, shape, 32768),
        **attention_bias(raw),
        **layers_with(experts, sparse_layers(raw, shape["num_hidden_layers"]), {"window": window}),
        qk_norm="one",
    )


def qwen3_vl_moe(raw: Raw) -> DecoderConfig:
    """The text part of Qwen3-VL's mixtures."""
    no_windows(raw)
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 151936, 2048, 5632, 24, 16, 16, None)
    experts = ExpertsConfig(**experts_of(raw, 60, 4, 1408), normalised=True)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 500_000.0), shape, 128_000, tied=True),
        **attention_bias(raw),
        **layers_with(experts, sparse_layers(raw, shape["num_hidden_layers"]), {}),
        qk_norm="one",
    )


def qwen2_moe(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 2048, 5632, 24, 16, 16, None)
    experts = ExpertsConfig(
        **experts_of(raw, 60, 4, 1408),
        normalised=keys.flag(raw, "norm_topk_prob", False),
        shared_size=keys.positive_int(raw, "shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    layers = shape["num_hidden_layers"]
    return DecoderConfig(
        **llama_like(raw, shape, 32768),
        **layers_with(experts, sparse_layers(raw, layers), qwen_windows(raw, layers)),
        qkv_bias=keys.flag(raw, "qkv_bias", True),
    )


def mixtral(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 32000, 4096, 14336, 32, 32, 8, None)
    keys.only(raw, "moe_intermediate_size", shape["intermediate_size"])
    experts = ExpertsConfig(**experts_of(raw, 8, 2, shape["intermediate_size"]), normalised=True)
    return DecoderConfig(
        **llama_like(usual_rope(raw, 1e6), shape, 131072, 1e-5), window=sliding_window(raw, None), experts=experts
    )


def phimoe(raw: Raw) -> DecoderConfig:
    """Phi-3.5-MoE; the factors of its rotary positions have names of their own."""
    no_windows(raw)
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 32064, 4096, 6400, 32, 32, 8, None)
    keys.only(raw, "num_experts_per_tok", 2)  # its router chooses two, whatever a config says
    experts = ExpertsConfig(
        **experts_of({**raw, "moe_intermediate_size": None}, 16, 2, shape["intermediate_size"]),
        jitter=keys.positive_number(raw, "router_jitter_noise", 0.01),
    )
    known = llama_like(usual_rope(raw, 1e6), shape, 131072, 1e-5)
    if isinstance(known["rope_scaling"], LongRope):
        rope = keys.rope_object(raw)
        short, long = (keys.positive_number(rope, f"{kind}_mscale", None) for kind in ("short", "long"))
        known["rope_scaling"] = replace(known["rope_scaling"], attention_factor=long, short_attention_factor=short)
    else:
        keys.only({"rope_type": keys.rope_type(keys.rope_object(raw))}, "rope_type", "default", "longrope")
    return DecoderConfig(
        **known,
        **attention_bias(raw),
        window=sliding_window(raw, None),
        norm="layer",
        head_bias=keys.flag(raw, "lm_head_bias", False),
        experts=experts,
    )


def olmoe(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    keys.only(raw, "clip_qkv")
    shape = shape_of(raw, 50304, 2048, 2048, 16, 16, None, None)
    keys.only(raw, "moe_intermediate_size", shape["intermediate_size"])
    experts = ExpertsConfig(
        **experts_of(raw, 64, 8, shape["intermediate_size"]), normalised=keys.flag(raw, "norm_topk_prob", False)
    )
    return DecoderConfig(**llama_like(raw, shape, 4096, 1e-5), **attention_bias(raw), experts=experts, qk_norm="whole")


def granitemoe(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    raw = renamed(raw, num_local_experts="num_experts")
    shape = shape_of(raw, 32000, 4096, 11008, 32, 32, None, None)
    keys.only(raw, "moe_intermediate_size", shape["intermediate_size"])
    experts = ExpertsConfig(**experts_of(raw, 8, 2, shape["intermediate_size"]), normalised=True)
    return DecoderConfig(
        **llama_like(raw, shape, 2048),
        **attention_bias(raw),
        **granite_multipliers(raw),
        experts=experts,
    )


def grouped_experts(raw: Raw, known: Raw, scoring: str, group_top: int = 2) -> ExpertsConfig:
    """Experts by DeepSeek's keys, with numbers and size `known`; those scored by a sigmoid have a bias each."""
    groups, chosen_groups = keys.positive_int(raw, "n_group", 1), keys.positive_int(raw, "topk_group", 1)
    if known["count"] % groups or chosen_groups > groups or known["chosen"] > known["count"] // groups * chosen_groups:
        raise ModelError(
            f"n_group {groups} and topk_group {chosen_groups} do not fit {known['chosen']} of {known['count']} experts"
        )
    return ExpertsConfig(
        **known,
        scoring=scoring,
        normalised=keys.flag(raw, "norm_topk_prob", True),
        groups=groups,
        chosen_groups=chosen_groups,
        group_top=group_top,
        scale=keys.positive_number(raw, "routed_scaling_factor", 1.0),
        selection_bias=scoring == "sigmoid",
        shared_size=known["intermediate_size"] * keys.positive_int(raw, "n_shared_experts", 1),
    )


def glm4_moe(raw: Raw) -> DecoderConfig:
    """GLM-4.5 to 4.7; the layer for multi-token prediction behind the last is not read."""
    no_windows(raw)
    raw = renamed(raw, num_experts="n_routed_experts", num_local_experts="n_routed_experts")
    raw = {**raw, "num_experts": raw.get("n_routed_experts")}
    shape = shape_of(raw, 151552, 4096, 10944, 46, 96, 8, None)
    experts = grouped_experts(raw, experts_of(raw, 128, 8, 1408), "sigmoid")
    dense = keys.whole_number(raw, "first_k_dense_replace", 1)
    layers = shape["num_hidden_layers"]
    bias = keys.flag(raw, "attention_bias", False)
    return DecoderConfig(
        **llama_like(usual_rope(raw, part=0.5), shape, 131072, 1e-5, partial=True),
        **layers_with(experts, [layer >= dense for layer in range(layers)], {}),
        qkv_bias=bias,
        qk_norm="one" if keys.flag(raw, "use_qk_norm", False) else None,
    )


def ernie4_5_moe(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    raw = renamed(raw, num_experts="moe_num_experts", num_experts_per_tok="moe_k")
    shape = shape_of(raw, 103424, 2560, 12288, 28, 20, 4, None)
    keys.only(raw, "use_bias", False)
    keys.only(raw, "moe_norm_min", 1e-12)
    usual = {"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_num_shared_experts": 2}
    counts = {key: raw.get(key, value) for key, value in usual.items()}
    if any(type(count) is not int or count < -1 for count in counts.values()):
        raise ModelError(f"{', '.join(counts)} are {short_repr(list(counts.values()))}, but must be whole numbers")
    first, last, shared = counts.values()
    step, layers = keys.positive_int(raw, "moe_layer_interval", 1), shape["num_hidden_layers"]
    stop = layers if last == -1 else last + 1
    known = experts_of(
        {**raw, "num_experts": raw.get("moe_num_experts"), "num_experts_per_tok": raw.get("moe_k")}, 64, 6, 1536
    )
    experts = ExpertsConfig(
        **known, normalised=True, selection_bias=True, shared_size=max(0, shared) * known["intermediate_size"]
    )
    return DecoderConfig(
        **llama_like(usual_rope(raw, 500000.0), shape, 131072, 1e-5, tied=True),
        **layers_with(experts, [first <= layer < stop and (layer + 1) % step == 0 for layer in range(layers)], {}),
    )


def gpt_oss(raw: Raw) -> DecoderConfig:
    raw = renamed(raw, num_local_experts="num_experts", experts_per_token="num_experts_per_tok")
    shape = shape_of(raw, 201088, 2880, 2880, 36, 64, 8, 64)
    keys.only(raw, "moe_intermediate_size", shape["intermediate_size"])
    keys.only(raw, "swiglu_alpha", 1.702)
    keys.only(raw, "hidden_act", "silu")
    bias = keys.flag(raw, "attention_bias", True)
    experts = ExpertsConfig(
        **experts_of(raw, 128, 4, shape["intermediate_size"]),
        normalised=True,
        router_bias=True,
        bias=True,
        limit=keys.positive_number(raw, "swiglu_limit", 7.0),
    )
    layers = shape["num_hidden_layers"]
    usual = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
    if not keys.rope_object(raw):
        raw = {**raw, "rope_parameters": usual}
    raw = usual_rope(raw, 150000.0)
    windows = layer_windows(raw, layers, sliding_window(raw, 128), lambda layer: layer % 2 == 0)
    return DecoderConfig(
        **llama_like(raw, shape, 131072, 1e-5),
        **in_windows(windows),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        experts=experts,
    )
