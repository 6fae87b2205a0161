"""Recurrent layers as llama.cpp's converter writes them: tensors in its order and shape, multipliers in the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ARCHITECTURES = {
    **{"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next"},
    **{"granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "lfm2_moe": "lfm2moe"},
}
RECURRENT = ("mamba", "linear_attention", "conv", "mlp", "moe")  # layer types without keys and values


def tensors(raw: Mapping[str, Any], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors; those of other families as they are."""
    kind = raw["model_type"]
    if kind not in ARCHITECTURES and kind not in ("lfm2", "nemotron_h", "mamba2"):
        return dict(stored)
    made: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        for new, part in _named(raw, name, _multiplied(raw, name, tensor)).items():
            made[new] = _shaped(raw, name, part)
    return made


def _named(raw: Mapping[str, Any], name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors that one becomes, before their shapes change."""
    if "shared_mlp" in name:
        layer, end = f"blk.{name.split('.')[2]}.ffn", "_shexp" if raw["num_local_experts"] else ""
        if "output" in name:
            return {f"{layer}_down{end}.weight": tensor}
        return {f"{layer}_{part}{end}.weight": half for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True)}
    if "in_proj_qkvz" in name:
        heads = raw["linear_num_key_heads"]
        inner = raw["linear_num_value_heads"] // heads * raw["linear_value_head_dim"]
        sizes = [raw["linear_key_head_dim"]] * 2 + [inner] * 2
        *qkv, gate = (part.flatten(0, 1) for part in tensor.view(heads, sum(sizes), -1).split(sizes, 1))
        layer = f"blk.{name.split('.')[2]}"
        return {f"{layer}.attn_qkv.weight": torch.cat(qkv), f"{layer}.attn_gate.weight": gate}
    return {name: tensor}


def _shaped(raw: Mapping[str, Any], name: str, tensor: Tensor) -> Tensor:
    if name.endswith("A_log"):
        tensor = -tensor.exp()
    if raw["model_type"].startswith("qwen3_5") and ".linear_attn." in name:
        tensor = _tiled(raw, name, tensor)
    if "conv1d.weight" in name or "conv.conv.weight" in name:
        return tensor.squeeze(1)
    mamba = "mamba" in name or "backbone" in name
    if mamba and name.endswith(("A_log", ".D")):
        return tensor[:, None]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return tensor.view(raw.get("mamba_n_groups") or raw.get("n_groups"), -1)
    return tensor


def _tiled(raw: Mapping[str, Any], name: str, tensor: Tensor) -> Tensor:
    """Value heads that share a key one round of all keys after the other."""
    keys, dim = raw["linear_num_key_heads"], raw["linear_value_head_dim"]
    if name.endswith(("linear_attn.norm.weight", "conv1d.bias")):
        return tensor
    if name.endswith("out_proj.weight"):
        return _turned(tensor.T, keys, dim).T.contiguous()
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        before = 2 * keys * raw["linear_key_head_dim"]
        return torch.cat((tensor[:before], _turned(tensor[before:], keys, dim)))
    return _turned(tensor, keys, dim if name.endswith("in_proj_z.weight") else 1)


def _turned(rows: Tensor, keys: int, dim: int) -> Tensor:
    return rows.reshape(keys, -1, dim, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def _multiplied(raw: Mapping[str, Any], name: str, tensor: Tensor) -> Tensor:
    """Falcon-H1's tensors with the multipliers that belong to them."""
    if raw["model_type"] != "falcon_h1":
        return tensor
    into, (gate, down) = raw["attention_in_multiplier"], raw["mlp_multipliers"]
    factors = {
        **{"q_proj": into, "k_proj": into * raw["key_multiplier"], "v_proj": into},
        **{"o_proj": raw["attention_out_multiplier"], "gate_proj": gate, "down_proj": down},
        **{"out_proj": raw["ssm_out_multiplier"], "lm_head": raw["lm_head_multiplier"]},
        "embed_tokens": raw["embedding_multiplier"],
    }
    keys = raw["mamba_n_groups"] * raw["mamba_d_state"]
    counts = torch.tensor([raw["mamba_d_ssm"], raw["mamba_d_ssm"], keys, keys, raw["mamba_n_heads"]])
    if name.endswith("mamba.in_proj.weight"):
        scales = raw["ssm_in_multiplier"] * torch.tensor(raw["ssm_multipliers"])
        return tensor * scales.repeat_interleave(counts)[:, None]
    factor = next((factor for key, factor in factors.items() if f".{key}." in f".{name}"), 1.0)
    return tensor * factor


def metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of recurrent layers; none for other families."""
    kind = raw["model_type"]
    if kind.startswith(("qwen3_5", "qwen3_next")):
        heads = raw["linear_num_value_heads"]
        return {
            "ssm.conv_kernel": raw["linear_conv_kernel_dim"],
            "ssm.state_size": raw["linear_key_head_dim"],
            "ssm.group_count": raw["linear_num_key_heads"],
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * raw["linear_value_head_dim"],
            "full_attention_interval": raw["layer_types"].index("full_attention") + 1,
        }
    if kind == "mamba2":
        sizes = [raw[key] for key in ("conv_kernel", "state_size", "n_groups", "num_heads", "head_dim")]
        without = dict.fromkeys(("attention.key_length", "attention.value_length", "attention.layer_norm_epsilon"))
        return {
            **_state_space(*sizes),
            **without,
            **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "feed_forward_length"), 0),
            "attention.layer_norm_rms_epsilon": raw["layer_norm_epsilon"],
        }
    heads = raw.get("num_key_value_heads")
    if kind == "lfm2_moe":
        layers = _some("attention.head_count_kv", heads, raw["layer_types"])
        epsilon = {"attention.layer_norm_rms_epsilon": raw["norm_eps"], "attention.layer_norm_epsilon": None}
        return {"shortconv.l_cache": raw["conv_L_cache"], **layers, **epsilon}
    if kind == "lfm2":
        inner = raw["intermediate_size"]
        if raw["block_auto_adjust_ff_dim"]:
            of = raw["block_multiple_of"]
            inner = -(-int(raw["block_ffn_dim_multiplier"] * int(2 * inner / 3)) // of) * of
        layers = _some("attention.head_count_kv", heads, raw["layer_types"])
        epsilon = {"attention.layer_norm_rms_epsilon": raw["norm_eps"]}
        return {"shortconv.l_cache": raw["conv_L_cache"], "feed_forward_length": inner, **layers, **epsilon}
    if kind == "nemotron_h":
        types = raw["layers_block_type"]
        inner = raw["moe_intermediate_size"] if "moe" in types else raw["intermediate_size"]
        feeds = [inner if each in ("mlp", "moe") else 0 for each in types]
        return {
            **(_nemotron_experts(raw) if "moe" in types else {}),
            "block_count": len(types),
            "feed_forward_length": feeds,
            **_some("attention.head_count_kv", heads, types),
            **_state_space(
                raw["conv_kernel"],
                raw["ssm_state_size"],
                raw["n_groups"],
                raw["mamba_num_heads"],
                raw["mamba_head_dim"],
            ),
        }
    if kind not in ("granitemoehybrid", "falcon_h1"):
        return {}
    sizes = [raw[f"mamba_{x}"] for x in ("d_conv", "d_state", "n_groups", "n_heads", "d_head")]
    if kind == "falcon_h1":
        return _state_space(*sizes)
    return {
        **_some("attention.head_count_kv", heads, raw["layer_types"]),
        **_state_space(*sizes),
        "rope.scaling.finetuned": raw["position_embedding_type"] == "rope",
        "expert_shared_feed_forward_length": raw["shared_intermediate_size"],
    }


def _nemotron_experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        **{"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok"},
        **{"expert_feed_forward_length": "moe_intermediate_size", "expert_weights_norm": "norm_topk_prob"},
        **{"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"},
        **{"expert_shared_count": "n_shared_experts", "expert_weights_scale": "routed_scaling_factor"},
        **{"expert_group_count": "n_group", "expert_group_used_count": "topk_group"},
    }
    return {key: raw[name] for key, name in names.items()}


def sizes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that a model without attention lacks."""
    if raw["model_type"] != "mamba2":
        return {}
    return {"num_attention_heads": 1, "intermediate_size": 1, "max_position_embeddings": 1 << 20}


def _some(key: str, value: int, types: list[str]) -> dict[str, Any]:
    return {key: [0 if kind in RECURRENT else value for kind in types]}


def _state_space(kernel: int, state: int, groups: int, heads: int, dim: int) -> dict[str, Any]:
    sizes = {"conv_kernel": kernel, "state_size": state, "group_count": groups, "time_step_rank": heads}
    return {f"ssm.{key}": value for key, value in {**sizes, "inner_size": heads * dim}.items()}
