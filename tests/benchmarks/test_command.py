"""`python -m benchmarks`: what it prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import command
from benchmarks.__main__ import main
from benchmarks.papers.__main__ import app


def papers(arguments: list[str]) -> int:
    return command.started(app, "benchmarks.papers", arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "no.yaml"], "no.yaml cannot be read (No such file or directory)"),
        (["run", "engin"], "there is no experiment 'engin' (did you mean 'engine'"),
        (
            ["run", "engine", "--only", "embeded-float32"],
            "has no run 'embeded-float32' (did you mean 'embedded-float32'",
        ),
        (["run", "engine", "--smoke"], "a smoke run is no result; give --out DIR for it"),
        (["run", "engine", "--out", "/dev/null/x"], "/dev/null is not a directory"),
        (["run", "engine", "--onyl", "x"], "No such option: --onyl"),
        (["pages", "--root", "/dev/null"], "/dev/null/README.md cannot be read (Not a directory)"),
    ],
    ids=range(7),
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out and sentence in shown.err and shown.err.count("\n") == 1


def test_kernels_that_do_not_fit_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result would have the speed of PyTorch's kernels, and nobody would have asked for that."""
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    monkeypatch.setattr(command, "unavailable", lambda: "draftwood-native is of another version; install it again")
    for start in (["run", "engine", "--smoke", "--out", str(tmp_path)], ["mcsd", "--out", str(tmp_path)]):
        assert (main if start[0] == "run" else papers)(start) == 2
        assert "PyTorch's kernels would be measured: draftwood-native is of another" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_experiment_writes_its_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "embedded-float32"]
    assert main(["run", "engine", *only, "--smoke", "--out", str(tmp_path)]) == 0
    assert "embedded-float32.json" in capsys.readouterr().out
    found = json.loads((tmp_path / "embedded-float32.json").read_text("utf-8"))
    assert found["environment"]["torch"] and found["made_by"].startswith("python -m benchmarks run engine")
    assert found["tables"]["loop"][0]["ratio"]["value"] > 0
