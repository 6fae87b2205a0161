"""`python -m benchmarks`: what it prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "no.yaml"], "no.yaml cannot be read (No such file or directory)"),
        (["run", "engin"], "there is no experiment 'engin' (did you mean 'engine'"),
        (["run", "controllers", "--only", "simulate"], "has no run 'simulate' (did you mean 'simulation'"),
        (["run", "controllers", "--smoke"], "a smoke run is no result; give --out DIR for it"),
        (["run", "controllers", "--out", "/dev/null/x"], "/dev/null is not a directory"),
        (["run", "plan"], "is made by `draftwood plan"),
        (["run", "plan", "--onyl", "x"], "No such option: --onyl"),
        (["pages", "--root", "/dev/null"], "cannot be written"),
    ],
    ids=range(8),
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out and sentence in shown.err and shown.err.count("\n") == 1


def test_an_experiment_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "controllers", "--smoke", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| controller | a decision, µs |" in shown and "simulation.json" in shown
    assert json.loads((tmp_path / "simulation.json").read_text("utf-8"))["environment"]["torch"]
