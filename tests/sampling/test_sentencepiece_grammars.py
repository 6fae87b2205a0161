"""Grammars on sentencepiece models, whose pieces carry spaces, and whose bytes are tokens or missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pieces
import pytest

from draftwood import Engine, RequestError, TabularModel
from draftwood.models.text.tokenizer import Tokenizer

END = 2
RECORD = {
    "type": "object",
    "properties": {"the dog": {"enum": ["lazy dog", "brown fox"]}, "code": {"type": "string", "maxLength": 4}},
    "required": ["the dog", "code"],
    "additionalProperties": False,
}
SPECS: list[tuple[dict[str, Any], str]] = [
    (
        {"choice": ["the quick fox", "  two spaces", "the", "hello\tcorpus"]},
        "the quick fox|  two spaces|the|hello\tcorpus",
    ),
    ({"regex": "(the |fox )+x"}, "(the |fox )+x"),
    ({"regex": "[a-z]{1,3} (東京|日本|🙂)é?"}, "[a-z]{1,3} (東京|日本|🙂)é?"),
    ({"grammar": 'start: "[" WORD (" " WORD)* "]"\nWORD: /[a-z]{1,5}/'}, r"\[[a-z]+( [a-z]+)*\]"),
]
METHODS: list[Any] = [
    "autoregressive",
    "speculative",
    {"name": "mcsd", "tree": [2, 2]},
    {"name": "dsbd", "width": 2, "gamma": 3},
]


def engine(place: Path, kind: str) -> Engine:
    words = Tokenizer.load(pieces.write(place, kind))
    target, draft = (TabularModel.random(words.size, seed, order=1) for seed in (1, 2))
    return Engine(target, [draft], words, frozenset({END}))


@pytest.mark.parametrize("kind", ["llama", "unigram"])
def test_every_complete_text_is_of_the_grammar(tmp_path: Path, kind: str) -> None:
    ours = engine(tmp_path, kind)
    complete = 0
    for seed, (spec, pattern) in enumerate(SPECS):
        for method in METHODS:
            result = ours.generate("hello", method, max_new_tokens=60, seed=seed, structured=spec)
            assert result.finish_reason in ("eos", "length")
            if result.finish_reason == "eos":
                complete += 1
                assert re.fullmatch(pattern, result.text), (spec, result.text)
    assert complete > len(SPECS) * len(METHODS) * 3 // 4


@pytest.mark.parametrize("kind", ["llama", "unigram"])
def test_json_is_forced_where_the_schema_leaves_no_choice(tmp_path: Path, kind: str) -> None:
    ours = engine(tmp_path, kind)
    for seed, method in enumerate(METHODS):
        result = ours.generate("hello", method, max_new_tokens=80, seed=seed, structured={"json_schema": RECORD})
        assert result.finish_reason == "eos" and json.loads(result.text)["the dog"] in ("lazy dog", "brown fox")
        assert result.text.startswith('{"the dog": "') and result.metrics.forced > 5


def test_what_pieces_without_bytes_cannot_spell_ends_the_request(tmp_path: Path) -> None:
    ours = engine(tmp_path, "unknowns")
    assert ours.generate("hello", structured={"choice": ["the dog"]}, max_new_tokens=30).text == "the dog"
    with pytest.raises(RequestError, match="no token of this model goes on"):
        ours.generate("hello", structured={"choice": ["🙂"]}, max_new_tokens=30)
