"""Model families: how each one's config.json becomes a DecoderConfig and what its tensors are called.

A family is a table entry; defaults are those of transformers' classes. What a config asks for and the decoder cannot
do is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.tensor_names import GEMMA_2, GEMMA_3, GPT_2, LLAMA, OPT, PHI_3, QWEN_3, Names
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.rotary import UNSCALED
from draftwood.util.safe_parsing import short_repr

MAX_LAYERS = 100_000
REQUIRED_VALUES = {"is_causal": True, "is_encoder_decoder": False, "add_cross_attention": False}  # in every config


@dataclass(frozen=True)
class Family:
    """One model family: how its config.json becomes a DecoderConfig and which tensors make up each parameter.

    `prefix` is a beginning of the names that some checkpoints of the family lack. Parameters in `transposed` are
    stored [in, out].
    """

    read: Callable[[Raw], DecoderConfig]
    names: Names
    prefix: str = "model."
    transposed: frozenset[str] = frozenset()

    def config(self, raw: Raw) -> DecoderConfig:
        """The decoder's shape of a config.json; ModelError where it asks for what the decoder cannot do."""
        for key, value in REQUIRED_VALUES.items():
            keys.only(raw, key, value)
        return self.read(raw)

    def without_prefix(self) -> Family:
        """The same family for checkpoints whose names lack the prefix."""
        bare = {key: tuple(name.removeprefix(self.prefix) for name in names) for key, names in self.names.items()}
        return replace(self, names=bare, prefix="")


