"""Scores beside plain decoding's: the same items with the same seeds, tasks of other scores together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.execute import execute
from benchmarks.experiment import find, load
from benchmarks.kinds.scores import compared
from benchmarks.pages.tables import documents
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


def test_scores_of_lossless_methods_do_not_differ_from_plain_decodings() -> None:
    """By as much as three hundred items show: no interval leaves out 0."""
    (document,) = documents("lossless")
    settings = document["settings"]
    items = settings["limit"] * len(settings["tasks"])
    assert items >= 300 and all(
        Method.parse({k: v for k, v in method.items() if k not in ("label", "over", "sweep")}).lossless
        for part in settings["parts"].values()
        for method in part["methods"]
    )
    for row in document["tables"]["scores"][1:]:
        points = row["points"]
        assert points["n"] == items and points["low"] <= 0 <= points["high"], row
