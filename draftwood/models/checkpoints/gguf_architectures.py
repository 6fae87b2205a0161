"""The architectures of GGUF files: the family of each, and what its metadata says beside sizes and rotary settings.

What a file leaves out is what llama.cpp takes it for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from draftwood.errors import ModelError
from draftwood.models.checkpoints import gguf_hybrids as hybrids
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.gguf_experts import SIGMOID, SOFTMAX_OF_CHOSEN, mixture, shared, without_nextn
from draftwood.models.checkpoints.gguf_gemma import (
    gemma,
    gemma3n,
    gemma3n_names,
    gemma4,
    gemma4_assistant,
    gemma4_names,
)
from draftwood.models.checkpoints.gguf_latent import latent, latent_names
from draftwood.models.checkpoints.gguf_metadata import FULL, SLIDING, Metadata, Reader, renamed, windows


def nothing(file: Metadata, raw: Raw) -> Raw:
    """Metadata beside sizes and rotary settings that an architecture does not have."""
    return {}


def as_in_checkpoints(file: Metadata, family: Family) -> Family:
    """Tensors as the family's checkpoints have them."""
    return family


def plain_rows(file: Metadata, family: Family) -> Family:
    """llama.cpp's converter has put rows in the decoder's order, which is not the checkpoints'."""
    return replace(family, transposed=frozenset(), orders={})


@dataclass(frozen=True)
class Architecture:
    """One architecture: its family and how its metadata becomes config.json.

    `attends`: False in models without attention and feed-forwards, which have no such sizes. `turned_pairs`:
    llama.cpp's converter has put the rows of queries and keys, whose halves are rotated together, in
    pairs of neighbours. `offset_norms`: it has added 1 to the norms that multiply by 1 + weight. `hybrid`: layers may
    lack attention or a feed-forward, and have 0 in the arrays of sizes. `by_layer`: sizes differ from layer
    to layer; the first one's are read as those of all. `adapt`: what else it has done to tensors. `names`: the
    architecture whose tensors are called alike, where older versions of the format's package lack this one.
    """

    family: str
    read: Reader = nothing
    attends: bool = True
    turned_pairs: bool = False
    offset_norms: bool = False
    hybrid: bool = False
    by_layer: bool = False
    adapt: Callable[[Metadata, Family], Family] = as_in_checkpoints
    names: str | None = None


def _all(*readers: Reader) -> Reader:
    def read(file: Metadata, raw: Raw) -> Raw:
        made: dict[str, Any] = {}
        for reader in readers:
            made |= reader(file, {**raw, **made})
        return made

    return read


def _ministral3(file: Metadata, raw: Raw) -> Raw:
    beta = file.value("attention.temperature_scale", 0.0)
    return {"rope_parameters": {**raw["rope_parameters"], "llama_4_scaling_beta": beta}}


def _phi3(file: Metadata, raw: Raw) -> Raw:
    return {**raw["rope_parameters"], "sliding_window": file.value("attention.sliding_window") or None}


def _olmo2(file: Metadata, raw: Raw) -> Raw:
    """OLMo 3 is OLMo 2 with windows, whose layers' rotary positions are not scaled."""
    if not file.value("attention.sliding_window"):
        return {}
    local = {"rope_theta": file.value("rope.freq_base_swa", raw["rope_parameters"]["rope_theta"])}
    rope = {FULL: raw["rope_parameters"], SLIDING: local}
    return {"model_type": "olmo3", "rope_parameters": rope, **windows(4)(file, raw)}


def _normed_heads(key: str) -> Reader:
    """Whether each head's queries and keys have norms."""
    return lambda file, raw: {key: file.has("blk.0.attn_q_norm.weight")}


def _stablelm(file: Metadata, raw: Raw) -> Raw:
    file.value("use_parallel_residual")  # which may be wrong: llama.cpp goes by the norm
    return {"use_qkv_bias": raw["attention_bias"], "use_parallel_residual": not file.has("blk.0.ffn_norm.weight")}


def _falcon(file: Metadata, raw: Raw) -> Raw:
    norms = 2 if file.has("blk.0.attn_norm_2.weight") else 1
    sizes = {"num_kv_heads": raw["num_key_value_heads"], "ffn_hidden_size": raw["intermediate_size"]}
    return {**sizes, "new_decoder_architecture": True, "num_ln_in_parallel_attn": norms, "bias": raw["attention_bias"]}


def _starcoder(file: Metadata, raw: Raw) -> Raw:
    return {"n_inner": raw["intermediate_size"], "multi_query": raw["num_key_value_heads"] == 1}


def _granite(file: Metadata, raw: Raw) -> Raw:
    names = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale"}
    return renamed(**names, residual_multiplier="residual_scale", logits_scaling="logit_scale")(file, raw)


