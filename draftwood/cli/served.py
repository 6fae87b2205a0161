"""The models of `draftwood serve --model NAME=PATH ...`: how each is named, loaded and decoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import ModelOptions
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util import config

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.methods import Method
    from draftwood.serve.served_models import ServedModel

OWN = ("draft", "method")  # options of a model that the command line has for one model alone
SHARED = frozenset({"target", "draft", "tensor_parallel"})  # fields that no entry may set


def served_models(entries: Sequence[str], models: ModelOptions, method: Method | None) -> list[ServedModel]:
    """The models of the command line; ConfigurationError or ModelError where one cannot be.

    `models` and `method` are for those that do not say otherwise.
    """
    if models.target is not None or models.draft:
        raise ConfigurationError("give --target or --model, not both; a model's draft is --model NAME=PATH,draft=PATH")
    if models.tensor_parallel > 1:
        raise ConfigurationError("--tensor-parallel is for one model; leave out --model")
    return [_served_model(entry, models, method) for entry in entries]


def _served_model(entry: str, models: ModelOptions, method: Method | None) -> ServedModel:
    """NAME=PATH,draft=PATH,method=NAME:KEY=VALUE;KEY=VALUE,quantize=int8 and so on."""
    from draftwood.eval.interleaved import parse_methods
    from draftwood.serve.served_models import ServedModel

    name, given, rest = entry.partition("=")
    target, *options = re.split(r",(?=[a-z_]+=)", rest)
    if not given or not name.strip() or not target:
        raise ConfigurationError(f"--model is {entry!r}, but has to be NAME=PATH, with options such as ,draft=PATH")
    changes: dict[str, Any] = {"target": target, "draft": []}
    for option in options:
        key, _, value = option.partition("=")
        known = [*OWN, *sorted(ModelOptions.model_fields.keys() - SHARED - {"threads"})]
        if key not in known:
            raise ConfigurationError(f"--model {name}: there is no option {key!r}" + did_you_mean(key, known))
        if key == "draft":
            changes["draft"].append(value)
        elif key == "method":
            method = parse_methods(value, ())[-1]
        else:
            changes[key] = value
    mine = config.parse(ModelOptions, {**models.model_dump(exclude_unset=True), **changes}, f"--model {name}")
    if not mine.drafts:  # the command line's options of drafts are for the other models
        mine = mine.model_copy(update={name: changes.get(name) for name in ("draft_device", "draft_dtype")})
    if method is not None:
        method.check_drafts(mine.drafts)
    size = sum(checkpoint_bytes(source) for source in (target, *(mine.arguments["draft"] or ())))
    return ServedModel(name.strip(), lambda: _load(mine), size, method)


def _load(models: ModelOptions) -> Engine:
    from draftwood.engine.loading import load

    return load(**models.arguments)


def checkpoint_bytes(source: str) -> int:
    """The bytes of a checkpoint's weights in files; raises ModelError where there is no checkpoint."""
    from draftwood.models.checkpoints import checkpoint

    place = checkpoint.locate(source)
    if place.is_dir():
        return sum(file.stat().st_size for file in place.glob("*.safetensors"))
    parts: list[Path] = [place]
    if split := re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", place.name):
        parts = list(place.parent.glob(f"{split[1]}-*-of-{split[2]}.gguf"))
    return sum(file.stat().st_size for file in parts)