def _shape(
    raw: Raw, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, head_dim: int | None
) -> Raw:
    """Sizes in Llama's spelling; numbers are what absent keys mean.

    A null num_key_value_heads, or one whose default is None, means one for each attention head; a head_dim without
    default is hidden_size // num_attention_heads.
    """
    heads = keys.positive_int(raw, "num_attention_heads", heads)
    null = "num_key_value_heads" in raw and raw["num_key_value_heads"] is None
    kv_heads = keys.positive_int(raw, "num_key_value_heads", heads if kv_heads is None or null else kv_heads)
    hidden = keys.positive_int(raw, "hidden_size", hidden)
    head_dim = keys.positive_int(raw, "head_dim", head_dim or max(1, hidden // heads))
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{heads} attention heads, {kv_heads} key/value heads and head_dim {head_dim} do not fit together; "
            "the first must be a multiple of the second, and the third even"
        )
    return {
        "vocab_size": keys.positive_int(raw, "vocab_size", vocab),
        "hidden_size": hidden,
        "intermediate_size": keys.positive_int(raw, "intermediate_size", inner),
        "num_hidden_layers": keys.positive_int(raw, "num_hidden_layers", layers, MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def _llama_like(
    raw: Raw, shape: Raw, context: int, eps: float = 1e-6, activation: str = "silu", tied: bool = False
) -> Raw:
    """The settings that families similar to Llama have in common, besides the sizes."""
    context = keys.positive_int(raw, "max_position_embeddings", context)
    return {
        **shape,
        **keys.rope(raw, context),
        "max_position_embeddings": context,
        "rms_norm_eps": keys.positive_number(raw, "rms_norm_eps", eps),
        "hidden_act": keys.activation(raw, "hidden_act", activation),
        "tie_word_embeddings": keys.flag(raw, "tie_word_embeddings", tied),
    }


def _attention_bias(raw: Raw) -> Raw:
    bias = keys.flag(raw, "attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias}


def _window(raw: Raw, default: int | None) -> int:
    """Width of the sliding window, 0 where there is none: null, unlike an absent key, switches it off."""
    if raw.get("sliding_window", default) is None:
        return 0
    return keys.positive_int(raw, "sliding_window", default or 0)


def _windows(raw: Raw, layers: int, window: int, sliding: Callable[[int], bool]) -> tuple[int, ...]:
    """The window of each layer, from layer_types, else from the family's rule."""
    types = raw.get("layer_types")
    if types is None:
        types = ["sliding_attention" if sliding(layer) else "full_attention" for layer in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) < layers or any(kind not in known for kind in types):
        raise ModelError(
            f"layer_types is {short_repr(types)}, but must name {' or '.join(known)} for each of {layers} layers"
        )
    if "sliding_attention" in types[:layers] and not window:
        raise ModelError("layer_types asks for sliding_attention, but sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types[:layers])


def _without_windows(raw: Raw) -> None:
    """Refuse layers of other types in a family whose layers all see all positions."""
    types = raw.get("layer_types")
    if types is not None and (not isinstance(types, list) or set(map(str, types)) - {"full_attention"}):
        raise ModelError(f"layer_types is {short_repr(types)}, but this family has full_attention alone; leave it out")


def _llama(raw: Raw) -> DecoderConfig:
    _without_windows(raw)
    shape = _shape(raw, 32000, 4096, 11008, 32, 32, None, None)
    mlp_bias = keys.flag(raw, "mlp_bias", False)
    return DecoderConfig(**_llama_like(raw, shape, 2048), **_attention_bias(raw), mlp_bias=mlp_bias)


def _mistral(raw: Raw) -> DecoderConfig:
    shape = _shape(raw, 32000, 4096, 14336, 32, 32, 8, None)
    keys.only(raw, "layer_types")  # transformers ignores the key here and asks for another class
    return DecoderConfig(**_llama_like(raw, shape, 4096 * 32), window=_window(raw, 4096))


def _in_windows(windows: tuple[int, ...]) -> Raw:
    """The knobs of layers with windows."""
    alike = len(set(windows)) == 1
    return {"window": windows[0]} if alike else {"layers": per_layer(window=windows)}


def _qwen_windows(raw: Raw, layers: int) -> Raw:
    window = _window(raw, 4096) if keys.flag(raw, "use_sliding_window", False) else 0
    first = raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelError(f"max_window_layers is {short_repr(first)}, but must be a whole number")
    return _in_windows(_windows(raw, layers, window, lambda layer: window > 0 and layer >= first))


def _qwen2(raw: Raw) -> DecoderConfig:
    shape = _shape(raw, 151936, 4096, 22016, 32, 32, 32, None)
    windows = _qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**_llama_like(raw, shape, 32768), qkv_bias=True, **windows)


def _qwen3(raw: Raw) -> DecoderConfig:
    shape = _shape(raw, 151936, 4096, 22016, 32, 32, 32, 128)
    windows = _qwen_windows(raw, shape["num_hidden_layers"])
    return DecoderConfig(**_llama_like(raw, shape, 32768), **_attention_bias(raw), qk_norm="one", **windows)


def _phi3(raw: Raw) -> DecoderConfig:
    shape = _shape(raw, 32064, 3072, 8192, 32, 32, None, None)
    rope = dict(keys.rope_object(raw))
    keys.only({"rope_type": keys.rope_type(rope)}, "rope_type", "default")
    outer = keys.positive_number(raw, "partial_rotary_factor", 1.0)
    factor = keys.positive_number(rope, "partial_rotary_factor", outer)
    rotated = int(shape["head_dim"] * factor)
    if factor > 1 or rotated < 2 or rotated % 2:
        raise ModelError(
            f"partial_rotary_factor {factor} rotates {rotated} of {shape['head_dim']} components of a head, "
            "but must rotate an even number of them"
        )
    unscaled = {key: value for key, value in raw.items() if key not in ("partial_rotary_factor", "rope_scaling")}
    unscaled["rope_parameters"] = {key: value for key, value in rope.items() if key != "partial_rotary_factor"}
    return DecoderConfig(
        **_llama_like(unscaled, shape, 4096, 1e-5),
        rotary_dim=None if rotated == shape["head_dim"] else rotated,
        window=_window(raw, None),
    )


def _gemma(raw: Raw) -> DecoderConfig:
    _without_windows(raw)
    shape = _shape(raw, 256000, 3072, 24576, 28, 16, 16, 256)
    keys.only(raw, "use_bidirectional_attention", False)
    tanh = "gelu_pytorch_tanh"
    # the first releases say gelu and mean its tanh approximation
    act = {"hidden_act": tanh} if raw.get("hidden_act") == "gelu" else {}
    return DecoderConfig(
        **_llama_like({**raw, **act}, shape, 8192, activation=tanh, tied=True),
        **_attention_bias(raw),
        norm="rms_offset",
        embedding_scale=shape["hidden_size"] ** 0.5,
    )


def _gemma_late(raw: Raw, shape: Raw, context: int) -> Raw:
    """The settings that Gemma 2 and 3 have in common."""
    keys.only(raw, "use_bidirectional_attention", False)
    activation = keys.activation(raw, "hidden_activation", "gelu_pytorch_tanh")
    return {
        **_llama_like({**raw, "hidden_act": activation}, shape, context, tied=True),
        **_attention_bias(raw),
        "norm": "rms_offset",
        "post_norm": True,
        "embedding_scale": shape["hidden_size"] ** 0.5,
        "attention_scale": keys.positive_number(raw, "query_pre_attn_scalar", 256) ** -0.5,
    }


def _cap(raw: Raw, key: str, default: float | None) -> float | None:
    """A softcap: null, unlike an absent key, switches it off."""
    return keys.positive_number(raw, key, None) if raw.get(key) is not None else None if key in raw else default


def _gemma2(raw: Raw) -> DecoderConfig:
    shape = _shape(raw, 256000, 2304, 9216, 26, 8, 4, 256)
    return DecoderConfig(
        **_gemma_late(raw, shape, 8192),
        **_in_windows(_windows(raw, shape["num_hidden_layers"], _window(raw, 4096), lambda layer: layer % 2 == 0)),
        attention_softcap=_cap(raw, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(raw, "final_logit_softcapping", 30.0),
    )


def _gemma3(raw: Raw) -> DecoderConfig:
    """Rotary settings lie in one object per layer type, or in the flat keys of transformers 4."""
    shape = _shape(raw, 262208, 2304, 9216, 26, 8, 4, 256)
    keys.only(raw, "attn_logit_softcapping")  # transformers reads the key and does not use it
    pattern = keys.positive_int(raw, "sliding_window_pattern", 6)
    rope = keys.rope_object({"rope_parameters": raw.get("rope_parameters")})
    kinds: list[Raw] = []
    for kind, key, base in (
        ("full_attention", "rope_theta", 1_000_000.0),
        ("sliding_attention", "rope_local_base_freq", 10000.0),
    ):
        part = rope.get(kind) or {}
        if not isinstance(part, dict):
            raise ModelError(f"rope_parameters of {kind} is {short_repr(part)}, but must be an object")
        outer = keys.positive_number(raw, key, base)
        kinds.append({**part, "rope_theta": keys.positive_number(part, "rope_theta", outer)})
    if rope and not rope.keys() <= {"full_attention", "sliding_attention"}:
        raise ModelError("rope_parameters must hold full_attention and sliding_attention, each with its own settings")
    full, local = kinds
    both = {"rope_scaling": raw.get("rope_scaling"), "rope_theta": full["rope_theta"]}
    full = keys.rope_object({**both, "rope_parameters": full}) if rope else {**full, **keys.rope_object(both)}
    keys.only(local, "rope_type", "default")
    knobs = _gemma_late({**raw, "rope_parameters": full}, shape, 131072)
    windows = _windows(raw, shape["num_hidden_layers"], _window(raw, 4096), lambda layer: (layer + 1) % pattern != 0)
    return DecoderConfig(
        **knobs,
        qk_norm="one",
        layers=per_layer(
            window=windows,
            rope_theta=[local["rope_theta"] if window else knobs["rope_theta"] for window in windows],
            rope_scaling=[UNSCALED if window else knobs["rope_scaling"] for window in windows],
        ),
        logit_softcap=_cap(raw, "final_logit_softcapping", None),
    )


def _opt(raw: Raw) -> DecoderConfig:
    """Pre-norm models with embeddings as wide as the layers; OPT-350m is neither."""
    _without_windows(raw)
    keys.only(raw, "do_layer_norm_before", True)
    keys.only(raw, "_remove_final_layer_norm", False)
    keys.only(raw, "layer_norm_elementwise_affine", True)
    shape = _shape({**raw, "num_key_value_heads": None, "head_dim": None}, 50272, 768, 3072, 12, 12, None, None)
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


def _renamed(raw: Raw, **names: str) -> Raw:
    """A config with a family's own names for keys that may have the usual ones, too."""
    for usual, own in names.items():
        if usual in raw and raw.get(own, raw[usual]) != raw[usual]:
            raise ModelError(
                f"{own} is {short_repr(raw[own])}, but {usual} is {short_repr(raw[usual])}; keep the right one"
            )
    return {**{own: raw[usual] for usual, own in names.items() if usual in raw}, **raw}


def _gpt2(raw: Raw) -> DecoderConfig:
    _without_windows(raw)
    keys.only(raw, "scale_attn_weights", True)
    keys.only(raw, "scale_attn_by_inverse_layer_idx", False)
    raw = _renamed(raw, hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer")
    raw = _renamed(raw, max_position_embeddings="n_positions")
    hidden = keys.positive_int(raw, "n_embd", 768)
    names = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "vocab_size": "vocab_size"}
    spelled = {name: raw.get(key) for name, key in names.items()}
    shape = _shape({**spelled, "hidden_size": hidden}, 50257, 768, 3072, 12, 12, None, None)
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


FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, LLAMA),
    "mistral": Family(_mistral, LLAMA),
    "qwen2": Family(_qwen2, LLAMA),
    "qwen3": Family(_qwen3, QWEN_3),
    "phi3": Family(_phi3, PHI_3),
    "gemma": Family(_gemma, LLAMA),
    "gemma2": Family(_gemma2, GEMMA_2),
    "gemma3_text": Family(_gemma3, GEMMA_3),
    "opt": Family(_opt, OPT),
    "gpt2": Family(
        _gpt2,
        GPT_2,
        "transformer.",
        frozenset(f"layers.{{i}}.{x}.weight" for x in ("mixer.qkv", "mixer.o", "feed.up", "feed.down")),
    ),
}
