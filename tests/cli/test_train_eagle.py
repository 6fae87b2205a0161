"""`draftwood train eagle`, as a user runs it, on a tiny target, and its head as a draft."""

import json
from pathlib import Path

import pytest
from conftest import Command

SIZES = ["--context", "24", "--rows", "16", "--held-out", "2", "--batch", "2", "--warmup", "1", "--unroll", "2"]


def test_train_resume_and_use(command: Command, target: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "texts.jsonl", tmp_path / "eagle"
    text.write_text("".join(json.dumps({"text": "a b c " * (i % 5 + 3)}) + "\n" for i in range(40)), "utf-8")
    flags = ["train", "eagle", "--target", str(target), "--data", str(text), "--out", str(out), *SIZES]
    flags += ["--precision", "float32", "--steps", "4"]
    first = command(*flags, "--vocabulary", "20", "--save-every", "2", "--json").document
    assert (first["unroll"], first["steps"], first["new"]) == (2, 4, 4)
    assert 0 <= first["acceptance_2"] <= 1 and "acceptance_3" not in first
    assert {path.name for path in out.iterdir()} >= {"eagle.safetensors", "run.safetensors", "curve.json", "README.md"}
    again = command(*flags, "--vocabulary", "20")
    assert "an EAGLE head" in again.out and "acceptance step by step" in again.out
    other = command(*flags)
    assert (other.code, other.err.count("\n")) == (2, 1) and "whose vocabulary is 20, not None" in other.err
    options = ["--target", str(target), "--max-new-tokens", "8", "--temperature", "0", "--json"]
    plain = command("generate", "a b", *options, "--method", "autoregressive").document["text"]
    for named in (["--draft", str(out)], ["--method", "eagle", "--set", f"head={out}", "--set", "width=2"]):
        drafted = command("generate", "a b", *options, *named)
        assert drafted.code == 0, drafted.err
        assert drafted.document["text"] == plain and drafted.document["method"]["name"] == "eagle"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--unroll", "0"], "--unroll is 0, but must be at least 1"),
        (["--vocabulary", "1"], "--vocabulary is 1, but must be at least 2"),
    ],
)
def test_bad_flags(command: Command, target: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    outcome = command("train", "eagle", "--target", str(target), "--out", str(tmp_path / "o"), *flags)
    assert outcome.code == 2 and message in outcome.err
