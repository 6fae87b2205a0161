"""Reads values of a config.json: numbers, flags, activations and rotary settings, each checked.

`only` refuses settings that the decoder does not support. Every key that transformers' classes read is read here, or
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from draftwood.errors import ModelError, did_you_mean
from draftwood.models.functions import ACTIVATIONS
from draftwood.models.rotary import UNSCALED, LongRope, Proportional, RopeScaling, Yarn
from draftwood.util.safe_parsing import short_repr

Raw: TypeAlias = dict[str, Any]  # config.json

FLAT_ROPE_KEYS = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}  # rotary settings that may lie beside the others


def positive_int(raw: Raw, key: str, default: int, max_value: int = 2**31) -> int:
    """A positive integer of config.json, at most `max_value`; `default` where the key is absent or null."""
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{key} is {short_repr(value)}, but must be a positive whole number")
    if value > max_value:
        raise ModelError(f"{key} is {short_repr(value)}, but models have at most {max_value}")
    return value


def whole_number(raw: Raw, key: str, default: int) -> int:
    """A whole number of config.json, 0 too; `default` where the key is absent or null."""
    value = default if raw.get(key) is None else raw[key]
    if type(value) is not int or value < 0:
        raise ModelError(f"{key} is {short_repr(value)}, but must be a whole number")
    return value


def positive_number(raw: Raw, key: str, default: float | None) -> float:
    """A positive number of config.json; without a default the key must be there."""
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"{key} is {'missing' if value is None else short_repr(value)}, but must be a positive number")
    return float(value)


def flag(raw: Raw, key: str, default: bool) -> bool:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, bool):
        raise ModelError(f"{key} is {short_repr(value)}, but must be true or false")
    return value


def only(raw: Raw, key: str, *values: object) -> None:
    """Raise ModelError unless the key is absent, null or has one of `values`: the decoder supports no other."""
    if raw.get(key) is not None and raw[key] not in values:
        instead = f"only {values[0]!r}" if values else "leave it out"
        raise ModelError(f"{key} {short_repr(raw[key])} is not supported for this family; {instead}")


def activation(raw: Raw, key: str, default: str) -> str:
    activation = default if raw.get(key) is None else raw[key]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ModelError(
            f"activation {short_repr(activation)} is not supported" + did_you_mean(str(activation), ACTIVATIONS)
        )
    return activation


def rope_object(raw: Raw) -> Raw:
    """The rotary settings in the spelling of transformers 5 (rope_parameters) or 4 (rope_scaling).

    Where both are there they must say the same: transformers reads rope_scaling, other programs rope_parameters.
    """
    spellings = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    for name, rope in zip(("rope_parameters", "rope_scaling"), spellings, strict=True):
        if not isinstance(rope, dict):
            raise ModelError(f"{name} is {short_repr(rope)}, but must be an object")
    new, old = (_spelled(rope, raw) for rope in spellings)
    differing = next((key for key in {**old, **new} if key != "type" and old.get(key) != new.get(key)), None)
    if all(spellings) and differing is not None:
        raise ModelError(
            f"rope_parameters and rope_scaling differ: {differing} is {short_repr(new.get(differing))} in the former "
            f"and {short_repr(old.get(differing))} in the latter; keep the one that the model was trained with"
        )
    return spellings[0] or spellings[1]


def _spelled(rope: Raw, raw: Raw) -> Raw:
    """Rotary settings completed from the top level of the config, else by the defaults of FLAT_ROPE_KEYS."""
    beside = {key: rope.get(key) or raw.get(key) or default for key, default in FLAT_ROPE_KEYS.items()}
    return {"rope_type": rope_type(rope), **rope, **beside}


def rope_type(rope: Raw) -> Any:
    """The type of rotary scaling, from rope_type or the older key type."""
    return rope.get("rope_type", rope.get("type", "default"))


def _numbers(rope: Raw, key: str) -> tuple[float, ...]:
    """A list of positive numbers, which must be there."""
    values = rope.get(key)
    if not isinstance(values, list) or not values:
        raise ModelError(f"{key} is {short_repr(values)}, but must be a list of positive numbers")
    return tuple(positive_number({key: value}, key, None) for value in values)


def _scaling(rope: Raw, raw: Raw, context: int) -> RopeScaling:
    kind = rope_type(rope)
    nested = next((key for key, value in rope.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise ModelError(f"rope_parameters has settings of its own for {nested}, which this family's decoder has not")
    if not isinstance(kind, str) or kind not in SCALINGS:
        known = ", ".join(SCALINGS)
        raise ModelError(f"rotary scaling {short_repr(kind)} is not supported; supported are {known}")
    key = "original_max_position_embeddings"
    original = positive_int(raw if raw.get(key) is not None else rope, key, context)
    return SCALINGS[kind](rope, original, context / original)


def _linear(rope: Raw, original: int, growth: float) -> RopeScaling:
    return RopeScaling("linear", positive_number(rope, "factor", None))


def _llama3(rope: Raw, original: int, growth: float) -> RopeScaling:
    low, high = (positive_number(rope, f"{end}_freq_factor", None) for end in ("low", "high"))
    return RopeScaling("llama3", positive_number(rope, "factor", None), low, high, original)


def _yarn(rope: Raw, original: int, growth: float) -> RopeScaling:
    made = Yarn(
        factor=positive_number(rope, "factor", growth if growth > 1 else None),
        original_context=original,
        beta_fast=positive_number(rope, "beta_fast", 32.0),
        beta_slow=positive_number(rope, "beta_slow", 1.0),
        truncate=flag(rope, "truncate", True),
    )
    usual = made.growth(1.0)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        own, overall = (made.growth(positive_number(rope, key, None)) for key in ("mscale", "mscale_all_dim"))
        usual = own / overall
    return replace(made, attention_factor=positive_number(rope, "attention_factor", usual))


def _longrope(rope: Raw, original: int, growth: float) -> RopeScaling:
    factor = positive_number(rope, "factor", growth)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRope(
        original_context=original,
        attention_factor=positive_number(rope, "attention_factor", usual),
        short=_numbers(rope, "short_factor"),
        long=_numbers(rope, "long_factor"),
    )


SCALINGS: dict[str, Callable[[Raw, int, float], RopeScaling]] = {  # of rope_type, original context, growth of it
    "default": lambda rope, original, growth: UNSCALED,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "dynamic": lambda rope, original, growth: UNSCALED,  # begins behind the context, where no position is
    "mrope": lambda rope, original, growth: UNSCALED,  # three positions, which are one for text
}


def proportional(rope: Raw, head_dim: int) -> Proportional:
    """The rotary positions of Gemma 4, which turn a part of the pairs of a whole head."""
    share = positive_number(rope, "partial_rotary_factor", 1.0)
    if share > 1:
        raise ModelError(f"partial_rotary_factor is {share}, but must be at most 1")
    return Proportional(factor=positive_number(rope, "factor", 1.0), angles=int(share * head_dim // 2))


def rope(raw: Raw, context: int, head_dim: int | None = None) -> Raw:
    """Base and scaling; rope_theta may lie beside the other rotary settings.

    With a `head_dim` a part of it may be rotated (partial_rotary_factor), and the factors of LongRoPE must fit it.
    """
    rope = rope_object(raw)
    factor = positive_number(rope, "partial_rotary_factor", positive_number(raw, "partial_rotary_factor", 1.0))
    if head_dim is None and factor != 1:
        raise ModelError("partial_rotary_factor is not supported for this family")
    rotated = int((head_dim or 2) * factor)
    if factor > 1 or rotated < 2 or rotated % 2:
        raise ModelError(
            f"partial_rotary_factor {factor} rotates {rotated} of {head_dim} components of a head, "
            "but must rotate an even number of them"
        )
    scaling = _scaling(rope, raw, context)
    if isinstance(scaling, LongRope) and head_dim is not None:
        for key, factors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
            if len(factors) != rotated // 2:
                raise ModelError(
                    f"{key} has {len(factors)} numbers, but the {rotated} rotated components of a head have "
                    f"{rotated // 2} frequencies; fetch config.json again"
                )
    return {
        "rope_theta": positive_number(rope, "rope_theta", positive_number(raw, "rope_theta", 10000.0)),
        "rope_scaling": scaling,
        "rotary_dim": None if head_dim is None or rotated == head_dim else rotated,
    }