def _llama(file: Metadata, raw: Raw) -> Raw:
    """Llama and Mistral, and Mixtral where there are experts."""
    if not file.value("expert_count"):
        return {}
    return {"model_type": "mixtral", "sliding_window": None, **mixture(True, fixed=True, one_size=True)(file, raw)}


def _qwen2_moe(file: Metadata, raw: Raw) -> Raw:
    return {"shared_expert_intermediate_size": file.value("expert_shared_feed_forward_length", 5632)}


def _glm4_moe(file: Metadata, raw: Raw) -> Raw:
    return {"use_qk_norm": file.has("blk.0.attn_q_norm.weight")}


def _ernie4_5_moe(file: Metadata, raw: Raw) -> Raw:
    inner, shared = file.value("expert_feed_forward_length"), file.value("expert_shared_feed_forward_length") or 0
    return {
        "moe_num_shared_experts": file.value("expert_shared_count") or shared // (inner or 1),
        "moe_layer_start_index": file.value("leading_dense_block_count", 0),
        "moe_layer_interval": file.value("interleave_moe_layer_step", 1),
    }


def _dots1(file: Metadata, raw: Raw) -> Raw:
    return {**shared(file, raw), "sliding_window": None}  # llama.cpp knows no windows there


def _hunyuan_moe(file: Metadata, raw: Raw) -> Raw:
    file.value("expert_shared_feed_forward_length")  # as long as those of experts
    return {"moe_topk": raw["num_experts_per_tok"], "num_shared_expert": file.value("expert_shared_count") or 1}


def _llama4(file: Metadata, raw: Raw) -> Raw:
    """Keys that the file lacks are as in the published models; windows of 0 say that no layer is like theirs."""
    if file.value("attention.sliding_window") == 0:
        raise ModelError("attention.sliding_window is 0, so it is no Llama 4 as published; give another model")
    return {
        "intermediate_size_mlp": raw["intermediate_size"],
        "intermediate_size": raw["moe_intermediate_size"],
        "num_local_experts": raw["num_experts"],
        "interleave_moe_layer_step": file.value("interleave_moe_layer_step", 1),
        "use_qk_norm": raw["num_experts"] != 128,  # Scout has such norms, Maverick has not
    }


def _rows_apart(file: Metadata, family: Family) -> Family:
    """Experts' matrices lie as [out, in]."""
    return replace(family, transposed=frozenset())


def _phimoe(file: Metadata, raw: Raw) -> Raw:
    rope = raw["rope_parameters"]
    factors = dict.fromkeys(("short_mscale", "long_mscale"), rope.get("attention_factor"))
    return {**_phi3(file, raw), "rope_parameters": {**rope, **factors}, "lm_head_bias": file.has("output.bias")}


def _mpt(file: Metadata, raw: Raw) -> Raw:
    slope = file.value("attention.max_alibi_bias", 0.0)
    biases = {"alibi": slope > 0, "alibi_bias_max": slope, "clip_qkv": file.value("attention.clamp_kqv")}
    return {"max_seq_len": raw["max_position_embeddings"], "attn_config": biases}


def _apertus_names(file: Metadata, family: Family) -> Family:
    """The numbers of activations are in the metadata, those of all layers together."""
    own = {f"layers.{{i}}.feed.activation.{x}": (f"xielu.{x}[{{i}}]",) for x in ("alpha_p", "alpha_n", "beta", "eps")}
    return replace(family, names={**family.names, **own})


def _gpt_oss(file: Metadata, raw: Raw) -> Raw:
    window, rope = file.value("attention.sliding_window"), raw["rope_parameters"]
    return {"sliding_window": window, "rope_parameters": {**rope, "truncate": False}}  # as its authors have it


