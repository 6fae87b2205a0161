"""Gemma 2 to 4 in GGUF files: what the metadata say, and names that the format's table does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.gguf_experts import mixture
from draftwood.models.checkpoints.gguf_metadata import FULL, SLIDING, Metadata, Reader, renamed, windows
from draftwood.util.safe_parsing import short_repr

STILL = 1e29  # divisors of frequencies from here on are of pairs that are not rotated


def gemma(layers_of_27b: int, every: int, default: int) -> Reader:
    """Gemma 2 and 3; the attention of the largest ones has a scale of its own."""

    def read(file: Metadata, raw: Raw) -> Raw:
        largest = raw["num_hidden_layers"] == layers_of_27b
        made = windows(every, default)(file, raw)
        made |= renamed(**{key: key for key in ("attn_logit_softcapping", "final_logit_softcapping")})(file, raw)
        made["query_pre_attn_scalar"] = raw["hidden_size"] // raw["num_attention_heads"] if largest else raw["head_dim"]
        if every == 6:
            local = {"rope_theta": file.value("rope.freq_base_swa", 10000.0)}
            made["rope_parameters"] = {FULL: raw["rope_parameters"], SLIDING: local}
        return {key: value for key, value in made.items() if value or "softcap" not in key}

    return read


def gemma3n(file: Metadata, raw: Raw) -> Raw:
    made = windows(5, 512)(file, raw)
    rope = {FULL: raw["rope_parameters"], SLIDING: {"rope_theta": file.value("rope.freq_base_swa", 10000.0)}}
    return made | {
        "intermediate_size": file.array("feed_forward_length") or raw["intermediate_size"],
        "rope_parameters": rope,
        "final_logit_softcapping": file.value("final_logit_softcapping", 30.0),
        "activation_sparsity_scale": file.array("activation_sparsity_scale") or None,  # instead of shares
        "altup_active_idx": file.value("altup.active_idx", 0),
        "altup_num_inputs": file.value("altup.num_inputs", 4),
        "laurel_rank": file.shape("blk.0.laurel_l.weight")[0][0],
        "hidden_size_per_layer_input": file.value("embedding_length_per_layer_input", 256),
        "vocab_size_per_layer_input": file.shape("per_layer_token_embd.weight")[0][0],
        "num_kv_shared_layers": file.value("attention.shared_kv_layers", 15),
    }


def gemma3n_names(file: Metadata, family: Family) -> Family:
    """Matrices for each vector of a row but the first are one tensor."""
    parts = {"into": "altup_proj", "back": "altup_unembd_proj"}
    names = dict(family.names)
    for key in names:
        stack, _, number = key.removeprefix("streams.").removesuffix(".weight").partition(".")
        if key.startswith("streams."):
            names[key] = (f"{parts[stack]}.weight[{number}]",)
        if key == "layers.{i}.altup.scale":
            names[key] = ("blk.{i}.altup_correct_scale.weight",)
    return replace(family, names=names)


def gemma4(file: Metadata, raw: Raw) -> Raw:
    """Sizes of heads and feed-forwards differ from layer to layer; a head's is that of layers without a window."""
    made = windows(6, 512)(file, raw) | renamed(final_logit_softcapping="final_logit_softcapping")(file, raw)
    types, layers, whole = made["layer_types"], raw["num_hidden_layers"], raw["head_dim"]
    head, shared = file.value("attention.key_length_swa", whole), file.value("attention.shared_kv_layers", 0)
    sizes = {"attention.value_length_swa": head, "rope.dimension_count_swa": head, "rope.dimension_count": whole}
    for key, size in sizes.items():
        if file.value(key, size) != size:
            raise ModelError(f"{key} is {short_repr(file.value(key))}, but only {size} fits; convert the model again")
    heads = file.array("attention.head_count_kv") or [raw["num_key_value_heads"]] * layers
    own = {"head_dim": whole, "num_key_value_heads": _one_size(heads, types, FULL)}
    full = [number for number, kind in enumerate(types) if kind == FULL]
    made |= {
        "head_dim": head,
        "num_key_value_heads": _one_size(heads, types, SLIDING) if SLIDING in types else own["num_key_value_heads"],
        "per_layer_config": {str(number): own for number in full},
        "attention_k_eq_v": bool(full) and not file.has(f"blk.{full[0]}.attn_v.weight"),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": _doubled(file.array("feed_forward_length"), shared),
        "hidden_size_per_layer_input": file.value("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": raw["vocab_size"],
        "rope_parameters": {
            FULL: _proportional(file, raw["rope_parameters"], whole),
            SLIDING: {"rope_theta": file.value("rope.freq_base_swa", 10000.0)},
        },
    }
    if not file.value("expert_count"):
        return made
    known = mixture(True, fixed=True)(file, raw)
    return made | known | {"enable_moe_block": True, "top_k_experts": known["num_experts_per_tok"]}


def gemma4_assistant(file: Metadata, raw: Raw) -> Raw:
    """As if its layers had keys and values of their own; `models.heads.assistant` has them read the target's."""
    own = {"num_kv_shared_layers": 0, "attention_k_eq_v": False, "tie_word_embeddings": True}
    return gemma4(file, raw) | own | {"backbone_hidden_size": file.value("embedding_length_out")}


def _one_size(sizes: Sequence[Any], types: Sequence[str], kind: str) -> int:
    """The size that all layers of one type have in an array of sizes."""
    fitting = {size for size, own in zip(sizes, types, strict=False) if own == kind}
    if len(fitting) != 1 or len(sizes) != len(types):
        raise ModelError(
            f"attention.head_count_kv is {short_repr(list(sizes))}, but must have a number for each of {len(types)} "
            f"layers, the same for all of {kind}; convert the model again"
        )
    size: int = fitting.pop()
    return size


def _doubled(sizes: Sequence[int], shared: int) -> bool:
    """Whether the feed-forwards of layers that read the keys of others are twice as wide as the others."""
    if len(set(sizes)) < 2:
        return False
    first = len(sizes) - shared
    if list(sizes) != [sizes[0]] * first + [2 * sizes[0]] * shared:
        raise ModelError(
            f"feed_forward_length is {short_repr(list(sizes))}, but only the last {shared} layers may differ, and be "
            "twice as wide; convert the model again"
        )
    return True


def _proportional(file: Metadata, rope: Raw, head: int) -> Raw:
    """Rotary positions of layers without a window: of pairs that keep still the divisors of frequencies are huge."""
    divisors = file.vector("rope_freqs.weight") if file.has("rope_freqs.weight") else [1.0] * (head // 2)
    count = sum(divisor == 1 for divisor in divisors)
    still = all(divisor > STILL for divisor in divisors[count:])
    if len(divisors) != head // 2 or rope["rope_type"] != "default" or not still or divisors[:count] != [1.0] * count:
        raise ModelError(
            "rope_freqs.weight or rope.scaling does not say which pairs of a head are rotated; convert the model again"
        )
    share = min(1.0, (2 * count + 0.5) / head)  # it is rounded down
    return {"rope_type": "proportional", "rope_theta": rope["rope_theta"], "partial_rotary_factor": share}


def gemma4_names(file: Metadata, family: Family) -> Family:
    layer = "blk.{i}."
    own = {
        "router_norm": f"{layer}ffn_gate_inp.scale",
        "expert_scale": f"{layer}ffn_down_exps.scale",
        "scalar": f"{layer}layer_output_scale.weight",
    }
    endings = {key: key.rpartition(".")[2] for key in family.names}
    names = {key: (own[ending],) for key, ending in endings.items() if ending in own}
    return replace(family, names={**family.names, **names})
