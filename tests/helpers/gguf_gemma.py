"""Gemma 3n and 4 as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

NAMES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
NAMES |= {"altup.correct_output_scale": "altup_correct_scale.weight"}
NAMES |= {"layer_scalar": "layer_output_scale.weight"}
NAMES |= {f"experts.{part}_proj": f"ffn_{part}_exps.weight" for part in ("gate_up", "down")}


def name(theirs: str) -> str:
    """The file's name of a tensor that the format's table does not know; others as they are."""
    _, found, inner = theirs.partition("model.layers.")
    layer, _, part = inner.partition(".")
    return f"blk.{layer}.{NAMES[part]}" if found and part in NAMES else theirs


def metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that differ from other families; none of other families."""
    if raw["model_type"] == "gemma3n_text":
        normal = torch.distributions.Normal(0, 1)
        return {
            **{f"altup.{key}": raw[f"altup_{key}"] for key in ("active_idx", "num_inputs")},
            "embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
            "attention.shared_kv_layers": raw["num_kv_shared_layers"],
            "activation_sparsity_scale": normal.icdf(torch.tensor(raw["activation_sparsity_pattern"])).tolist(),
            "attention.sliding_window": raw["sliding_window"],
            "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in raw["layer_types"]],
        }
    if raw["model_type"] != "gemma4_text":
        return {}
    layers, shared = raw["num_hidden_layers"], raw["num_kv_shared_layers"]
    sliding = [kind == "sliding_attention" for kind in raw["layer_types"]]
    full = next(iter(raw["per_layer_config"].values()))
    inner, heads = raw["intermediate_size"], raw["num_key_value_heads"]
    values = {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
        "attention.sliding_window": raw["sliding_window"],
        "attention.sliding_window_pattern": sliding,
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), full["head_dim"]),
        **{key: raw["head_dim"] for key in ("attention.key_length_swa", "attention.value_length_swa")},
        "rope.dimension_count_swa": raw["head_dim"],
    }
    if raw["use_double_wide_mlp"]:
        values["feed_forward_length"] = [inner * (1 + (layer >= layers - shared)) for layer in range(layers)]
    if "num_key_value_heads" in full:
        values["attention.head_count_kv"] = [heads if each else full["num_key_value_heads"] for each in sliding]
    if raw["enable_moe_block"]:
        values["expert_used_count"] = raw["top_k_experts"]
    return values


def stacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with Gemma 3n's matrices of each vector of a row together; those of other families as they are."""
    made = {name: tensor for name, tensor in tensors.items() if not name.startswith("model.altup_")}
    for part, own in (("projections", "altup_proj"), ("unembed_projections", "altup_unembd_proj")):
        some = [tensor for name, tensor in sorted(tensors.items()) if name.startswith(f"model.altup_{part}.")]
        if some:
            made[f"{own}.weight"] = torch.stack(some)
    return made


def tensors(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Divisors of frequencies, huge for pairs that are not rotated; none of other families."""
    if raw["model_type"] != "gemma4_text":
        return {}
    head = next(iter(raw["per_layer_config"].values()))["head_dim"]
    share = raw["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    rotated = int(head * share / 2)
    return {"rope_freqs.weight": np.float32([1.0] * rotated + [1e30] * (head // 2 - rotated))}
