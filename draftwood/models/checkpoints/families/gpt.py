"""OPT and GPT-2: learned positions, layer norms, no gates."""

from __future__ import annotations

from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import no_windows, renamed, shape_of
from draftwood.models.decoder_config import DecoderConfig


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
    no_windows(raw)
    keys.only(raw, "scale_attn_weights", True)
    keys.only(raw, "scale_attn_by_inverse_layer_idx", False)
    raw = renamed(raw, hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer")
    raw = renamed(raw, max_position_embeddings="n_positions")
    hidden = keys.positive_int(raw, "n_embd", 768)
    names = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "vocab_size": "vocab_size"}
    spelled = {name: raw.get(key) for name, key in names.items()}
    shape = shape_of({**spelled, "hidden_size": hidden}, 50257, 768, 3072, 12, 12, None, None)
    return DecoderConfig(
        **{**shape, "intermediate_size": keys.positive_int(raw, "n_inner", 4 * hidden)},
        max_position_embeddings=keys.positive_int(raw, "n_positions", 1024),
        rms_norm_eps=keys.positive_number(raw, "layer_norm_epsilon", 1e-5),
        hidden_act=keys.activation(raw, "activation_function", "gelu_new"),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        norm="layer",
        gated=False,
        position_offset=0,
    )
