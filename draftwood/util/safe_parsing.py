"""JSON and YAML that others may have written, read with bounds: bytes, depth, digits, no aliases, finite numbers.

Every such text goes through here. What parses raises ValueError with a short reason (OSError where a file cannot be
read), whatever the text holds; callers say which file it is and what to do.
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

MOST_BYTES = 64 << 20  # of a JSON document: the longest indices of published checkpoints have some MiB
MOST_YAML = 1 << 20  # characters; settings are short, and the parser is slow
DEEPEST = 64  # mappings and lists inside each other
DIGITS = 40  # of a whole number; published configurations have up to 31


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file of at most `most` bytes in UTF-8."""
    data = bytearray()
    with path.open("rb") as file:
        while len(data) <= most and (piece := file.read(1 << 20)):
            data += piece
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
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
            raise ValueError(f"the number {shown(digits)} is too large")
        return value

    try:
        return json.loads(text, parse_int=_whole, parse_float=fraction, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """A YAML document, JSON included; dates stay text."""
    if len(text) > MOST_YAML:
        raise ValueError(f"it has more than {MOST_YAML:,} characters")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{getattr(error, 'problem', None) or shown(str(error))}{place}") from None
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:  # a malformed tag
        raise ValueError(f"it holds what no setting can be ({shown(str(error))})") from None


def parse_value(text: str) -> Any:
    """The value of a `key=value` flag: a YAML scalar, list or mapping; what is none of them is the text itself."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def shown(value: object, most: int = 60) -> str:
    """A value as an error may print it: its repr, cut to `most` characters."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # whatever a foreign object's repr raises
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is too large")
    return int(digits)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, dates and endless depth."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST or self.check_event(yaml.AliasEvent):
            reason = "it is nested too deeply" if self.depth > DEEPEST else "aliases are not read"
            raise yaml.composer.ComposerError(None, None, reason, self.get_mark())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number as PyYAML reads it, if it is short and finite."""
        text, whole = node.value, node.tag.endswith(":int")
        reason = f"{shown(text)} is not a finite number"
        if whole and len(text) > DIGITS:
            reason = f"a number of {len(text):,} digits is too large"
        else:
            with suppress(ValueError):
                value = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
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
