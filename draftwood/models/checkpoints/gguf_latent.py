"""Latent attention in GGUF files: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash and dense models like these.

llama.cpp keeps latents and not the keys made of them, so newer files have the matrix that makes a head's keys turned
round, and sizes of what it keeps under the usual keys; older ones have keys and values of all heads in one matrix.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.gguf_experts import DENSE_LAYERS, SIGMOID, SOFTMAX, mixture, shared
from draftwood.models.checkpoints.gguf_metadata import Metadata, needed

KV_UP = "layers.{i}.mixer.kv_up.weight"
LOG_SHARE = 0.1  # of "mscale_all_dim" that is in yarn_log_multiplier


def latent(file: Metadata, raw: Raw) -> Raw:
    keys, turned = _size(file, "key"), needed(file, "rope.dimension_count")
    rope: dict[str, Any] = {**raw["rope_parameters"]}
    rope.pop("partial_rotary_factor", None)
    if rope["rope_type"] == "yarn":
        overall = file.value("rope.scaling.yarn_log_multiplier", 0.0) / LOG_SHARE
        # the authors divide by the same growth that they multiply by, unless there is none overall
        grown = 1.0 if overall else 1 + 0.1 * math.log(max(1.0, rope["factor"]))
        rope |= {"mscale_all_dim": overall or None, "attention_factor": grown}
    made = {
        "kv_lora_rank": needed(file, "attention.kv_lora_rank"),
        "q_lora_rank": file.value("attention.q_lora_rank") or None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": keys - turned,
        "v_head_dim": _size(file, "value"),
        "head_dim": keys,
        "num_key_value_heads": raw["num_attention_heads"],
        "attention_bias": file.has("blk.0.attn_q_a.bias"),
        "rope_parameters": rope,
    }
    return made | _feeds(file, raw)


def _size(file: Metadata, which: str) -> int:
    """Components of a head's keys or values, as they are made of a latent."""
    key = f"attention.{which}_length"
    return needed(file, f"{key}_mla" if file.value(f"{key}_mla") else key)


def _feeds(file: Metadata, raw: Raw) -> Raw:
    """The family by its feed-forwards, and what it says of experts."""
    if not file.value("expert_count"):
        for key in ("expert_shared_count", "expert_feed_forward_length", "leading_dense_block_count"):
            file.value(key)  # which say nothing without experts
        return {"model_type": "youtu"}
    biased = any(file.has(f"blk.{layer}.exp_probs_b.bias") for layer in range(DENSE_LAYERS))
    scoring = file.value("expert_gating_func") or (SIGMOID if biased else SOFTMAX)
    made = {**mixture(False, scoring)(file, raw), **shared(file, raw)}
    if scoring == SIGMOID:
        return {**made, "model_type": "deepseek_v3"}
    method = "group_limited_greedy" if made["n_group"] > 1 else "greedy"
    return {**made, "model_type": "deepseek_v2", "topk_method": method}


def latent_names(file: Metadata, family: Family) -> Family:
    """Newer files have the rows of all heads' keys, then of all values, as the decoder has them."""
    if not file.has("blk.0.attn_k_b.weight"):
        return family
    orders = {name: order for name, order in family.orders.items() if name != KV_UP}
    parts = tuple(f"blk.{{i}}.attn_{part}_b.weight" for part in "kv")
    return replace(family, names={**family.names, KV_UP: parts}, orders=orders)
