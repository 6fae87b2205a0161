"""Reads values of a config.json: numbers, flags, activations and rotary settings, each checked.

`only` refuses settings that the decoder does not support. Every key that transformers' classes read is read here, or
refused.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from draftwood.errors import ModelError, did_you_mean
from draftwood.models.functions import ACTIVATIONS
from draftwood.models.rotary import RopeScaling
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


def _scaling(rope: Raw, context: int) -> RopeScaling:
    kind = rope_type(rope)
    nested = next((key for key, value in rope.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise ModelError(f"rope_parameters has settings of its own for {nested}, which this family's decoder has not")
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(
            f"rotary scaling {short_repr(kind)} is not supported; supported are default, linear and llama3"
        )
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind, positive_number(rope, "factor", None))
    return RopeScaling(
        kind,
        positive_number(rope, "factor", None),
        positive_number(rope, "low_freq_factor", None),
        positive_number(rope, "high_freq_factor", None),
        positive_int(rope, "original_max_position_embeddings", context),
    )


def rope(raw: Raw, context: int) -> Raw:
    """Base and scaling; rope_theta may lie beside the other rotary settings."""
    rope = rope_object(raw)
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1):
        raise ModelError("partial_rotary_factor is not supported for this family")
    return {
        "rope_theta": positive_number(rope, "rope_theta", positive_number(raw, "rope_theta", 10000.0)),
        "rope_scaling": _scaling(rope, context),
    }
