"""Hostile JSON and YAML: whatever is in it, a short reason and no other error, quickly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.depth import parse_depth
from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.util import config
from draftwood.util.safe_parsing import MAX_NESTING, parse_json, parse_value, parse_yaml, read_text, short_repr

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "aliases": (LAUGHS, "aliases are not read"),
    "depth": ("[" * 3000, "nested too deeply"),
    "block depth": ("- " * 3000, "nested too deeply"),
    "digits": ("gamma: " + "9" * 4000, "a number of 4,000 digits is too large"),
    "hexadecimal": ("gamma: 0x" + "f" * 4000, "a number of 4,002 digits is too large"),
    "infinity": ("a: .inf", "is not a finite number"),
    "overflow": ("a: 1e400", "is not a finite number"),
    "size": ("a" * (2 << 20), "more than 1,048,576 characters"),
    "objects": ("!!python/object/apply:os.system [x]", "could not determine a constructor"),
    "keys": ("{[1]: 2}", "unhashable key"),
    "timestamp": ("!!timestamp 2024-99-99", "what no setting can be"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_yaml_bombs_are_one_short_sentence(bomb: str, tmp_path: Path) -> None:
    text, reason = BOMBS[bomb]
    path = tmp_path / "method.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        Method.parse(f"file:{path}")
    assert len(str(caught.value)) < 300 + len(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 10**6, "nested too deeply"),
        ("1" * 4000, "4,000 digits"),
        ("[1e400]", "too large"),
        ("Infinity", "not a number that JSON knows"),
        ("NaN", "not a number that JSON knows"),
        ("{", "line 1"),
    ],
)
def test_json_bombs(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 200


def test_plain_settings_are_read_as_before() -> None:
    assert parse_yaml("name: mcsd\ngamma: 4\ntree: [2, 1]\np: 0.5\nq: null\nr: true") == {
        "name": "mcsd",
        "gamma": 4,
        "tree": [2, 1],
        "p": 0.5,
        "q": None,
        "r": True,
    }
    deep = "[" * MAX_NESTING + "]" * MAX_NESTING
    assert parse_yaml(deep) == json.loads(deep)
    assert parse_json("[NaN]", finite=False)[0] != parse_json("[Infinity]", finite=False)[0] == math.inf


@pytest.mark.parametrize("value", ["2024-99-99", "2024-01-01", "9" * 4000, ".inf", "1e400", "*a", "[" * 3000])
def test_impossible_values_of_an_option_are_one_sentence(value: str) -> None:
    with pytest.raises(ConfigurationError, match="option 'gamma' is ") as caught:
        Method.parse("speculative", config.assignments([f"gamma={value}"]))
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match="controller confidence: setting 'threshold' is") as refused:
        parse_depth(f"confidence:{value}" if "[" not in value else {"name": "confidence", "threshold": value})
    assert len(str(refused.value)) < 200


def test_long_names_and_values_are_cut() -> None:
    for spec in (
        {"name": "x" * 10**6},
        {"name": "speculative", "y" * 10**6: 1},
        {"name": "speculative", "gamma": "z" * 10**6},
    ):
        with pytest.raises(ConfigurationError) as caught:
            Method.parse(spec)
        assert len(str(caught.value)) < 400
    nested: Any = []
    for _ in range(10**5):
        nested = [nested]
    assert len(short_repr(nested)) <= 60 and len(short_repr("x" * 10**7)) <= 60 and len(short_repr(10**4000)) <= 60


def test_files_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 1001)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_text(tmp_path / "long", 1000)
    assert len(read_text(tmp_path / "long", 1001)) == 1001
    if Path("/dev/zero").exists():
        with pytest.raises(ValueError, match="more than 5 bytes"):
            read_text(Path("/dev/zero"), 5)


@settings(max_examples=300, deadline=None)
@given(st.text("[]{}:,-&*!?|>%@`'\"#\n \tab01.e+_~<=", max_size=60) | st.text(max_size=40))
def test_whatever_a_text_is_it_is_read_or_refused(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            parse(text)
        except ValueError as error:
            assert len(str(error)) < 300
    parse_value(text)
    short_repr(text)
