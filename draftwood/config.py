"""The one parser of settings: dictionaries, JSON, YAML and `key=value` flags become checked objects.

Knows how to say what is wrong in one sentence. Refuses to know what the settings mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from draftwood.errors import ConfigurationError, did_you_mean

Settings = TypeVar("Settings", bound=BaseModel)


def parse(kind: type[Settings], values: Mapping[str, Any], what: str) -> Settings:
    """`values` as an object of `kind`; raises ConfigurationError with one sentence about `what`."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ConfigurationError(f"{what} has no option {key!r}" + did_you_mean(key, kind.model_fields)) from None
        message = first["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if not key:  # options that do not go together
            raise ConfigurationError(f"{what}: {message}") from None
        raise ConfigurationError(f"{what}: option {key!r} is {first['input']!r}, but {message}") from None


def assignments(flags: Iterable[str]) -> dict[str, Any]:
    """`key=value` flags as a dictionary; values are read as YAML scalars (4, 0.5, true, text)."""
    values: dict[str, Any] = {}
    for flag in flags:
        key, sign, value = flag.partition("=")
        if not sign or not key.strip():
            raise ConfigurationError(f"--set takes key=value, not {flag!r}")
        try:
            values[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[key.strip()] = value
    return values


def document(text: str, where: str) -> dict[str, Any]:
    """A JSON or YAML document that holds one mapping."""
    try:
        values = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where} is neither JSON nor YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where} must hold a mapping of options, not {type(values).__name__}")
    return values
