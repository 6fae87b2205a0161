"""Rounds that a text takes with other lookups, from the text alone."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.kinds.drafters import ngram_rounds, tree_rounds


def test_rounds_of_fixed_n_grams() -> None:
    assert ngram_rounds([1, 2, 3], [4, 5]) == 2  # nothing is there twice
    assert ngram_rounds([1, 2, 3, 4, 1, 2], [3, 4, 9, 9]) == 2  # 3 4 1 2 are drafted, 3 4 accepted, 9 is the target's
    assert ngram_rounds([1, 2], [1, 2, 1, 2, 1, 2, 1, 2]) == 3  # a copy may run into itself: 1, 2, then the rest
    assert ngram_rounds([1, 2, 3, 1, 2, 4, 1, 2], [3, 5]) == 2  # the latest: 4


def test_rounds_of_suffix_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arctic-inference drafts, here 1, 2 behind every 0, is told each token once."""
    told: list[list[int]] = []

    class Trees:
        def __init__(self, depth: int, max_cached_requests: int) -> None:
            assert max_cached_requests == 0  # no answers of other requests

        def start_request(self, request: int, prompt: list[int]) -> None:
            told.append(prompt)

        def speculate(self, request: int, pattern: list[int], **options: Any) -> Any:
            assert pattern == [token for each in told for token in each][-64:] and options == {"max_spec_tokens": 32}
            return SimpleNamespace(token_ids=[1, 2] if pattern[-1] == 0 else [])

        def add_active_response(self, request: int, tokens: list[int]) -> None:
            told.append(tokens)

    module = ModuleType("arctic_inference.suffix_decoding")
    module.SuffixDecodingCache = Trees  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "arctic_inference", ModuleType("arctic_inference"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert tree_rounds([5, 0], [1, 2, 3, 0, 1, 7, 0, 1]) == 5
    assert told == [[5, 0], [1, 2, 3], [0], [1, 7], [0], [1]]
