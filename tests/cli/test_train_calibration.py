"""`draftwood train calibration`: from prompts to a predictor that `generate` uses, and mistakes in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Command

from draftwood.models.checkpoints import artifact

SMALL = ("--max-new-tokens", 16, "--epochs", 3, "--dtype", "float64")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join(f"line {i}" for i in range(12)) + "\n\n", "utf-8")
    return path


def test_a_predictor_is_trained_and_used(command: Command, pair: list[str], prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "one.safetensors"
    train = ("train", "calibration", "--prompts", prompts, "--out", out, *SMALL)
    document = command(*train, *pair, "--json").document
    assert document["prompts"] == 12 and document["drafts"] > 12
    wanted = {"name": "speculative", "verify": "traversal", "gamma": 10, "depth": "fixed"}
    assert wanted.items() <= document["method"].items()
    assert sorted(path.name for path in out.parent.iterdir()) == ["one.safetensors"]
    assert out.stat().st_mode == prompts.stat().st_mode  # as readable as any other file
    assert artifact.load(out, "calibration").settings["theta0"] == document["theta0"]
    generate = ("generate", "Once", "--max-new-tokens", 12, "--temperature", 0, "--dtype", "float64")
    plain = command(*generate, *pair, "--method", "autoregressive").out
    shown = command(*generate, *pair, "--method", "speculative", "--set", f"depth=cali-ts:{out}")
    assert (shown.code, shown.out) == (0, plain)
    assert f"depth=cali-ts:{out}" in shown.err
    swapped = [pair[0], pair[3], pair[2], pair[1]]
    other = command(*generate, *swapped, "--set", f"depth=cali-ts:{out}")
    assert other.code == 2 and "was trained for another target" in other.err
    line = command(*train, *pair).out
    assert line.count("\n") == 1 and f"use it with --set depth=cali-ts:{out}" in line and "AUC" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "one.json"), "--out is one.json, but cali-ts reads a .safetensors file"),
        (("--out", "a=b.safetensors"), "depth=cali-ts:PATH takes a path without commas and ="),
        (("--out", "folder.safetensors"), "which is a directory; name a file"),
        (("--out", "one.safetensors", "--epochs", 0), "--epochs is 0, but must be at least 1"),
        (
            ("--out", "one.safetensors", "--prompts", "nowhere.txt"),
            "the prompt file nowhere.txt cannot be read: No such file or directory",
        ),
        (("--out", "one.safetensors", "--limit", 0), "--limit is 0, but must be at least 1"),
        (("--out", "one.safetensors", "--method", "lookup"), "cali-ts cannot control method lookup"),
        (("--out", "one.safetensors", "--limit", 3, "--max-new-tokens", 12), "cannot be split"),
        (("--out", "prompts.txt/one.safetensors"), "prompts.txt"),
        (("--out", "one.safetensors", "--prompts", "one.empty"), "the prompt file one.empty is empty"),
    ],
    ids=["json", "name", "folder", "epochs", "prompts", "limit", "method", "few", "directory", "empty"],
)
def test_mistakes(
    command: Command,
    pair: list[str],
    prompts: Path,
    arguments: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_bytes(prompts.read_bytes())
    (tmp_path / "one.empty").write_text("\n\n", "utf-8")
    (tmp_path / "folder.safetensors").mkdir()
    found = command("train", "calibration", "--prompts", "prompts.txt", *arguments, *pair)
    assert found.code == 2 and message in found.err and found.err.count("\n") == 1 and not found.out
