"""Assistants, which read the target's keys and values, draft exactly: sequences and beams."""

from __future__ import annotations

from typing import Any

import pytest
from enumeration import EnumeratedRandomness
from tabular import TabularAssistant
from test_beam_drafters import CELLS
from test_beams_exact import EXACT, Enumerated, distance

from draftwood import Engine, SamplingParams, TabularModel
from draftwood.models.heads import mtp

END = frozenset({0})
WARPED = SamplingParams(temperature=1.5, top_k=2, presence_penalty=0.5)


@pytest.fixture(autouse=True)
def _assistants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp, "find", TabularAssistant)


@pytest.mark.parametrize("params", [SamplingParams(), WARPED], ids=["plain", "warped"])
@pytest.mark.parametrize(
    "method",
    [
        {"name": "mtp", "gamma": 2},
        {"name": "mtp", "width": 2, "gamma": 2, "least": 0.0},
        {"name": "mtp", "gamma": 2, "lookup": True},
        {"name": "mcsd", "drafter": "mtp", "tree": [2, 1]},
        pytest.param({"name": "mtp", "gamma": 3, "verify": "rejection"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sequences(method: dict[str, Any], params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(TabularModel.random(3, seed=21, n_layers=3), end_tokens=END)
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], method, 3, params)


@pytest.mark.parametrize(("options", "sampling", "vocab", "tokens", "end"), CELLS[:3], ids=str)
def test_beams(
    options: dict[str, Any],
    sampling: dict[str, Any],
    vocab: int,
    tokens: int,
    end: frozenset[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = TabularModel.random(vocab, seed=31, n_layers=3)
    enumerated = Enumerated(monkeypatch, vocab, end=end, target=target)
    assert distance(enumerated, {**options, "drafter": "mtp"}, sampling, tokens) < EXACT
