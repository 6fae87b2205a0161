"""Mixtures of experts as llama.cpp's converter writes them: a tensor for all experts of a layer, and their metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
ONE = re.compile(
    r"(?:model|backbone)\.layers\.(\d+)\.(?:mlp|block_sparse_moe|mixer|feed_forward)\.experts\.\d+\.(\w+)\.weight"
)  # in order of numbers
BOTH = re.compile(
    r"model\.layers\.(\d+)\.(?:(?:mlp|feed_forward)\.experts|block_sparse_moe)\.(\w+?)(?:\.weight|(_bias))?"
)
ARCHITECTURES = {
    **{"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"},
    **{"ernie4_5_moe": "ernie4_5-moe", "glm4_moe": "glm4moe", "gpt_oss": "gpt-oss"},
    **{"minimax_m2": "minimax-m2", "hunyuan_v1_moe": "hunyuan-moe"},
}


def tensors(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors with those of experts under the format's names, others under names that its map knows."""
    made: dict[str, torch.Tensor] = {}
    parts: dict[str, list[torch.Tensor]] = {}
    for name in sorted(stored, key=lambda name: [int(part) if part.isdecimal() else 0 for part in name.split(".")]):
        tensor = stored[name]
        if found := ONE.fullmatch(name):
            parts.setdefault(f"blk.{found[1]}.ffn_{PARTS[found[2]]}_exps.weight", []).append(tensor)
        elif (found := BOTH.fullmatch(name)) and found[2] in ("input_linear", "output_linear"):  # Granite
            made |= _split(f"blk.{found[1]}", found[2] == "input_linear", "weight", tensor.chunk(2, 1), tensor)
        elif found and ".feed_forward." in name:  # Llama 4: [in, out], gates, then ups
            rows = tensor.mT
            made |= _split(f"blk.{found[1]}", "gate" in found[2], "weight", rows.chunk(2, 1), rows)
        elif found and found[2] in ("gate_up_proj", "down_proj"):  # gpt-oss: [in, out], gate and up by turns
            rows = tensor if found[3] else tensor.mT
            halves = (rows[:, ::2], rows[:, 1::2])
            made |= _split(f"blk.{found[1]}", "gate" in found[2], "bias" if found[3] else "weight", halves, rows)
        elif name.endswith(("shared_expert_gate.weight", "moe_statics.e_score_correction_bias")):
            made[name.replace("correction_bias", "correction.bias")] = tensor[0]
        else:
            name = name.replace("correction_bias", "correction.bias").replace(".expert_bias", ".expert_bias.bias")
            made[name + ".weight" * name.endswith("sinks")] = tensor
    return made | {name: torch.stack(some) for name, some in parts.items()}


def _split(layer: str, both: bool, leaf: str, halves: Any, whole: torch.Tensor) -> dict[str, torch.Tensor]:
    if not both:
        return {f"{layer}.ffn_down_exps.{leaf}": whole}
    return {f"{layer}.ffn_{part}_exps.{leaf}": half for part, half in zip(("gate", "up"), halves, strict=True)}


def metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a mixture; none for a dense model."""
    count = (
        raw.get("num_experts")
        or raw.get("num_local_experts")
        or raw.get("n_routed_experts")
        or raw.get("moe_num_experts")
    )
    if not count or raw["model_type"] == "nemotron_h":
        return {}
    values = {
        "expert_count": count,
        "expert_used_count": raw.get("num_experts_per_tok", raw.get("moe_k", raw.get("moe_topk"))),
        "expert_feed_forward_length": raw.get("moe_intermediate_size", raw["intermediate_size"]),
        "expert_shared_feed_forward_length": raw.get("shared_expert_intermediate_size"),
    }
    if raw["model_type"] == "ernie4_5_moe":
        values |= {
            "expert_shared_count": raw["moe_num_shared_experts"],
            "expert_shared_feed_forward_length": raw["moe_num_shared_experts"] * raw["moe_intermediate_size"],
            "leading_dense_block_count": raw["moe_layer_start_index"],
            "interleave_moe_layer_step": raw["moe_layer_interval"],
        }
    if raw["model_type"] == "llama4_text":
        values |= {"expert_feed_forward_length": raw["intermediate_size"]}
        values |= {"feed_forward_length": raw["intermediate_size_mlp"]}
        values |= {"interleave_moe_layer_step": raw["interleave_moe_layer_step"]}
    if raw["model_type"] == "minimax_m2":
        values |= {"expert_gating_func": 2, "rope.dimension_count": raw["rotary_dim"]}
    if raw["model_type"] == "hunyuan_v1_moe":
        values |= {"expert_shared_count": 1, "expert_shared_feed_forward_length": raw["intermediate_size"]}
    if raw["model_type"] == "lfm2_moe":
        values |= {"expert_gating_func": 2, "leading_dense_block_count": raw["num_dense_layers"]}
    if raw["model_type"] in ("glm4_moe", "dots1", "deepseek_v2", "deepseek_v3"):
        values |= {
            "expert_gating_func": 1 if raw["model_type"] == "deepseek_v2" else 2,
            "expert_weights_norm": raw["norm_topk_prob"],
            "expert_weights_scale": raw["routed_scaling_factor"],
            "expert_shared_count": raw["n_shared_experts"],
            "expert_group_count": raw["n_group"],
            "expert_group_used_count": raw["topk_group"],
            "leading_dense_block_count": raw["first_k_dense_replace"],
        }
    return {key: value for key, value in values.items() if value is not None}
