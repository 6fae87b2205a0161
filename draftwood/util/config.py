"""The one parser of settings: dictionaries, JSON, YAML and `key=value` flags become checked objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util.safe_parsing import parse_value, parse_yaml, read_text, short_repr

Settings = TypeVar("Settings", bound=BaseModel)
Count = Annotated[int, Field(ge=1)]
PLAINER = {
    "Value error, ": "",
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def parse(kind: type[Settings], values: Mapping[str, Any], what: str, noun: str = "option") -> Settings:
    """`values` as an object of `kind`; raises ConfigurationError with one sentence about `what`.

    `noun` is what the sentence calls one of the values.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{what} is {short_repr(values)}, but must be a mapping of {noun}s to values")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first, message = error.errors()[0], reason(error)
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            has_no = f"{noun} {short_repr(key)}" if kind.model_fields else f"{noun}s"
            raise ConfigurationError(f"{what} has no {has_no}" + did_you_mean(key, kind.model_fields)) from None
        if not key:  # options that do not go together
            raise ConfigurationError(f"{what}: {message}") from None
        raise ConfigurationError(f"{what}: {noun} {key!r} is {short_repr(first['input'])}, but {message}") from None


def reason(error: ValidationError) -> str:
    """The fault of the first value that pydantic refuses, in plain words: 'must be at least 1'."""
    return plain(error.errors()[0]["msg"])


def plain(message: str) -> str:
    """A message of pydantic in plain words."""
    for long, short in PLAINER.items():
        message = message.replace(long, short)
    return message[:1].lower() + message[1:]


def assignments(flags: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """`key=value` flags as a dictionary; values are read as YAML scalars (4, 0.5, true, text)."""
    values: dict[str, Any] = {}
    for flag in flags:
        key, sign, value = flag.partition("=")
        if not sign or not key.strip():
            raise ConfigurationError(f"{option} takes key=value, not {short_repr(flag)}")
        values[key.strip()] = parse_value(value)
    return values


def document(path: Path, what: str) -> dict[str, Any]:
    """The mapping that a JSON or YAML file holds; `what` names the file's purpose in errors."""
    if not path.is_file():
        raise ConfigurationError(f"{what} {path} does not exist")
    try:
        values = parse_yaml(read_text(path))  # JSON is YAML
    except ValueError as error:
        raise ConfigurationError(f"{path} is neither JSON nor YAML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror or error})") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigurationError(f"{path} must hold a mapping of options, not {short_repr(values)}")
    return values
