"""Families with latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, MiniCPM 3 and others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.experts import (
    GLM_4_MOE,
    QWEN_3_VL_MOE,
    experts_of,
    grouped_experts,
    layers_with,
)
from draftwood.models.checkpoints.families.family import Order, llama_like, no_windows, shape_of
from draftwood.models.checkpoints.families.llama import query_growth
from draftwood.models.checkpoints.tensor_names import HEAD_NORMS, Names
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.latent_config import LatentConfig
from draftwood.models.rotary import Yarn

_ATTENTION, _MIXER = "model.layers.{i}.self_attn", "layers.{i}.mixer"
LATENT: Names = {  # the first product's names are of latent_names
    **{name: sources for name, sources in GLM_4_MOE.items() if name not in HEAD_NORMS},
    f"{_MIXER}.q_up.weight": (f"{_ATTENTION}.q_b_proj.weight",),
    f"{_MIXER}.kv_up.weight": (f"{_ATTENTION}.kv_b_proj.weight",),
    f"{_MIXER}.q_norm": (f"{_ATTENTION}.q_a_layernorm.weight",),
    f"{_MIXER}.kv_norm": (f"{_ATTENTION}.kv_a_layernorm.weight",),
}
MISTRAL_4: Names = {  # all experts of a layer are one tensor
    **LATENT,
    **{key: QWEN_3_VL_MOE[key] for key in (f"layers.{{i}}.feed.experts.{{e}}.{x}.weight" for x in ("gate_up", "down"))},
}
MISTRAL_4_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}


def latent_names(raw: Raw, config: DecoderConfig) -> Names:
    """Of the first product, which makes queries or their latent."""
    assert config.latent is not None
    first = "q_proj" if config.latent.q_rank is None else "q_a_proj"
    return {
        f"{_MIXER}.into.{x}": tuple(f"{_ATTENTION}.{name}.{x}" for name in (first, "kv_a_proj_with_mqa"))
        for x in ("weight", "bias")
    }


def _orders(paired: bool) -> Mapping[str, Order]:
    """The decoder's order of rows: what is rotated first, in halves. `paired`: neighbours are rotated together."""

    def turned(count: int) -> Tensor:
        return torch.arange(count).view(-1, 2).T.reshape(-1) if paired else torch.arange(count)

    def queries(config: DecoderConfig) -> Tensor:
        """Of each head, behind what is not rotated."""
        own = config.head_dim - config.rotated
        one = torch.cat((turned(config.rotated) + own, torch.arange(own)))
        return (torch.arange(config.num_attention_heads)[:, None] * config.head_dim + one).reshape(-1)

    def first(config: DecoderConfig) -> Tensor:
        latent, made = config.latent, queries(config)
        assert latent is not None
        if latent.q_rank is not None:
            made = torch.arange(latent.q_rank)
        made = torch.cat((made, torch.arange(latent.kv_rank) + len(made)))
        return torch.cat((made, turned(config.rotated) + len(made)))

    def keys_and_values(config: DecoderConfig) -> Tensor:
        """Of each head its key, then its value."""
        own = config.head_dim - config.rotated
        rows = torch.arange(config.num_attention_heads * (own + config.value_dim)).view(config.num_attention_heads, -1)
        return torch.cat((rows[:, :own].reshape(-1), rows[:, own:].reshape(-1)))

    return {
        f"{_MIXER}.into.weight": first,
        f"{_MIXER}.into.bias": first,
        f"{_MIXER}.q_up.weight": queries,
        f"{_MIXER}.kv_up.weight": keys_and_values,
    }


PAIRED, HALVES = _orders(True), _orders(False)


def _latent_like(raw: Raw, sizes: Mapping[str, int | None], context: int, eps: float = 1e-6, tied: bool = False) -> Raw:
    """The knobs of a family with latent attention; `sizes` are what absent keys mean."""
    no_windows(raw)
    keys.only(raw, "rope_interleave", True)
    known = {**sizes, **{key: value for key, value in raw.items() if key in sizes}}
    rank, turned, own, value = (
        keys.positive_int(known, key, 0)
        for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    q_rank = None if known["q_lora_rank"] is None else keys.positive_int(known, "q_lora_rank", 0)
    keys.only(raw, "head_dim", turned, turned + own)  # families mean one or the other
    heads = keys.positive_int(known, "num_attention_heads", 0)
    keys.only(raw, "num_key_value_heads", heads)
    spelled = {**known, "head_dim": turned + own, "num_key_value_heads": heads}
    shape = shape_of({key: spelled[key] for key in (*_SIZES, "head_dim")}, 0, 0, 0, 0, heads, heads, None)
    bias = keys.flag(raw, "attention_bias", False)
    if bias and q_rank is None:
        raise ModelError("attention_bias is not supported without q_lora_rank; leave out one of them")
    made = llama_like(raw, shape, context, eps, tied=tied) | {"rotary_dim": turned}
    scaling, scale = made["rope_scaling"], (turned + own) ** -0.5
    overall = keys.rope_object(raw).get("mscale_all_dim")
    if isinstance(scaling, Yarn) and overall:
        scale *= scaling.growth(keys.positive_number({"mscale_all_dim": overall}, "mscale_all_dim", None)) ** 2
    return {
        **made,
        "qkv_bias": bias,
        "o_bias": bias,
        "attention_scale": scale,
        "latent": LatentConfig(rank, value, q_rank),
    }


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)