ARCHITECTURES = {
    "llama": Architecture("llama", _llama, turned_pairs=True),
    "mistral3": Architecture("ministral3", _ministral3, turned_pairs=True),
    **{name: Architecture(name) for name in ("qwen2", "qwen3", "seed_oss")},
    "gemma": Architecture("gemma", offset_norms=True),
    "qwen2vl": Architecture("qwen2_vl_text"),
    "qwen3vl": Architecture("qwen3_vl_text"),
    "phi3": Architecture("phi3", _phi3),
    "gemma2": Architecture("gemma2", gemma(46, 2, 4096), offset_norms=True),
    "gemma3": Architecture("gemma3_text", gemma(62, 6, 0), offset_norms=True),
    "gemma3n": Architecture("gemma3n_text", gemma3n, by_layer=True, adapt=gemma3n_names),
    "gemma4": Architecture("gemma4_text", gemma4, by_layer=True, adapt=gemma4_names),
    "gemma4-assistant": Architecture(
        "gemma4_text", gemma4_assistant, by_layer=True, adapt=gemma4_names, names="gemma4"
    ),
    "smollm3": Architecture("smollm3", turned_pairs=True),
    "olmo": Architecture("olmo", renamed(clip_qkv="attention.clamp_kqv"), turned_pairs=True),
    "olmo2": Architecture("olmo2", _olmo2),
    "granite": Architecture("granite", _granite, turned_pairs=True),
    "arcee": Architecture("arcee", turned_pairs=True),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "exaone4": Architecture("exaone4", windows(4)),
    "ernie4_5": Architecture("ernie4_5", lambda file, raw: {"use_bias": raw["attention_bias"]}),
    "chatglm": Architecture("glm"),
    "glm4": Architecture("glm4"),
    "command-r": Architecture("cohere", _all(renamed(logit_scale="logit_scale"), _normed_heads("use_qk_norm"))),
    "cohere2": Architecture("cohere2", _all(renamed(logit_scale="logit_scale"), windows(4, 4096))),
    "phi2": Architecture("phi"),
    "gptneox": Architecture("gpt_neox", renamed(use_parallel_residual="use_parallel_residual"), adapt=plain_rows),
    "starcoder2": Architecture("starcoder2", lambda file, raw: {"use_bias": raw["attention_bias"]}),
    "stablelm": Architecture("stablelm", _all(_stablelm, _normed_heads("qk_layernorm"))),
    "nemotron": Architecture("nemotron", offset_norms=True),
    "falcon": Architecture("falcon", _falcon, adapt=plain_rows),
    "starcoder": Architecture("gpt_bigcode", _starcoder, adapt=plain_rows),
    "internlm2": Architecture("llama", turned_pairs=True),
    "gpt2": Architecture("gpt2", lambda file, raw: {"n_inner": raw["intermediate_size"]}, adapt=plain_rows),
    "bloom": Architecture("bloom", lambda file, raw: {"seq_length": raw["max_position_embeddings"]}, adapt=plain_rows),
    "mpt": Architecture("mpt", _mpt),
    "apertus": Architecture("apertus", adapt=_apertus_names),
    "qwen2moe": Architecture("qwen2_moe", _all(mixture(False), _qwen2_moe)),
    "qwen3moe": Architecture("qwen3_moe", mixture(True)),
    "qwen3vlmoe": Architecture("qwen3_vl_moe_text", mixture(True, fixed=True), adapt=plain_rows),
    "olmoe": Architecture("olmoe", mixture(False, one_size=True)),
    "granitemoe": Architecture(
        "granitemoe", _all(mixture(True, fixed=True, one_size=True), _granite), turned_pairs=True
    ),
    "ernie4_5-moe": Architecture("ernie4_5_moe", _all(mixture(True, fixed=True), _ernie4_5_moe)),
    "glm4moe": Architecture("glm4_moe", _all(mixture(True, SIGMOID), shared, _glm4_moe)),
    "dots1": Architecture("dots1", _all(mixture(False, SIGMOID), _dots1)),
    "minimax-m2": Architecture("minimax_m2", mixture(True, SIGMOID, fixed=True, one_size=True)),
    "hunyuan-moe": Architecture("hunyuan_v1_moe", _all(mixture(True, fixed=True, one_size=True), _hunyuan_moe)),
    "llama4": Architecture("llama4_text", _all(mixture(False, SIGMOID, fixed=True), _llama4), adapt=_rows_apart),
    "phimoe": Architecture("phimoe", _all(mixture(True, fixed=True, one_size=True), _phimoe)),
    "deepseek2": Architecture("deepseek_v3", latent, adapt=latent_names),
    "gpt-oss": Architecture(
        "gpt_oss", _all(mixture(True, SOFTMAX_OF_CHOSEN, fixed=True, one_size=True), _gpt_oss), adapt=plain_rows
    ),
    "qwen35": Architecture("qwen3_5_text", _all(hybrids.tiled_delta, without_nextn), offset_norms=True),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        _all(hybrids.tiled_delta, mixture(True, fixed=True), _qwen2_moe, without_nextn),
        offset_norms=True,
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        _all(hybrids.delta, mixture(True), _qwen2_moe, without_nextn),
        offset_norms=True,
        adapt=hybrids.products_apart,
    ),
    "lfm2": Architecture("lfm2", hybrids.lfm2, hybrid=True),
    "lfm2moe": Architecture(
        "lfm2_moe", _all(hybrids.lfm2, mixture(True, SIGMOID, fixed=True), hybrids.lfm2_moe), hybrid=True
    ),
    "mamba2": Architecture("mamba2", hybrids.mamba2, attends=False),
    "granitehybrid": Architecture(
        "granitemoehybrid", _all(hybrids.granite, _granite), turned_pairs=True, hybrid=True, adapt=hybrids.granite_names
    ),
    "falcon-h1": Architecture("falcon_h1", hybrids.falcon_h1),
    **{name: Architecture("nemotron_h", hybrids.nemotron_h, hybrid=True) for name in ("nemotron_h", "nemotron_h_moe")},
}
