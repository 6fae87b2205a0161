"""Gemma 1 to 4."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

import torch

from draftwood.errors import ModelError
from draftwood.models.altup_config import AltUpConfig
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.experts import experts_of
from draftwood.models.checkpoints.families.family import (
    attention_bias,
    in_windows,
    layer_windows,
    llama_like,
    no_windows,
    shape_of,
    sliding_window,
)
from draftwood.models.checkpoints.tensor_names import UNREAD, Names
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.rotary import UNSCALED, RopeScaling
from draftwood.util.safe_parsing import short_repr


def gemma(raw: Raw) -> DecoderConfig:
    no_windows(raw)
    shape = shape_of(raw, 256000, 3072, 24576, 28, 16, 16, 256)
    keys.only(raw, "use_bidirectional_attention", False)
    tanh = "gelu_pytorch_tanh"
    # the first releases say gelu and mean its tanh approximation
    act = {"hidden_act": tanh} if raw.get("hidden_act") == "gelu" else {}
    return DecoderConfig(
        **llama_like({**raw, **act}, shape, 8192, activation=tanh, tied=True),
        **attention_bias(raw),
        norm="rms_offset",
        embedding_scale=shape["hidden_size"] ** 0.5,
    )


def _gemma_late(raw: Raw, shape: Raw, context: int) -> Raw:
    """The settings that Gemma 2 and 3 have in common."""
    keys.only(raw, "use_bidirectional_attention", False)
    activation = keys.activation(raw, "hidden_activation", "gelu_pytorch_tanh")
    return {
        **llama_like({**raw, "hidden_act": activation}, shape, context, tied=True),
        **attention_bias(raw),
        "norm": "rms_offset",
        "post_norm": True,
        "embedding_scale": shape["hidden_size"] ** 0.5,
        "attention_scale": keys.positive_number(raw, "query_pre_attn_scalar", 256) ** -0.5,
    }


def _cap(raw: Raw, key: str, default: float | None) -> float | None:
    """A softcap: null, unlike an absent key, switches it off."""
    return keys.positive_number(raw, key, None) if raw.get(key) is not None else None if key in raw else default


def gemma2(raw: Raw) -> DecoderConfig:
    shape = shape_of(raw, 256000, 2304, 9216, 26, 8, 4, 256)
    layers = shape["num_hidden_layers"]
    return DecoderConfig(
        **_gemma_late(raw, shape, 8192),
        **in_windows(layer_windows(raw, layers, sliding_window(raw, 4096), lambda layer: layer % 2 == 0)),
        attention_softcap=_cap(raw, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(raw, "final_logit_softcapping", 30.0),
    )


def gemma3(raw: Raw) -> DecoderConfig:
    """Rotary settings lie in one object per layer type, or in the flat keys of transformers 4."""
    shape = shape_of(raw, 262208, 2304, 9216, 26, 8, 4, 256)
    keys.only(raw, "attn_logit_softcapping")  # transformers reads the key and does not use it
    pattern = keys.positive_int(raw, "sliding_window_pattern", 6)
    full, local = _rope_objects(raw)
    knobs = _gemma_late({**raw, "rope_scaling": None, "rope_parameters": full}, shape, 131072)
    windows = layer_windows(
        raw, shape["num_hidden_layers"], sliding_window(raw, 4096), lambda layer: (layer + 1) % pattern != 0
    )
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


def _rope_objects(raw: Raw) -> tuple[Raw, Raw]:
    """The rotary settings of layers without a window and with one; those with one have no scaling."""
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
    return full, local


def gemma3n(raw: Raw) -> DecoderConfig:
    """Rows of several vectors, per-layer embeddings, borrowed keys, feed-forwards that few gates pass."""
    inner = raw.get("intermediate_size", 16384)
    sizes = inner if isinstance(inner, list) and inner else [inner]
    shape = shape_of({**raw, "intermediate_size": sizes[0]}, 262400, 2048, 16384, 35, 8, 2, 256)
    layers = shape["num_hidden_layers"]
    windows = layer_windows(raw, layers, sliding_window(raw, 512), lambda layer: (layer + 1) % 5 != 0)
    full, local = _rope_objects(raw)
    knobs = _gemma_late({**raw, "rope_scaling": None, "rope_parameters": full}, shape, 32768)
    words = keys.positive_int(raw, "vocab_size_per_layer_input", 262144)
    inputs = keys.positive_int(raw, "altup_num_inputs", 4)
    altup = AltUpConfig(
        inputs,
        _whole_below(raw, "altup_active_idx", inputs),
        keys.positive_int(raw, "laurel_rank", 64),
        keys.flag(raw, "altup_correct_scale", True),
    )
    return DecoderConfig(
        **{**knobs, "norm": "rms", "attention_scale": 1.0},
        qk_norm="one",
        value_norm=True,
        logit_softcap=_cap(raw, "final_logit_softcapping", 30.0),
        hidden_size_per_layer_input=keys.positive_int(raw, "hidden_size_per_layer_input", 256),
        vocab_size_per_layer_input=words if words < shape["vocab_size"] else None,
        altup=altup,
        layers=per_layer(
            window=windows,
            rope_theta=[local["rope_theta"] if window else knobs["rope_theta"] for window in windows],
            rope_scaling=[UNSCALED if window else knobs["rope_scaling"] for window in windows],
            kv_layer=_kv_layers(raw, windows, 15),
            intermediate_size=_of_each(sizes, layers, "intermediate_size"),
            gate_cutoff=_cutoffs(raw, layers),
        ),
    )


def _whole_below(raw: Raw, key: str, count: int) -> int:
    number = raw.get(key, 0)
    if type(number) is not int or not 0 <= number < count:
        raise ModelError(f"{key} is {short_repr(number)}, but must be a whole number from 0 to {count - 1}")
    return number


def _of_each(sizes: list[Any], layers: int, key: str) -> list[int]:
    """A positive whole number of each layer, from one of all or one for each."""
    each = sizes * layers if len(sizes) == 1 else sizes
    if len(each) != layers or not all(type(size) is int and size > 0 for size in each):
        raise ModelError(f"{key} is {short_repr(sizes)}, but must be a positive whole number, or {layers} of them")
    return each


def _cutoffs(raw: Raw, layers: int) -> list[float | None]:
    """From the share of gates that do not pass: how many standard deviations above the mean the others are."""
    known = raw.get("activation_sparsity_scale")  # in GGUF files; minus infinity where all gates pass
    if isinstance(known, list) and len(known) == layers and all(isinstance(cutoff, float) for cutoff in known):
        return [cutoff if isfinite(cutoff) else None for cutoff in known]
    usual = [0.95] * 10 + [0.0] * (layers - 10) if layers > 10 else [0.0] * layers
    shares = usual if raw.get("activation_sparsity_pattern") is None else raw["activation_sparsity_pattern"]
    if not isinstance(shares, list) or len(shares) != layers:
        raise ModelError(f"activation_sparsity_pattern is {short_repr(shares)}, but must have {layers} numbers")
    if not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        raise ModelError(
            f"activation_sparsity_pattern is {short_repr(shares)}, but must have numbers from 0 to below 1"
        )
    quantiles = (torch.erfinv(2 * torch.tensor(shares, dtype=torch.float32) - 1) * sqrt(2)).tolist()  # as in training
    return [quantile if share else None for share, quantile in zip(shares, quantiles, strict=True)]


def gemma4(raw: Raw) -> DecoderConfig:
    """Layers without a window have heads of their own; E2B and E4B have per-layer embeddings and borrow keys."""
    shape = shape_of(raw, 262144, 2304, 9216, 30, 8, 4, 256)
    layers = shape["num_hidden_layers"]
    keys.only(raw, "use_bidirectional_attention", "vision")
    windows = layer_windows(raw, layers, sliding_window(raw, 512), lambda layer: (layer + 1) % 6 != 0)
    windows = (*windows[:-1], 0)  # as in transformers, whatever the config says
    own, lenders = _of_full_layers(raw, windows, shape), _kv_layers(raw, windows)
    wide = 2 if keys.flag(raw, "use_double_wide_mlp", False) else 1
    inner = [shape["intermediate_size"] * (1 if lender is None else wide) for lender in lenders]
    scaling, thetas = _rope_of_kinds(raw, own["head_dim"])
    return DecoderConfig(
        **shape,
        max_position_embeddings=keys.positive_int(raw, "max_position_embeddings", 131072),
        rms_norm_eps=keys.positive_number(raw, "rms_norm_eps", 1e-6),
        hidden_act=keys.activation(raw, "hidden_activation", "gelu_pytorch_tanh"),
        tie_word_embeddings=keys.flag(raw, "tie_word_embeddings", True),
        **attention_bias(raw),
        post_norm=True,
        qk_norm="one",
        value_norm=True,
        attention_scale=1.0,
        embedding_scale=shape["hidden_size"] ** 0.5,
        scalar=True,
        hidden_size_per_layer_input=_per_layer_width(raw, 256),
        logit_softcap=_cap(raw, "final_logit_softcapping", None),
        layers=per_layer(
            window=windows,
            rope_theta=[thetas[not window] for window in windows],
            rope_scaling=[UNSCALED if window else scaling for window in windows],
            head_dim=[shape["head_dim"] if window else own["head_dim"] for window in windows],
            num_key_value_heads=[shape["num_key_value_heads"] if window else own["kv_heads"] for window in windows],
            kv_layer=lenders,
            intermediate_size=inner,
            experts=[_beside_mlp(raw, size) for size in inner],
        ),
    )


def _beside_mlp(raw: Raw, inner: int) -> ExpertsConfig | None:
    """The experts beside an MLP of `inner` hidden units, in 26B-A4B."""
    if not keys.flag(raw, "enable_moe_block", False):
        return None
    count, chosen, size = (raw.get(key) for key in ("num_experts", "top_k_experts", "moe_intermediate_size"))
    known = {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": size}
    if None in known.values():
        raise ModelError("enable_moe_block is true; num_experts, top_k_experts and moe_intermediate_size must say more")
    return ExpertsConfig(**experts_of(known, 128, 8, 704), normalised=True, shared_size=inner, beside_mlp=True)


def _per_layer_width(raw: Raw, default: int) -> int:
    """Width of per-layer embeddings; 0 or null: there are none. Their table must have all tokens."""
    if not raw.get("hidden_size_per_layer_input", default):
        return 0
    keys.only(raw, "vocab_size_per_layer_input", raw.get("vocab_size", 262144))
    return keys.positive_int(raw, "hidden_size_per_layer_input", default)


def _kv_layers(raw: Raw, windows: tuple[int, ...], usual: int = 0) -> list[int | None]:
    """For each layer the one whose keys and values it reads: of the last layers the last before them of their kind."""
    shared = raw.get("num_kv_shared_layers", usual) or 0
    first = len(windows) - shared if type(shared) is int and shared >= 0 else 0
    made: list[int | None] = [None] * first
    for window in windows[first:]:
        lender = max((n for n in range(first) if windows[n] == window), default=None)
        if lender is None:
            raise ModelError(
                f"num_kv_shared_layers is {short_repr(shared)}, but before the last layers, which read the keys and "
                "values of others, there must be a layer of each of their types"
            )
        made.append(lender)
    return made


def _rope_of_kinds(raw: Raw, head_dim: int) -> tuple[RopeScaling, list[float]]:
    """The scaling of layers without a window, and the bases of those with one and without."""
    rope = raw.get("rope_parameters") or {}
    if not isinstance(rope, dict) or not rope.keys() <= {"full_attention", "sliding_attention"}:
        raise ModelError("rope_parameters must hold full_attention and sliding_attention, each with its own settings")
    local = rope.get("sliding_attention") or {}
    full = rope.get("full_attention") or {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    keys.only({"rope_type": keys.rope_type(local)}, "rope_type", "default")
    keys.only({"rope_type": keys.rope_type(full)}, "rope_type", "proportional")
    thetas = [keys.positive_number(part, "rope_theta", base) for part, base in ((local, 1e4), (full, 1e6))]
    return keys.proportional(full, head_dim), thetas


def _of_full_layers(raw: Raw, windows: tuple[int, ...], shape: Raw) -> Raw:
    """Head size and number of key/value heads of the layers without a window, in both spellings."""
    given = raw.get("per_layer_config")
    usual = shape["num_key_value_heads"]
    if given is None:
        count = "num_global_key_value_heads" if keys.flag(raw, "attention_k_eq_v", False) else "num_key_value_heads"
        heads = keys.positive_int(raw, count, usual)
        return {"head_dim": keys.positive_int(raw, "global_head_dim", 512), "kv_heads": heads}
    known = {int(number): part for number, part in given.items()} if isinstance(given, dict) else {}
    parts = [known.get(layer) for layer, window in enumerate(windows) if not window]
    if len(parts) != len(known) or not isinstance(parts[0], dict) or any(part != parts[0] for part in parts):
        raise ModelError(
            f"per_layer_config is {short_repr(given)}, but must say the same of each layer without a window"
        )
    return {
        "head_dim": keys.positive_int(parts[0], "head_dim", shape["head_dim"]),
        "kv_heads": keys.positive_int(parts[0], "num_key_value_heads", usual),
    }


def gemma4_names(raw: Raw, config: DecoderConfig) -> Names:
    """Layers without a window take their keys for values where the config says so; some layers have queries alone."""
    made: Names = {}
    for number in range(config.num_hidden_layers):
        layer = config.layer(number)
        attention = f"model.layers.{number}.self_attn"
        if layer.kv_layer is not None:
            heads = "q"  # checkpoints hold the others, too
            rest = ("k_proj", "v_proj", "k_norm", "v_norm")
            made[f"{UNREAD}{number}"] = tuple(f"{attention}.{part}.weight" for part in rest)
        elif raw.get("attention_k_eq_v") and not layer.window:
            heads = "qkk"
        else:
            continue
        for part in ("weight", "bias"):
            made[f"layers.{number}.mixer.qkv.{part}"] = tuple(f"{attention}.{x}_proj.{part}" for x in heads)
    return made


def gemma3n_names(raw: Raw, config: DecoderConfig) -> Names:
    """Some layers have queries alone; a matrix for each vector of a row but the first."""
    assert config.altup is not None
    parts = {"into": "altup_projections", "back": "altup_unembed_projections"}
    own: Names = {
        f"streams.{ours}.{number}.weight": (f"model.{theirs}.{number}.weight",)
        for ours, theirs in parts.items()
        for number in range(config.altup.inputs - 1)
    }
    if not config.altup.scaled:  # checkpoints hold the vectors nevertheless
        scales = (f"model.layers.{number}.altup.correct_output_scale" for number in range(config.num_hidden_layers))
        own[f"{UNREAD}scale"] = tuple(scales)
    return {**own, **gemma4_names(raw, config)}
