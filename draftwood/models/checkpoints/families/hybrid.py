"""Families with recurrent layers: Qwen3.5, LFM2, Granite 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.experts import experts_of, grouped_experts, sparse_layers
from draftwood.models.checkpoints.families.family import attention_bias, llama_like, renamed, shape_of
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig
from draftwood.util.safe_parsing import short_repr

RECURRENT = {"linear_attention", "mamba", "conv"}  # layer types, also as older configs spell them
ATTENTION = {"full_attention", "attention"}


def _mixers(raw: Raw, layers: int, recurrent: RecurrentConfig, attends: Callable[[int], bool]) -> Raw:
    """The knobs of layers of which some are recurrent, by layer_types, else by the family's rule."""
    types = raw.get("layer_types") or raw.get("layers_block_type")
    if types is None:
        types = ["attention" if attends(layer) else "mamba" for layer in range(layers)]
    known = RECURRENT | ATTENTION
    if not isinstance(types, list) or len(types) < layers or any(str(kind) not in known for kind in types):
        raise ModelError(
            f"layer_types is {short_repr(types)}, but must name full_attention or a recurrent layer "
            f"({', '.join(sorted(RECURRENT))}) for each of {layers} layers"
        )
    attending = [kind in ATTENTION for kind in types[:layers]]
    return {"layers": per_layer(attends=attending, recurrent=[None if here else recurrent for here in attending])}


def _whole(raw: Raw, key: str, default: int) -> int:
    return keys.positive_int(raw, key, default, 1 << 20)


def _divided(what: str, count: int, among: str, parts: int) -> int:
    if count % parts:
        raise ModelError(f"{what} {count} is not a multiple of {among} {parts}")
    return count // parts


def _gated_delta(raw: Raw, shape: Raw, context: int = 32768) -> Raw:
    """The knobs of Qwen3.5 and Qwen3-Next, but for their feed-forwards.

    Of a text alone their rotary positions, which images have three of, are the usual.
    """
    every = _whole(raw, "full_attention_interval", 4)
    keys.only(raw, "hidden_act", "silu")
    if raw.get("partial_rotary_factor") is None:
        raw = {**raw, "partial_rotary_factor": 0.25}
    heads, values = _whole(raw, "linear_num_key_heads", 16), _whole(raw, "linear_num_value_heads", 32)
    _divided("linear_num_value_heads", values, "linear_num_key_heads", heads)
    delta = RecurrentConfig(
        DELTA,
        _whole(raw, "linear_conv_kernel_dim", 4),
        heads,
        _whole(raw, "linear_key_head_dim", 128),
        values,
        _whole(raw, "linear_value_head_dim", 128),
        tiled=keys.flag(raw, "tiled_value_heads", False),  # of GGUF files
    )
    return {
        **llama_like(raw, shape, context, partial=True),
        **attention_bias(raw),
        **_mixers(raw, shape["num_hidden_layers"], delta, lambda layer: (layer + 1) % every == 0),
        "norm": "rms_offset",
        "qk_norm": "one",
        "output_gate": True,
    }


def qwen3_5(raw: Raw) -> DecoderConfig:
    """Qwen3.5's dense text model."""
    return DecoderConfig(**_gated_delta(raw, shape_of(raw, 248320, 4096, 12288, 32, 16, 4, 256)))


def _shared_experts(raw: Raw, count: int, chosen: int, normalised: bool) -> ExpertsConfig:
    return ExpertsConfig(
        **experts_of(raw, count, chosen, 512),
        normalised=normalised,
        shared_size=_whole(raw, "shared_expert_intermediate_size", 512),
        shared_gate=True,
    )


def qwen3_5_moe(raw: Raw) -> DecoderConfig:
    """The text model of Qwen3.5's mixtures."""
    shape = shape_of({**raw, "intermediate_size": None}, 248320, 2048, 512, 40, 16, 2, 256)
    return DecoderConfig(**_gated_delta(raw, shape), experts=_shared_experts(raw, 256, 8, True))


