"""`draftwood generate` and `explain` with a grammar: each flag arrives, and what is wrong with one is a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

SCHEMA = {"type": "object", "properties": {"ripe": {"type": "boolean"}}, "required": ["ripe"]}
SCHEMA["additionalProperties"] = False
FLAGS = ["--max-new-tokens", 80, "--seed", 1]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fruit.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "fruit.yaml").write_text("type: object\nproperties: {ripe: {const: true}}\nrequired: [ripe]\n")
    (tmp_path / "sum.lark").write_text('start: "1" ("+" "1")*')
    (tmp_path / "sum.gbnf").write_text('root ::= "1+" "1"')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    return tmp_path


@pytest.mark.some(10)
@pytest.mark.parametrize(
    ("flags", "structured", "pattern"),
    [
        (["--json-schema", "fruit.json"], {"json_schema": SCHEMA}, r'\{"ripe": (true|false)\}'),
        (["--json-schema", "fruit.yaml"], None, r'\{"ripe": true.*\}?'),
        (["--regex", "[ab]{3}"], {"regex": "[ab]{3}"}, "[ab]{3}"),
        (["--choice", "yes", "--choice", "no"], {"choice": ["yes", "no"]}, "yes|no"),
        (["--grammar", "sum.lark"], {"grammar": 'start: "1" ("+" "1")*'}, r"1(\+1)*\+?"),
        (["--grammar", "sum.gbnf"], None, r"1\+1"),
        (["--json-object"], {"json_object": True}, r"\{.*"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["autoregressive", "speculative", "dsbd"])
def test_each_flag(
    command: Command, pair: list[str], files: Path, flags: list[str], structured: Any, pattern: str, method: str
) -> None:
    shown = command("generate", "a fox", *pair, *FLAGS, *flags, "--method", method, "--json")
    assert shown.code == 0, shown.err
    assert re.fullmatch(pattern, shown.document["text"], re.DOTALL)
    assert structured in (None, shown.document["structured"])
    assert command("generate", "a fox", *pair, *FLAGS, *flags, "--method", method).out == shown.document["text"]


def test_forced_tokens_are_drawn(command: Command, pair: list[str]) -> None:
    shown = command("explain", "a fox", *pair, *FLAGS, "--choice", "yes", "--choice", "no")
    assert shown.code == 0 and "forced" in shown.out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--regex", "a", "--choice", "b"], "give exactly one of json_schema, json_object, regex, choice, grammar"),
        (["--regex", "(a"], "unclosed group"),
        (["--json-schema", "none.json"], "none.json does not exist"),
        (["--json-schema", "broken.json"], "is neither JSON nor YAML"),
        (["--json-schema", "list.json"], "must hold a mapping"),
        (["--grammar", "none.lark"], "none.lark cannot be read"),
        (["--regex", "a", "--ignore-eos"], "leave out ignore_eos"),
    ],
    ids=str,
)
def test_what_is_wrong_is_a_sentence(
    command: Command, pair: list[str], files: Path, flags: list[str], sentence: str
) -> None:
    shown = command("generate", "a fox", *pair, *FLAGS, *flags)
    assert shown.code == 2 and shown.out == "" and sentence in shown.err
    assert shown.err.count("\n") == 1
