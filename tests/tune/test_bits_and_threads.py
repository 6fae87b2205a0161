"""Bits and threads compared on a clockwork, and weights in other bits of tiny checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import TabularModel, load
from draftwood.errors import ConfigurationError
from draftwood.models.base import CausalModel
from draftwood.tune import bits_and_threads
from draftwood.tune.bits_and_threads import compare_settings, other_weights
from draftwood.util import native_library

INT8, BFLOAT16 = "--quantize int8", "--dtype bfloat16"
SLOW, FAST = TabularModel.random(4, seed=1), TabularModel.random(4, seed=2)


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[CausalModel, int], list[float]]:
    """(model, threads) -> factors of its forwards' seconds, turn by turn, the last one for ever; 4 cores."""
    now, factors = [0.0], dict[tuple[CausalModel, int], list[float]]()

    def forwards(model: CausalModel, rows: Any, *rest: Any) -> dict[int, float]:
        left = factors.get((model, torch.get_num_threads()), [1.0])
        factor = left.pop(0) if len(left) > 1 else left[0]
        now[0] += 0.1 * factor
        return {1: factor, 8: 2 * factor if factor != 0.5 else 3.0}  # half the time of one row, but more of eight

    monkeypatch.setattr(bits_and_threads, "forward_seconds", forwards)
    monkeypatch.setattr(bits_and_threads, "perf_counter", lambda: now[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    return factors


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    assert torch.get_num_threads() == 1


def test_the_fastest_threads_and_bits(clockwork: dict[Any, list[float]]) -> None:
    clockwork |= {(SLOW, 2): [0.8], (SLOW, 4): [0.9], (FAST, 2): [0.4]}
    result = compare_settings(SLOW, {INT8: lambda: FAST, BFLOAT16: lambda: SLOW}, 100)
    assert [(one.weights, one.threads) for one in result.settings] == [
        ("", 1),
        ("", 2),
        ("", 4),
        (INT8, 2),
        (BFLOAT16, 2),
    ]
    assert [round(one.speed_up[1], 3) for one in result.settings] == [1.0, 1.25, 1.111, 2.5, 1.25]
    assert [one.faster for one in result.settings] == [False, True, True, True, False]
    assert result.options == [INT8, "--threads 2"] and result.best is result.settings[3]
    assert json.loads(json.dumps(result.as_dict()))["recommended_options"] == result.options


@pytest.mark.parametrize("factors", [[1.2], [0.97], [0.5], [1.1, 0.6, 1.1, 0.6]], ids=str)
def test_what_is_not_surely_faster_is_not_recommended(clockwork: dict[Any, list[float]], factors: list[float]) -> None:
    """Slower; hardly faster; slower with 8 rows; slower in two turns."""
    clockwork[FAST, 1] = factors
    result = compare_settings(SLOW, {INT8: lambda: FAST}, 100)
    assert result.options == [] and result.best is result.settings[0] and len(result.settings) == 4


def test_what_there_is_no_time_for_is_left_out(clockwork: dict[Any, list[float]]) -> None:
    def refused() -> CausalModel:
        raise ConfigurationError("not here")

    assert compare_settings(SLOW, {INT8: refused}, 100).notes == [f"{INT8}: not compared: not here"]
    result = compare_settings(SLOW, {INT8: lambda: FAST, BFLOAT16: lambda: FAST}, 100, load_seconds=100)
    assert result.notes == [f"{INT8}, {BFLOAT16}: not compared, since there was no time; raise --seconds"]
    result = compare_settings(SLOW, {}, 0.9)
    assert "raise --seconds" in result.notes[0] and [one.threads for one in result.settings] == [1]


@pytest.mark.skipif(native_library.unavailable() is not None, reason="int4 needs draftwood-native")
def test_weights_in_other_bits(target: Path, tmp_path: Path) -> None:
    """int4 where it was made, and nothing is made for a comparison."""
    place = tmp_path / "copy"
    shutil.copytree(target, place, ignore=shutil.ignore_patterns("int4"))
    options: dict[str, Any] = {"target": str(place), "draft": [], "dtype": "float32"}
    engine = load(**options)
    others, notes = other_weights(engine, options)
    assert [*others] == [INT8, BFLOAT16] and "int4 was not compared" in notes[0] and not (place / "int4").exists()
    assert others[BFLOAT16]().dtype == torch.bfloat16  # type: ignore[attr-defined]
    load(**options, quantize="int4")
    others, notes = other_weights(engine, options)
    assert [*others] == [INT8, "--quantize int4", BFLOAT16] and notes == []
    result = compare_settings(engine.target, others, 0.5)
    assert result.settings[0].seconds[8] > 0 and not any("not here" in note for note in result.notes)
    others, _ = other_weights(load(**options, quantize="int8"), {**options, "quantize": "int8"})
    assert [*others] == ["--quantize int4", "no --quantize"]
    others, _ = other_weights(engine, {**options, "draft_device": "cpu", "draft_dtype": "float64"})
    assert others[BFLOAT16]().dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert other_weights(load(SLOW), {"draft": []}) == ({}, [])