def qwen3_next(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 151936, 2048, 5632, 48, 16, 2, 256)
    knobs = _gated_delta(raw, shape)
    experts = _shared_experts(raw, 512, 10, keys.flag(raw, "norm_topk_prob", True))
    sparse = sparse_layers(raw, shape["num_hidden_layers"])
    pairs = zip(knobs.pop("layers"), sparse, strict=True)
    layers = tuple((*layer, ("experts", experts if has else None)) for layer, has in pairs)
    return DecoderConfig(**knobs, layers=layers)


def by_kind(config: DecoderConfig) -> Tensor:
    """The order of rows that lie key head by key head (query, key, values, gates; then corrections, steps)."""
    c = config.recurrent
    assert c is not None
    each = c.value_heads // c.key_heads
    sizes = [c.key_dim, c.key_dim, each * c.value_dim, each * c.value_dim]
    wide = torch.arange(c.key_heads * sum(sizes)).view(c.key_heads, -1)
    query, key, value, gate = (part.flatten() for part in torch.split(wide, sizes, 1))
    return torch.cat((gate, query, key, value, gates_by_kind(c) + c.key_heads * sum(sizes)))


def gates_by_kind(recurrent: RecurrentConfig) -> Tensor:
    """The order of rows that lie key head by key head: corrections of all value heads, then steps."""
    return torch.arange(2 * recurrent.value_heads).view(recurrent.key_heads, 2, -1).swapaxes(0, 1).flatten()


