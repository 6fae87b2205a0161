"""Families without positions, whose attention scores fall with the distance: BLOOM and MPT."""

from __future__ import annotations

from typing import Any

from draftwood.errors import ModelError
from draftwood.models.alibi import Alibi, geometric_slopes, interleaved_slopes
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import no_windows, renamed, shared_shape
from draftwood.models.checkpoints.families.parallel import mlp_names, norm_names
from draftwood.models.checkpoints.tensor_names import Names, both
from draftwood.models.decoder_config import DecoderConfig
from draftwood.util.safe_parsing import short_repr

_BLOOM, _MPT = "transformer.h.{i}", "transformer.blocks.{i}"
BLOOM: Names = {
    "embed.weight": ("transformer.word_embeddings.weight",),
    "embed_norm": ("transformer.word_embeddings_layernorm.weight",),
    "embed_norm_bias": ("transformer.word_embeddings_layernorm.bias",),
    "head.weight": ("lm_head.weight",),
    **norm_names(f"{_BLOOM}.input_layernorm", f"{_BLOOM}.post_attention_layernorm", "transformer.ln_f"),
    **both("layers.{i}.mixer.qkv", f"{_BLOOM}.self_attention.query_key_value"),
    **both("layers.{i}.mixer.o", f"{_BLOOM}.self_attention.dense"),
    **mlp_names(f"{_BLOOM}.mlp.dense_h_to_4h", f"{_BLOOM}.mlp.dense_4h_to_h"),
}
MPT: Names = {
    "embed.weight": ("transformer.wte.weight",),
    "head.weight": ("lm_head.weight",),
    **norm_names(f"{_MPT}.norm_1", f"{_MPT}.norm_2", "transformer.norm_f"),
    **both("layers.{i}.mixer.qkv", f"{_MPT}.attn.Wqkv"),
    **both("layers.{i}.mixer.o", f"{_MPT}.attn.out_proj"),
    **mlp_names(f"{_MPT}.ffn.up_proj", f"{_MPT}.ffn.down_proj"),
}


def _usual_shape(raw: Raw, vocab: int, hidden: int, layers: int, heads: int) -> Raw:
    """Sizes of a model whose MLPs are four times as wide as its rows."""
    inner = 4 * keys.positive_int(raw, "hidden_size", hidden)
    sizes = {**raw, "num_key_value_heads": None, "intermediate_size": inner}
    return shared_shape(sizes, vocab, hidden, inner, layers, heads, None)


def bloom(raw: Raw) -> DecoderConfig:
    """Embeddings are normalised, too."""
    no_windows(raw)
    keys.only(raw, "apply_residual_connection_post_layernorm", False)
    raw = renamed(raw, num_hidden_layers="n_layer", num_attention_heads="n_head")
    spelled = {"num_hidden_layers": raw.get("n_layer"), "num_attention_heads": raw.get("n_head")}
    spelled["hidden_size"] = raw.get("n_embed") or raw.get("hidden_size")
    shape = _usual_shape({**raw, **spelled}, 250880, 64, 2, 8)
    return DecoderConfig(
        **shape,
        max_position_embeddings=keys.positive_int(raw, "seq_length", 2048),
        rms_norm_eps=keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        hidden_act="gelu_pytorch_tanh",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        norm="layer",
        gated=False,
        rotary_dim=0,
        alibi=Alibi(geometric_slopes(shape["num_attention_heads"])),
        embedding_norm=True,
    )


def mpt(raw: Raw) -> DecoderConfig:
    """MPT as transformers' class has it: neither biases nor norms of queries and keys."""
    no_windows(raw)
    raw = renamed(raw, hidden_size="d_model", num_attention_heads="n_heads", num_hidden_layers="n_layers")
    attention: Any = raw.get("attn_config") or {}
    if not isinstance(attention, dict):
        raise ModelError(f"attn_config is {short_repr(attention)}, but must be an object")
    usual = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "alibi": True, "alibi_bias_max": 8}
    for key, value in usual.items():
        keys.only(attention, key, value)
    for key, value in {"no_bias": True, "expansion_ratio": 4, "embedding_fraction": 1.0}.items():
        keys.only(raw, key, value)
    keys.only(raw, "logit_scale")
    spelled = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    sizes = {**{key: raw.get(own) for key, own in spelled.items()}, "vocab_size": raw.get("vocab_size")}
    shape = _usual_shape(sizes, 50368, 2048, 24, 16)
    clip, scale = (
        None if attention.get(key) is None else keys.positive_number(attention, key, None)
        for key in ("clip_qkv", "softmax_scale")
    )
    return DecoderConfig(
        **shape,
        max_position_embeddings=keys.positive_int(raw, "max_seq_len", 2048),
        rms_norm_eps=keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        hidden_act="gelu",
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        norm="layer_plain",
        gated=False,
        rotary_dim=0,
        qkv_clip=clip,
        attention_scale=scale,
        alibi=Alibi(interleaved_slopes(shape["num_attention_heads"], 8)),
    )
