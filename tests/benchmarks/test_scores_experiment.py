"""Scores beside plain decoding's: the same items with the same seeds, tasks of other scores together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.execute import execute
from benchmarks.experiment import find, load
from benchmarks.kinds.scores import MethodScores, compared
from benchmarks.pages.tables import documents
from draftwood.errors import ConfigurationError
from draftwood.methods import Method


def run(method: int, place: int, seed: int, score: float) -> dict[str, Any]:
    return {"method": method, "place": place, "seed": seed, "tokens": 4, "score": score}


def test_a_difference_is_of_the_same_items_and_seeds() -> None:
    plain = [run(0, place, seed, 1.0) for place in range(4) for seed in range(2)]
    worse = [run(1, place, seed, float(place > 0 or seed > 0)) for place in range(4) for seed in range(2)]
    found = compared(worse, plain[:-1])
    assert found["runs"] == 7 and found["points"]["value"] == pytest.approx(-100 / 7) and found["points"]["n"] == 4
    assert found["score"]["value"] == pytest.approx(6 / 7)
    assert compared(plain, plain)["points"]["value"] == 0


def test_every_method_is_asked_all_items(tmp_path: Path) -> None:
    path = find("lossless")
    experiment = load(path)
    rows = execute(experiment, path, "tiny", experiment.runs["embedded"], tmp_path, smoke=True)["tables"]["scores"]
    assert [row["method"] for row in rows] == ["plain", "chain of 4", "mcsd 2,1,1,1", "eesd"]
    assert {(row["runs"], row["points"]["n"]) for row in rows} == {(8, 4)} and rows[0]["points"]["value"] == 0


def test_data_sets_are_asked_as_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": str(i), "context": "There.", "question": f"Where {i}?", "answers": ["There."]} for i in range(3)]
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "dev.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    experiment = load(find("lossless"))
    made = experiment.measure(experiment.runs["smollm2"])
    assert isinstance(made, MethodScores)
    ((task, items),) = made.items(["squad"])
    assert task.name == "squad" and items and all(isinstance(item.prompt(), list) for item in items)
    assert all(item.max_new_tokens == made.tokens for item in items)
    with pytest.raises(ConfigurationError, match=r"has no spider/\*dev\*\.json\*, the file of task spider"):
        made.items(["spider"])


def test_scores_of_lossless_methods_do_not_differ_from_plain_decodings() -> None:
    """By as much as three hundred items show: no interval leaves out 0."""
    for document in documents("lossless"):
        assert all(
            Method.parse({k: v for k, v in method.items() if k not in ("label", "over", "sweep")}).lossless
            for part in document["settings"]["parts"].values()
            for method in part["methods"]
        )
        for row in document["tables"]["scores"][1:]:
            points = row["points"]
            assert points["n"] >= 300 and points["low"] <= 0 <= points["high"], row
