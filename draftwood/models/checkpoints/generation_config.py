"""How a checkpoint's makers draw tokens from it: generation_config.json, or general.sampling.* in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftwood.errors import ModelError
from draftwood.models.checkpoints import gguf_parts
from draftwood.models.checkpoints.files import read_json
from draftwood.sampling.params import SamplingParams
from draftwood.util import config

FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
GGUF_NAMES = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}  # others are called alike


def sampling_defaults(place: Path) -> dict[str, Any]:
    """The fields of `SamplingParams` that a checkpoint directory or GGUF file recommends; ModelError for odd values.

    As in transformers, `do_sample: false` is greedy decoding. Sources: transformers' GenerationConfig, llama.cpp's
    keys.
    """
    if place.is_file():
        prefix = "general.sampling."
        metadata = gguf_parts.opened(place).metadata
        named = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
        return _checked({GGUF_NAMES.get(name, name): value for name, value in named.items()}, place)
    path = place / "generation_config.json"
    raw = read_json(path) if path.is_file() else {}
    return {"temperature": 0.0} if raw.get("do_sample") is False else _checked(raw, path)


def _checked(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    given = {name: raw[name] for name in FIELDS if raw.get(name) is not None}
    try:
        params = SamplingParams.model_validate(given)
    except ValidationError as error:
        raise ModelError(f"{path}: {config.reason(error)}; correct the file") from None
    return {name: getattr(params, name) for name in given}