def _sizes(vocab: int, hidden: int, inner: int, layers: int, heads: int, *latent: int | None) -> dict[str, int | None]:
    """Values of absent keys; `latent`: kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim."""
    names = (*_SIZES, "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return dict(zip(names, (vocab, hidden, inner, layers, heads, heads, *latent), strict=True))


def _mixture(knobs: Raw, experts: ExpertsConfig, dense: int) -> DecoderConfig:
    """A decoder whose layers from number `dense` on have experts."""
    sparse = [layer >= dense for layer in range(knobs["num_hidden_layers"])]
    return DecoderConfig(**knobs, **layers_with(experts, sparse, {}))


def deepseek_v2(raw: Raw) -> DecoderConfig:
    knobs = _latent_like(raw, _sizes(102400, 4096, 11008, 32, 32, 512, 1536, 128, 64, 128), 2048)
    keys.only(raw, "moe_layer_freq", 1)
    keys.only(raw, "scoring_func", "softmax")
    keys.only(raw, "norm_topk_prob", False)
    keys.only(raw, "topk_method", "greedy", "group_limited_greedy")
    keys.only(raw, "mlp_bias", False)
    if raw.get("topk_method") != "group_limited_greedy":
        raw = {**raw, "n_group": 1, "topk_group": 1}
    usual = {"moe_intermediate_size": 1407, "n_shared_experts": 2, "norm_topk_prob": False, **raw}
    made = grouped_experts(usual, experts_of(_counted(usual), 64, 6, 1407), "softmax", group_top=1)
    return _mixture(knobs, made, keys.whole_number(raw, "first_k_dense_replace", 0))


def _counted(raw: Raw) -> Raw:
    """A config whose number of experts has Qwen's name."""
    return {**raw, "num_experts": raw.get("n_routed_experts", raw.get("num_local_experts"))}


def deepseek_v3(raw: Raw) -> DecoderConfig:
    """DeepSeek V3, R1 and Kimi K2; layers for multi-token prediction behind the last are not read."""
    knobs = _latent_like(raw, _sizes(129280, 7168, 18432, 61, 128, 512, 1536, 128, 64, 128), 4096)
    keys.only(raw, "moe_layer_freq", 1)
    keys.only(raw, "scoring_func", "sigmoid")
    keys.only(raw, "topk_method", "noaux_tc")
    usual = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, **raw}
    made = grouped_experts(usual, experts_of(_counted(raw), 256, 8, 2048), "sigmoid")
    return _mixture(knobs, made, keys.whole_number(raw, "first_k_dense_replace", 3))


def glm4_moe_lite(raw: Raw) -> DecoderConfig:
    """GLM-4.7-Flash."""
    knobs = _latent_like(raw, _sizes(154880, 2048, 10240, 47, 20, 512, 768, 192, 64, 256), 202752, 1e-5)
    made = grouped_experts({"routed_scaling_factor": 1.8, **raw}, experts_of(_counted(raw), 64, 4, 1536), "sigmoid")
    kinds = raw.get("mlp_layer_types")
    layers = knobs["num_hidden_layers"]
    if kinds is None:
        return _mixture(knobs, made, 1)
    if not isinstance(kinds, list) or len(kinds) < layers or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise ModelError(f"mlp_layer_types is {kinds!r:.60}, but must have dense or sparse for each of {layers} layers")
    return DecoderConfig(**knobs, **layers_with(made, [kind == "sparse" for kind in kinds[:layers]], {}))


def mistral4(raw: Raw) -> DecoderConfig:
    """Mistral Small 4: softmax of experts, and queries that grow with their position."""
    if not keys.rope_object(raw):
        raw = {**raw, "rope_parameters": MISTRAL_4_ROPE}
    rope = {key: value for key, value in keys.rope_object(raw).items() if key != "partial_rotary_factor"}
    raw = {**raw, "rope_scaling": None, "rope_parameters": rope, "partial_rotary_factor": None}
    knobs = _latent_like(raw, _sizes(131072, 4096, 12288, 36, 32, 256, 1024, 64, 64, 128), 1048576)
    made = grouped_experts(raw, experts_of(_counted(raw), 128, 4, 2048), "softmax")
    growth = query_growth(keys.rope_object(raw), knobs["max_position_embeddings"])
    return _mixture({**knobs, "query_growth": growth}, made, keys.whole_number(raw, "first_k_dense_replace", 0))


def youtu(raw: Raw) -> DecoderConfig:
    """Youtu-LLM: DeepSeek V3's attention in a dense model."""
    sizes = _sizes(128256, 2048, 6144, 32, 16, 512, 1536, 128, 64, 128)
    return DecoderConfig(**_latent_like(raw, sizes, 131072, tied=True))


def minicpm3(raw: Raw) -> DecoderConfig:
    """Multipliers of embeddings, residual sums and logits; halves are rotated."""
    keys.only(raw, "mlp_bias", False)
    hidden, heads, layers = (
        keys.positive_int(raw, key, default)
        for key, default in (("hidden_size", 2560), ("num_attention_heads", 40), ("num_hidden_layers", 62))
    )
    sizes = _sizes(73448, hidden, 6400, layers, heads, 256, 768, 64, 32, max(1, hidden // heads))
    raw = {**raw, "v_head_dim": raw.get("v_head_dim") or sizes["v_head_dim"]}
    usual = {"scale_depth": 1.4, "dim_model_base": 256, **raw}
    return DecoderConfig(
        **_latent_like(raw, sizes, 32768, 1e-5, tied=True),
        embedding_scale=keys.positive_number(raw, "scale_emb", 12.0),
        residual_multiplier=keys.positive_number(usual, "scale_depth", math.sqrt(layers)) / math.sqrt(layers),
        logit_scale=keys.positive_number(usual, "dim_model_base", hidden) / hidden,
    )
