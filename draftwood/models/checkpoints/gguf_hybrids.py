"""Recurrent layers in GGUF files: what the metadata say of them, and how llama.cpp's converter has changed tensors.

It folds Falcon-H1's multipliers into the weights, takes the products of Qwen3-Next's layers apart, and puts the value
heads of Qwen3.5 in another order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.families.hybrid import gates_by_kind
from draftwood.models.checkpoints.gguf_metadata import Metadata, needed
from draftwood.models.decoder_config import DecoderConfig

INTO = "layers.{i}.mixer.into.weight"
KV_HEADS, INNER = "attention.head_count_kv", "feed_forward_length"


def delta(file: Metadata, raw: Raw) -> Raw:
    """The gated delta rule of Qwen3-Next and Qwen3.5."""
    values = needed(file, "ssm.time_step_rank")
    return {
        "linear_conv_kernel_dim": needed(file, "ssm.conv_kernel"),
        "linear_num_key_heads": needed(file, "ssm.group_count"),
        "linear_key_head_dim": needed(file, "ssm.state_size"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": _part(file, "ssm.inner_size", "ssm.time_step_rank", values),
        "full_attention_interval": file.value("full_attention_interval", 4),
        "rope_parameters": {"partial_rotary_factor": 1.0, **raw["rope_parameters"]},
    }


def tiled_delta(file: Metadata, raw: Raw) -> Raw:
    """The same, where value heads that share a key lie one round of all keys after the other."""
    made = delta(file, raw)
    return {**made, "tiled_value_heads": made["linear_num_value_heads"] != made["linear_num_key_heads"]}


def products_apart(file: Metadata, family: Family) -> Family:
    """Qwen3-Next's product of query, key, value and gate is two in newer files, in which only gates lie by heads."""
    if file.has("blk.0.ssm_in.weight"):
        return family
    sources = tuple(f"blk.{{i}}.{name}.weight" for name in ("attn_gate", "attn_qkv", "ssm_ba"))
    return replace(family, names={**family.names, INTO: sources}, orders={**family.orders, INTO: _gates_last})


def _gates_last(config: DecoderConfig) -> Tensor:
    """The order of rows of which the last, of gates, lie key head by key head."""
    assert config.recurrent is not None
    wide = 2 * (config.recurrent.values + config.recurrent.keys)
    return torch.cat((torch.arange(wide), wide + gates_by_kind(config.recurrent)))


def lfm2(file: Metadata, raw: Raw) -> Raw:
    return {
        "layer_types": _types(file, raw, "conv"),
        "conv_L_cache": needed(file, "shortconv.l_cache"),
        "conv_bias": _biased(file, raw, "shortconv.conv"),
        "block_auto_adjust_ff_dim": False,
        "tie_embedding": raw["tie_word_embeddings"],
    }


def lfm2_moe(file: Metadata, raw: Raw) -> Raw:
    return {
        "num_dense_layers": (dense := file.value("leading_dense_block_count", 0)),
        "use_expert_bias": file.has(f"blk.{dense}.exp_probs_b.bias"),
        "routed_scaling_factor": file.value("expert_weights_scale") or 1.0,
    }


def mamba2(file: Metadata, raw: Raw) -> Raw:
    heads = needed(file, "ssm.time_step_rank")
    return {
        "num_heads": heads,
        "head_dim": _part(file, "ssm.inner_size", "ssm.time_step_rank", heads),
        "expand": _part(file, "ssm.inner_size", "embedding_length", raw["hidden_size"]),
        "n_groups": needed(file, "ssm.group_count"),
        "state_size": needed(file, "ssm.state_size"),
        "conv_kernel": needed(file, "ssm.conv_kernel"),
        "use_conv_bias": _biased(file, raw, "ssm_conv1d"),
        "use_bias": _biased(file, raw, "ssm_in"),
    }


def granite(file: Metadata, raw: Raw) -> Raw:
    """Granite 4; llama.cpp keeps under a key of rotary scaling whether there are rotary positions at all."""
    made = {
        **_mamba(file, raw),
        "layer_types": _types(file, raw, "mamba"),
        "mamba_expand": _part(file, "ssm.inner_size", "embedding_length", raw["hidden_size"]),
        "position_embedding_type": "rope" if file.value("rope.scaling.finetuned", True) else "nope",
        "shared_intermediate_size": file.value("expert_shared_feed_forward_length") or raw["intermediate_size"],
        "num_local_experts": file.value("expert_count", 0),
    }
    return made | ({"num_experts_per_tok": needed(file, "expert_used_count")} if made["num_local_experts"] else {})


