"""Mixtures of experts in GGUF files: what the metadata say of them, and the names of their tensors."""

from __future__ import annotations

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.gguf_metadata import Metadata, Reader
from draftwood.models.checkpoints.tensor_names import Names

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # expert_gating_func
EXPERTS = "layers.{i}.feed.experts.{e}."
DENSE_LAYERS = 8  # before the first with experts, at most


def mixture(normalised: bool, scoring: int = SOFTMAX, fixed: bool = False, one_size: bool = False) -> Reader:
    """Number, size and router of experts.

    `normalised`: whether weights are divided by their sum where the file does not say; `fixed`: the family knows no
    other way. `one_size`: the family's config has one word for all sizes of feed-forwards.
    """

    def read(file: Metadata, raw: Raw) -> Raw:
        count, chosen = file.value("expert_count"), file.value("expert_used_count")
        if not count or not chosen:
            raise ModelError(
                f"expert_count is {count} and expert_used_count {chosen}, but both must be positive whole numbers; "
                "convert the model again"
            )
        inner = file.value("expert_feed_forward_length") or raw["intermediate_size"]
        divided, gating = file.value("expert_weights_norm", normalised), file.value("expert_gating_func") or scoring
        if gating != scoring or (fixed and divided is not normalised):
            raise ModelError(
                f"expert_gating_func {gating} with expert_weights_norm {str(divided).lower()} is not supported for "
                "this architecture; convert the model again"
            )
        made = {
            "num_experts": count,
            "num_experts_per_tok": chosen,
            "moe_intermediate_size": inner,
            "norm_topk_prob": divided,
        }
        return made | ({"intermediate_size": inner} if one_size else {})

    return read


def shared(file: Metadata, raw: Raw) -> Raw:
    """Shared experts, dense layers, groups and scales of DeepSeek's kind of mixture."""
    return {
        "n_routed_experts": file.value("expert_count"),
        "n_shared_experts": file.value("expert_shared_count"),
        "routed_scaling_factor": file.value("expert_weights_scale") or 1.0,
        "n_group": file.value("expert_group_count") or 1,
        "topk_group": file.value("expert_group_used_count") or 1,
        "first_k_dense_replace": file.value("leading_dense_block_count", 0),
        **without_nextn(file, raw),
    }


def without_nextn(file: Metadata, raw: Raw) -> Raw:
    """Layers behind the last that only draft (multi-token prediction) are none of the model's."""
    return {"num_hidden_layers": raw["num_hidden_layers"] - (file.value("nextn_predict_layers") or 0)}


def stacked(file: Metadata, names: Names) -> Names:
    """A family's names with those of a file for experts: all of a layer are one tensor, gates apart in most files."""
    together = any(file.has(f"blk.{layer}.ffn_gate_up_exps.weight") for layer in range(DENSE_LAYERS))
    own = {
        f"{EXPERTS}{made}.{leaf}": tuple(f"blk.{{i}}.ffn_{part}_exps.{leaf}[{{e}}]" for part in parts)
        for made, parts in {
            **{"gate_up": ("gate_up",) if together else ("gate", "up")},
            **{"up": ("up",), "down": ("down",)},
        }.items()
        for leaf in ("weight", "bias")
    }
    return {**names, **{name: parts for name, parts in own.items() if name in names}}
