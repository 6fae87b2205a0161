"""The experiments grammars and matchers: what masks cost; a stand-in for the library that draftwood does not use."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llguidance
import pytest
import torch

from benchmarks.execute import execute
from benchmarks.experiment import load
from benchmarks.kinds.grammars import larger
from benchmarks.tables import markdown
from draftwood.errors import ConfigurationError

BENCH = Path(__file__).parents[2] / "benchmarks" / "experiments"


def measured(name: str, out: Path) -> dict[str, Any]:
    path = BENCH / f"{name}.yaml"
    experiment = load(path)
    (run,) = experiment.runs.values()
    found = execute(experiment, path, "tiny", run, out, smoke=True)
    assert all(markdown(table, [found]).count("\n") > 3 for table in experiment.tables)
    tables: dict[str, Any] = found["tables"]
    return tables


def test_masks_are_a_part_of_a_round(tmp_path: Path) -> None:
    rows = measured("grammars", tmp_path)["grammars"]
    assert {row["grammar"] for row in rows} == {"record", "any object", "words"}
    assert all(0 < row["share"]["value"] < 1 and row["masks"]["value"] >= 1 for row in rows)


class Matcher:
    """As xgrammar's, of a grammar that llguidance follows."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self.inner = inner
        self.rollback, self.accept_token = inner.rollback, inner.consume_token

    def fork(self) -> Matcher:
        return Matcher(self.inner.deep_copy())

    def fill_next_token_bitmask(self, bits: torch.Tensor) -> None:
        bits[0] = torch.frombuffer(bytearray(self.inner.compute_bitmask()), dtype=torch.int32)


def stand_in() -> Any:
    words = larger(2100)
    spelled = llguidance.LLTokenizer(words.backend.to_str(), words.size, 0)  # type: ignore[union-attr]

    def compiler(texts: list[str], cache_enabled: bool) -> Any:
        assert texts[0] == "" and texts[2] == '"' and not cache_enabled

        def json_schema(text: str, any_whitespace: bool, strict_mode: bool) -> llguidance.LLMatcher:
            options = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": any_whitespace}
            assert not strict_mode and json.loads(text)["type"] == "object"
            return llguidance.LLMatcher(spelled, llguidance.LLMatcher.grammar_from_json_schema(text, options))

        def regex(text: str) -> llguidance.LLMatcher:
            return llguidance.LLMatcher(spelled, llguidance.grammar_from("regex", text))

        return SimpleNamespace(compile_json_schema=json_schema, compile_regex=regex)

    return SimpleNamespace(
        VocabType=SimpleNamespace(BYTE_LEVEL=2),
        TokenizerInfo=lambda texts, kind, vocab_size, stop_token_ids: texts,
        GrammarCompiler=compiler,
        GrammarMatcher=Matcher,
    )


def test_libraries_walk_the_same_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ConfigurationError, match="pip install xgrammar, or leave it out"):
        measured("matchers", tmp_path)
    monkeypatch.setitem(sys.modules, "xgrammar", stand_in())
    rows = measured("matchers", tmp_path)["matchers"]
    assert len(rows) == 3 * 2 * 2 and {row["library"] for row in rows} == {"llguidance", "xgrammar"}
    for row in rows:
        assert row["walked_us"]["value"] > row["mask_us"]["value"] > 0
        assert row["copied_us"]["value"] > 0 and row["compile_ms"]["value"] > 0
    alone = {(row["grammar"], row["library"]): row["alone"] for row in rows}
    assert alone["record", "llguidance"] == alone["record", "xgrammar"] > 0 == alone["words", "llguidance"]