def granite_names(file: Metadata, family: Family) -> Family:
    """The feed-forward of all tokens is a shared expert only where there are experts."""
    parts = {"gate_up": ("gate", "up"), "down": ("down",)}
    own = {
        f"layers.{{i}}.feed.{ours}.weight": tuple(f"blk.{{i}}.ffn_{part}{theirs}.weight" for part in parts[made])
        for made in parts
        for ours, theirs in ((made, ""), (f"shared.{made}", "_shexp"))
    }
    return replace(family, names={**family.names, **own})


def falcon_h1(file: Metadata, raw: Raw) -> Raw:
    return {
        **_mamba(file, raw),
        "mamba_d_ssm": needed(file, "ssm.inner_size"),
        "mamba_rms_norm": file.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _biased(file, raw, "ssm_out"),
    }


def nemotron_h(file: Metadata, raw: Raw) -> Raw:
    heads = needed(file, "ssm.time_step_rank")
    feeds = file.array(INNER) or [raw["intermediate_size"]] * raw["num_hidden_layers"]
    types = _types(file, raw, "mamba")
    mixed = [file.has(f"blk.{layer}.ffn_up_exps.weight") for layer in range(len(types))]
    kinds = [
        "moe" if mixes else "mlp" if inner else kind for kind, inner, mixes in zip(types, feeds, mixed, strict=False)
    ]
    return {
        **(_nemotron_experts(file) if any(mixed) else {}),
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": _part(file, "ssm.inner_size", "ssm.time_step_rank", heads),
        "n_groups": needed(file, "ssm.group_count"),
        "ssm_state_size": needed(file, "ssm.state_size"),
        "conv_kernel": needed(file, "ssm.conv_kernel"),
        "use_conv_bias": _biased(file, raw, "ssm_conv1d"),
        "use_bias": _biased(file, raw, "ssm_in"),
        "attention_bias": _biased(file, raw, "attn_q"),
        "mlp_bias": _biased(file, raw, "ffn_down"),
        "time_step_min": 0.0,  # llama.cpp knows no least step
    }


def _nemotron_experts(file: Metadata) -> Raw:
    file.value("expert_shared_count"), file.value("expert_gating_func")  # one, of sigmoids
    return {
        "n_routed_experts": needed(file, "expert_count"),
        "num_experts_per_tok": needed(file, "expert_used_count"),
        "moe_intermediate_size": needed(file, "expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": needed(file, "expert_shared_feed_forward_length"),
        "norm_topk_prob": file.value("expert_weights_norm", True),
        "routed_scaling_factor": file.value("expert_weights_scale") or 1.0,
        "n_group": file.value("expert_group_count") or 1,
        "topk_group": file.value("expert_group_used_count") or 1,
    }


def _mamba(file: Metadata, raw: Raw) -> Raw:
    return {
        "attention_bias": _biased(file, raw, "attn_q"),
        "mamba_conv_bias": _biased(file, raw, "ssm_conv1d"),
        "mamba_proj_bias": _biased(file, raw, "ssm_in"),
        "mamba_n_heads": needed(file, "ssm.time_step_rank"),
        "mamba_n_groups": file.value("ssm.group_count") or 1,
        "mamba_d_state": needed(file, "ssm.state_size"),
        "mamba_d_conv": needed(file, "ssm.conv_kernel"),
    }


def _types(file: Metadata, raw: Raw, recurrent: str) -> list[str]:
    """The types of layers, of which those without heads of keys and values are recurrent."""
    layers = raw["num_hidden_layers"]
    heads = file.array(KV_HEADS) or [raw["num_key_value_heads"]] * layers
    if len(heads) != layers:
        raise ModelError(f"{KV_HEADS} has {len(heads)} values for {layers} layers; convert the model again")
    return ["attention" if count else recurrent for count in heads]


def _biased(file: Metadata, raw: Raw, name: str) -> bool:
    """Whether a matrix, which not every layer has, has a bias."""
    return any(file.has(f"blk.{layer}.{name}.bias") for layer in range(raw["num_hidden_layers"]))


def _part(file: Metadata, key: str, by: str, count: int) -> int:
    """A size divided by another, without rest."""
    whole = needed(file, key)
    if whole % count:
        raise ModelError(f"{key} is {whole}, which is no multiple of {by} ({count}); convert the model again")
    return whole // count
