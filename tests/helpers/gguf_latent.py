"""Latent attention as llama.cpp's converter writes it: heads' keys turned round, sizes of what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

KINDS = ("deepseek_v2", "deepseek_v3", "youtu")
ARCHITECTURES = dict.fromkeys(KINDS, "deepseek2")


def tensors(raw: Mapping[str, Any], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors; those of other families as they are."""
    made: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if raw["model_type"] not in KINDS or not name.endswith("kv_b_proj.weight"):
            made[name] = tensor
            continue
        own, layer = raw["qk_nope_head_dim"], f"blk.{name.split('.')[2]}"
        heads = tensor.view(raw["num_attention_heads"], -1, raw["kv_lora_rank"])
        made[f"{layer}.attn_k_b.weight"] = heads[:, :own].mT.contiguous()
        made[f"{layer}.attn_v_b.weight"] = heads[:, own:].contiguous()
    return made


def metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that differ from other families; none of other families."""
    if raw["model_type"] not in KINDS:
        return {}
    rank, turned = raw["kv_lora_rank"], raw["qk_rope_head_dim"]
    overall = raw["rope_parameters"].get("mscale_all_dim")
    dense = {"expert_shared_count": 0, "expert_feed_forward_length": raw["intermediate_size"]}
    dense["leading_dense_block_count"] = raw["num_hidden_layers"]
    return {
        **(dense if raw["model_type"] == "youtu" else {}),
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": raw["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": raw["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": raw["v_head_dim"],
        "rope.dimension_count": turned,
        "rope.scaling.yarn_log_multiplier": overall and 0.1 * overall,
    }
