"""JSON and YAML that others may have written, read with bounds: bytes, depth, digits, no aliases, finite numbers.

Every such text goes through here. The functions that parse raise ValueError with a short
reason whatever the text holds (OSError where a file cannot be read); callers add which file it is and what to do.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml

MAX_JSON_BYTES = 64 << 20  # of a JSON document: the longest indices of published checkpoints have some MiB
MAX_YAML_LENGTH = 1 << 20  # characters; settings are short, and the parser is slow
MAX_NESTING = 64  # mappings and lists inside each other
MAX_DIGITS = 40  # of an integer; published configurations have up to 31


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a file of at most `max_bytes` bytes in UTF-8."""
    data = bytearray()
    with path.open("rb") as file:
        while len(data) <= max_bytes and (piece := file.read(1 << 20)):
            data += piece
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data.decode("utf-8")


def parse_json(text: str | bytes, finite: bool = True) -> Any:
    """A JSON document; `finite` refuses NaN, Infinity and numbers such as 1e400, which JSON itself does not know."""

    def constant(word: str) -> float:
        if finite:
            raise ValueError(f"{word} is not a number that JSON knows")
        return float(word)

    def fraction(digits: str) -> float:
        value = float(digits)
        if finite and math.isinf(value):
            raise ValueError(f"the number {short_repr(digits)} is too large")
        return value

    try:
        return json.loads(text, parse_int=_integer, parse_float=fraction, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """A YAML document, JSON included; dates stay text."""
    if len(text) > MAX_YAML_LENGTH:
        raise ValueError(f"it has more than {MAX_YAML_LENGTH:,} characters")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{getattr(error, 'problem', None) or short_repr(str(error))}{place}") from None
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:  # a malformed tag
        raise ValueError(f"it holds what no setting can be ({short_repr(str(error))})") from None


def parse_value(text: str) -> Any:
    """The value of a `key=value` flag: a YAML scalar, list or mapping; what is none of them is the text itself."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def short_repr(value: object, max_length: int = 60) -> str:
    """The repr of any value on one line for an error message, cut to `max_length` characters; it never raises."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # whatever a foreign object's repr raises
        text = f"a {type(value).__name__}"
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is too large")
    return int(digits)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, dates and endless depth."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_NESTING or self.check_event(yaml.AliasEvent):
            reason = "it is nested too deeply" if self.depth > MAX_NESTING else "aliases are not read"
            raise yaml.composer.ComposerError(None, None, reason, self.get_mark())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number as PyYAML reads it, if it is short and finite."""
        text, integer = node.value, node.tag.endswith(":int")
        reason = f"{short_repr(text)} is not a finite number"
        if integer and len(text) > MAX_DIGITS:
            reason = f"a number of {len(text):,} digits is too large"
        else:
            with suppress(ValueError):
                value = self.construct_yaml_int(node) if integer else self.construct_yaml_float(node)
                if math.isfinite(value):
                    return value
        raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.number)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def lines_of(text: str) -> list[str]:
    """The lines of a file's text. Only `splitlines` ends lines at U+2028 and others too, which JSON may hold."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