def lfm2(raw: Raw) -> DecoderConfig:
    raw = {**raw, "rms_norm_eps": raw.get("norm_eps"), "tie_word_embeddings": raw.get("tie_embedding", True)} | {
        key: raw[key] for key in ("tie_word_embeddings",) if raw.get(key) is not None
    }
    shape = shape_of(raw, 65536, 2560, 12288, 32, 32, 8, None)
    inner = _whole(raw, "block_ff_dim", shape["intermediate_size"])
    if keys.flag(raw, "block_auto_adjust_ff_dim", True):
        of = _whole(raw, "block_multiple_of", 256)
        inner = int(2 * inner / 3)
        if raw.get("block_ffn_dim_multiplier", 1.0) is not None:
            inner = int(keys.positive_number(raw, "block_ffn_dim_multiplier", 1.0) * inner)
            inner = -(-inner // of) * of
    shape["intermediate_size"] = inner
    indices = raw.get("full_attn_idxs")
    attending = range(shape["num_hidden_layers"]) if indices is None else indices
    if not isinstance(attending, Sequence) or not all(type(index) is int for index in attending):
        raise ModelError(f"full_attn_idxs is {short_repr(indices)}, but must list the layers with attention")
    if raw.get("rope_theta") is None:
        raw["rope_theta"] = 1_000_000.0
    bias = keys.flag(raw, "conv_bias", False)
    short = RecurrentConfig(CONV, _whole(raw, "conv_L_cache", 3), conv_bias=bias, bias=bias, out_bias=bias)
    return DecoderConfig(
        **llama_like({**raw, "hidden_act": "silu"}, shape, 128_000, 1e-5, tied=True),
        **_mixers(raw, shape["num_hidden_layers"], short, lambda layer: layer in attending),
        qk_norm="one",
    )


def lfm2_moe(raw: Raw) -> DecoderConfig:
    """LFM2 with experts behind the first layers."""
    known = {key: value for key, value in raw.items() if value is not None}
    config = lfm2({"hidden_size": 2048, "intermediate_size": 7168, **known, "block_auto_adjust_ff_dim": False})
    experts = ExpertsConfig(
        **experts_of(raw, 32, 4, 1792),
        scoring="sigmoid",
        normalised=keys.flag(raw, "norm_topk_prob", True),
        scale=keys.positive_number(raw, "routed_scaling_factor", 1.0),
        selection_bias=keys.flag(raw, "use_expert_bias", True),
    )
    dense = keys.whole_number(raw, "num_dense_layers", 2)
    each = ((*layer, ("experts", experts if number >= dense else None)) for number, layer in enumerate(config.layers))
    return replace(config, layers=tuple(each))


def _mamba(raw: Raw, width: int) -> RecurrentConfig:
    """A Mamba-2 layer, by the keys of Granite 4, Bamba and Falcon-H1; `width` is that of all its values."""
    keys.only(raw, "hidden_act", "silu")
    heads = _whole(raw, "mamba_n_heads", 128)
    given = raw.get("mamba_d_head")
    dim = _divided("the width of mamba layers", width, "mamba_n_heads", heads)
    if given not in (None, "auto", dim):
        raise ModelError(f"mamba_d_head is {short_repr(given)}, but {heads} heads of {width} values have {dim} each")
    groups, bias = _whole(raw, "mamba_n_groups", 1), keys.flag(raw, "mamba_proj_bias", False)
    _divided("mamba_n_heads", heads, "mamba_n_groups", groups)
    return RecurrentConfig(
        SSM,
        _whole(raw, "mamba_d_conv", 4),
        groups,
        _whole(raw, "mamba_d_state", 256),
        heads,
        dim,
        conv_bias=keys.flag(raw, "mamba_conv_bias", True),
        bias=bias,
        out_bias=bias,
        norm_groups=groups,
        step_limit=_step_limit(raw),
    )


def _step_limit(raw: Raw) -> tuple[float, float]:
    limit = raw.get("time_step_limit")
    if limit is None:
        return 0.0, float("inf")
    if isinstance(limit, list | tuple):
        limit = [
            float("inf") if end == {"__float__": "Infinity"} else end for end in limit
        ]  # as transformers writes it
    if not isinstance(limit, list) or len(limit) != 2 or not all(type(end) in (int, float) for end in limit):
        raise ModelError(f"time_step_limit is {short_repr(limit)}, but must be two numbers, the least and the largest")
    return float(limit[0]), float(limit[1])


def granite_hybrid(raw: Raw) -> DecoderConfig:
    """Granite 4, which has Mamba-2 layers or attention alone, and a mixture of experts or none."""
    inner, experts = _whole(raw, "shared_intermediate_size", 1024), None
    if raw.get("num_local_experts") != 0:
        raw = renamed(raw, num_local_experts="num_experts")
        size = _whole(raw, "intermediate_size", 11008)
        keys.only(raw, "moe_intermediate_size", size)
        experts = ExpertsConfig(**experts_of(raw, 8, 2, size), normalised=True, shared_size=inner)
    shape = shape_of({**raw, "intermediate_size": inner}, 32000, 4096, 1024, 32, 32, None, None)
    keys.only(raw, "position_embedding_type", "rope", "nope")
    rotated = {} if raw.get("position_embedding_type") == "rope" else {"rotary_dim": 0}
    mamba = _mamba(raw, _whole(raw, "mamba_expand", 2) * shape["hidden_size"])
    return DecoderConfig(
        **llama_like(raw, shape, 2048) | rotated,
        **attention_bias(raw),
        **_mixers(raw, shape["num_hidden_layers"], mamba, lambda layer: False),
        experts=experts,
        embedding_scale=keys.positive_number(raw, "embedding_multiplier", 1.0),
        residual_multiplier=keys.positive_number(raw, "residual_multiplier", 1.0),
        attention_scale=keys.positive_number(raw, "attention_multiplier", 1.0),
        logit_scale=1 / keys.positive_number(raw, "logits_scaling", 1.0),
    )


def _multipliers(raw: Raw, key: str, count: int) -> list[float]:
    values = raw.get(key)
    if values is None:
        return [1.0] * count
    if not isinstance(values, list) or len(values) != count:
        raise ModelError(f"{key} is {short_repr(values)}, but must be a list of {count} positive numbers")
    return [keys.positive_number({key: value}, key, None) for value in values]


def falcon_h1(raw: Raw) -> DecoderConfig:
    """Attention and Mamba-2 side by side in each layer, and multipliers everywhere.

    Those of queries, keys and values become one of scores and one of what attention adds.
    """
    shape = shape_of({**raw, "head_dim": None}, 128000, 4096, 14336, 32, 32, 8, None)
    keys.only(raw, "head_dim", shape["head_dim"])
    one = {
        name: keys.positive_number(raw, f"{name}_multiplier", 1.0)
        for name in ("attention_in", "attention_out", "ssm_in", "ssm_out", "key", "embedding", "lm_head")
    }
    if keys.flag(raw, "attention_bias", False) and (one["attention_in"], one["key"]) != (1, 1):
        raise ModelError("attention_bias is not supported beside attention_in_multiplier or key_multiplier")
    if keys.flag(raw, "mamba_proj_bias", False) and one["ssm_in"] != 1:
        raise ModelError("mamba_proj_bias is not supported beside ssm_in_multiplier")
    if set(raw.get("layer_types") or ["hybrid"]) != {"hybrid"}:
        raise ModelError(f"layer_types is {short_repr(raw['layer_types'])}, but all layers are hybrid; leave it out")
    gate, down = _multipliers(raw, "mlp_multipliers", 2)
    width = raw.get("mamba_d_ssm", 1024)
    mamba = _mamba(raw, _whole(raw, "mamba_expand", 2) * shape["hidden_size"] if width is None else width)
    mamba = replace(
        mamba,
        out_bias=keys.flag(raw, "projectors_bias", False),
        gated_norm=keys.flag(raw, "mamba_rms_norm", False),
        gate_first=not keys.flag(raw, "mamba_norm_before_gate", True),
        scales=tuple(one["ssm_in"] * scale for scale in _multipliers(raw, "ssm_multipliers", 5)),
        multiplier=one["ssm_out"] / (one["attention_in"] * one["attention_out"]),
    )
    added = one["attention_in"] * one["attention_out"]
    return DecoderConfig(
        **llama_like(raw, shape, 8192, 1e-5),
        qkv_bias=keys.flag(raw, "attention_bias", False),
        o_bias=keys.flag(raw, "attention_bias", False),
        mlp_bias=keys.flag(raw, "mlp_bias", False),
        recurrent=mamba,
        residual_multiplier=added,
        feed_multiplier=down / added,
        gate_multiplier=gate,
        attention_scale=one["attention_in"] ** 2 * one["key"] * shape["head_dim"] ** -0.5,
        embedding_scale=one["embedding"],
        logit_scale=one["lm_head"],
    )


NEMOTRON_LAYERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def nemotron_h(raw: Raw) -> DecoderConfig:
    """Nemotron-H, whose layers are Mamba-2, attention without positions, a feed-forward or experts without gates."""
    types = renamed(raw, layer_types="layers_block_type").get("layers_block_type")
    if types is None and isinstance(raw.get("hybrid_override_pattern"), str):
        types = [NEMOTRON_LAYERS.get(mark, mark) for mark in raw["hybrid_override_pattern"]]
    kinds = {"mamba": "linear_attention", "attention": "full_attention"}
    types = types or ["linear_attention", "moe", "full_attention", "mlp"]
    types = [kinds.get(str(kind), str(kind)) for kind in types] if isinstance(types, list) else [short_repr(types)]
    unknown = next((kind for kind in types if kind not in NEMOTRON_LAYERS.values()), None)
    if unknown is not None:
        raise ModelError(
            f"layers of type {short_repr(unknown)} are not supported; only {', '.join(NEMOTRON_LAYERS.values())}"
        )
    shape = shape_of({**raw, "num_hidden_layers": len(types)}, 131072, 4096, 21504, len(types), 32, 8, 128)
    keys.only(raw, "sliding_window")
    keys.only(raw, "mamba_hidden_act", "silu")
    heads, dim, groups = (
        _whole(raw, key, usual) for key, usual in (("mamba_num_heads", 128), ("mamba_head_dim", 64), ("n_groups", 8))
    )
    _divided("mamba_num_heads", heads, "n_groups", groups)
    least = 0.0 if raw.get("time_step_min") == 0 else keys.positive_number(raw, "time_step_min", 0.001)
    state = _whole(raw, "ssm_state_size", 128)
    mamba = _state_space(raw, groups, state, heads, dim, (least, float("inf")))
    eps, experts = keys.positive_number(raw, "layer_norm_epsilon", 1e-5), None
    if "moe" in types:
        experts = _nemotron_experts(raw)
    act = keys.activation(raw, "mlp_hidden_act", "relu2")
    return DecoderConfig(
        **llama_like({**raw, "rms_norm_eps": eps, "hidden_act": act}, shape, 4096) | {"rotary_dim": 0},
        mlp_bias=keys.flag(raw, "mlp_bias", False),
        gated=False,
        layers=per_layer(
            attends=[kind == "full_attention" for kind in types],
            recurrent=[mamba if kind == "linear_attention" else None for kind in types],
            feeds=[kind in ("mlp", "moe") for kind in types],
            experts=[experts if kind == "moe" else None for kind in types],
        ),
    )


def _nemotron_experts(raw: Raw) -> ExpertsConfig:
    latent = 0 if raw.get("moe_latent_size") is None else keys.positive_int(raw, "moe_latent_size", 0)
    known = experts_of({**raw, "num_experts": raw.get("n_routed_experts")}, 8, 2, 7688)
    shared = _whole(raw, "moe_shared_expert_intermediate_size", 7688)
    return replace(grouped_experts(raw, known, "sigmoid"), gated=False, shared_size=shared, latent_size=latent)


def _state_space(
    raw: Raw, groups: int, state: int, heads: int, dim: int, steps: tuple[float, float]
) -> RecurrentConfig:
    """A Mamba-2 layer by the keys of Nemotron-H and of Mamba-2 itself; `steps` are the least and largest time step."""
    bias = keys.flag(raw, "use_bias", False)
    return RecurrentConfig(
        SSM,
        _whole(raw, "conv_kernel", 4),
        groups,
        state,
        heads,
        dim,
        conv_bias=keys.flag(raw, "use_conv_bias", True),
        bias=bias,
        out_bias=bias,
        norm_groups=groups,
        step_limit=steps,
    )


def mamba2(raw: Raw) -> DecoderConfig:
    """Mamba-2 alone, whose texts may have any length; as in llama.cpp they have at most 2 ** 20 tokens."""
    keys.only(raw, "hidden_act", "silu")
    hidden, heads, dim, groups = (
        _whole(raw, key, usual)
        for key, usual in (("hidden_size", 4096), ("num_heads", 128), ("head_dim", 64), ("n_groups", 8))
    )
    if _whole(raw, "expand", 2) * hidden != heads * dim:
        raise ModelError(f"num_heads {heads} times head_dim {dim} must be expand times hidden_size {hidden}")
    _divided("num_heads", heads, "n_groups", groups)
    return DecoderConfig(
        **_sizes(raw, hidden),
        max_position_embeddings=keys.positive_int(raw, "max_position_embeddings", 1 << 20),
        rms_norm_eps=keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", False),
        rotary_dim=0,
        recurrent=_state_space(raw, groups, _whole(raw, "state_size", 128), heads, dim, _step_limit(raw)),
        attends=False,
        feeds=False,
    )


def _sizes(raw: Raw, hidden: int) -> Raw:
    """Sizes of a model without attention and feed-forwards."""
    sizes = {**{key: raw.get(key) for key in ("vocab_size", "num_hidden_layers")}, "hidden_size": hidden}
    return shape_of({**sizes, "num_attention_heads": 1, "head_dim": 2}, 32768, hidden, 1, 64, 1, 1, None)
