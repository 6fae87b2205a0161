"""OPT and those close to GPT-2: layer norms, no gates, most with learned positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import in_windows, no_windows, renamed, shape_of
from draftwood.models.checkpoints.tensor_names import GPT_2, Names, both
from draftwood.models.decoder_config import DecoderConfig
from draftwood.util.safe_parsing import short_repr

_LAYER = "transformer.h.{i}"
GPT_J: Names = {
    **GPT_2,
    "head.bias": ("lm_head.bias",),
    **{f"layers.{{i}}.feed.norm{x}": GPT_2[f"layers.{{i}}.mixer.norm{x}"] for x in ("", "_bias")},  # one for both
    **both("layers.{i}.mixer.qkv", *(f"{_LAYER}.attn.{x}_proj" for x in "qkv")),
    **both("layers.{i}.mixer.o", f"{_LAYER}.attn.out_proj"),
    **both("layers.{i}.feed.up", f"{_LAYER}.mlp.fc_in"),
    **both("layers.{i}.feed.down", f"{_LAYER}.mlp.fc_out"),
}
GPT_NEO: Names = {
    **GPT_2,
    **both("layers.{i}.mixer.qkv", *(f"{_LAYER}.attn.attention.{x}_proj" for x in "qkv")),
    **both("layers.{i}.mixer.o", f"{_LAYER}.attn.attention.out_proj"),
}


def opt(raw: Raw) -> DecoderConfig:
    """Pre-norm models with embeddings as wide as the layers; OPT-350m is neither."""
    no_windows(raw)
    keys.only(raw, "do_layer_norm_before", True)
    keys.only(raw, "_remove_final_layer_norm", False)
    keys.only(raw, "layer_norm_elementwise_affine", True)
    shape = shape_of({**raw, "num_key_value_heads": None, "head_dim": None}, 50272, 768, 3072, 12, 12, None, None)
    keys.only(raw, "word_embed_proj_dim", shape["hidden_size"])
    bias = keys.flag(raw, "enable_bias", True)
    return DecoderConfig(
        **{**shape, "intermediate_size": keys.positive_int(raw, "ffn_dim", 3072)},
        max_position_embeddings=keys.positive_int(raw, "max_position_embeddings", 2048),
        rms_norm_eps=1e-5,
        hidden_act=keys.activation(raw, "activation_function", "relu"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        norm="layer",
        gated=False,
        position_offset=2,  # the first two rows are of no position
    )


def gpt2(raw: Raw) -> DecoderConfig:
    keys.only(raw, "scale_attn_by_inverse_layer_idx", False)
    return DecoderConfig(**_gpt2_like(raw, "gelu_new"))


def gpt_bigcode(raw: Raw) -> DecoderConfig:
    """StarCoder 1 and SantaCoder: GPT-2 with one head of keys and values."""
    config = DecoderConfig(**_gpt2_like(raw, "gelu_pytorch_tanh"))
    shared = keys.flag(raw, "multi_query", True)
    return replace(config, num_key_value_heads=1 if shared else config.num_attention_heads)


def _gpt2_like(raw: Raw, activation: str) -> Raw:
    keys.only(raw, "scale_attn_weights", True)
    return {
        **_gpt(raw, activation, context=1024),
        "qkv_bias": True,
        "o_bias": True,
        "tie_word_embeddings": keys.flag(raw, "tie_word_embeddings", True),
        "position_offset": 0,
    }


def _gpt(raw: Raw, activation: str, context: int, vocab: int = 50257, hidden: int = 768, layers: int = 12) -> Raw:
    """Knobs that GPT-2 and GPT-J have in common; the numbers are the values of absent keys."""
    no_windows(raw)
    raw = renamed(raw, hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer")
    raw = renamed(raw, max_position_embeddings="n_positions")
    hidden = keys.positive_int(raw, "n_embd", hidden)
    names = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "vocab_size": "vocab_size"}
    spelled = {name: raw.get(key) for name, key in names.items()}
    heads = 12 if layers == 12 else 16
    shape = shape_of({**spelled, "hidden_size": hidden}, vocab, hidden, 4 * hidden, layers, heads, None, None)
    return {
        **shape,
        "intermediate_size": keys.positive_int(raw, "n_inner", 4 * hidden),
        "max_position_embeddings": keys.positive_int(raw, "n_positions", context),
        "rms_norm_eps": keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        "hidden_act": keys.activation(raw, "activation_function", activation),
        "mlp_bias": True,
        "norm": "layer",
        "gated": False,
    }


def gptj(raw: Raw) -> DecoderConfig:
    """Attention and MLP read the same rows; the head has a bias."""
    shape = _gpt(raw, "gelu_new", 2048, 50400, 4096, 28)
    rotated = keys.positive_int(raw, "rotary_dim", 64, shape["head_dim"])
    keys.only(raw, "rope_parameters")
    keys.only(raw, "rope_scaling")
    return DecoderConfig(
        **shape,
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", False),
        rotary_dim=None if rotated == shape["head_dim"] else rotated,
        joined=True,
        head_bias=True,
    )


def gpt_neo(raw: Raw) -> DecoderConfig:
    """Windows in the layers of type local; attention scores are not scaled."""
    no_windows(raw)
    raw = renamed(raw, num_attention_heads="num_heads", num_hidden_layers="num_layers")
    hidden, layers = keys.positive_int(raw, "hidden_size", 2048), keys.positive_int(raw, "num_layers", 24)
    spelled = {"num_attention_heads": raw.get("num_heads"), "num_hidden_layers": layers, "hidden_size": hidden}
    sizes = {key: raw.get(key) for key in ("vocab_size", "intermediate_size")}
    window, kinds = keys.positive_int(raw, "window_size", 256), _attention_types(raw, layers)
    return DecoderConfig(
        **shape_of({**spelled, **sizes}, 50257, hidden, 4 * hidden, layers, 16, None, None),
        max_position_embeddings=keys.positive_int(raw, "max_position_embeddings", 2048),
        rms_norm_eps=keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        hidden_act=keys.activation(raw, "activation_function", "gelu_new"),
        o_bias=True,
        mlp_bias=True,
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        norm="layer",
        gated=False,
        attention_scale=1.0,
        position_offset=0,
        **in_windows(tuple(window if kind == "local" else 0 for kind in kinds)),
    )


def _attention_types(raw: Raw, layers: int) -> list[str]:
    """Of each layer, from groups of kinds and how often each is there: [[["global", "local"], 12]]."""
    groups: Any = raw.get("attention_types") or [[["global", "local"], 12]]
    try:
        kinds = [kind for group, times in groups for _ in range(min(times, layers)) for kind in group]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not set(map(str, kinds)) <= {"global", "local"}:
        raise ModelError(
            f'attention_types is {short_repr(groups)}, but must be like [[["global", "local"], 12]] and name global or '
            f"local for each of {layers} layers"
        )
    return kinds
