"""`draftwood train draft`, as a user runs it, on a tiny target."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Command

SIZES: list[str] = [
    *("--context", "24", "--rows", "16", "--held-out", "2", "--batch", "2", "--warmup", "1"),
    *("--precision", "float32", "--layers", "1", "--search", "1"),
]


def test_train_resume_and_draft(command: Command, target: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "texts.jsonl", tmp_path / "draft"
    text.write_text("".join(json.dumps({"text": "a b c " * (i % 5 + 3)}) + "\n" for i in range(40)), "utf-8")
    flags = ["train", "draft", "--target", str(target), "--data", str(text), "--out", str(out), *SIZES]
    made = command(*flags, "--steps", "4", "--json").document
    assert (made["steps"], made["new"], made["layers"], len(made["kept"])) == (4, 4, 1, 1)
    assert 1 < made["vocabulary"] < 257 and made["gain"] >= 1 and made["gain_before"] >= 1
    again = command(*flags, "--steps", "4")
    assert "a draft of the layers" in again.out and "expected gain" in again.out
    options = ["--target", str(target), "--max-new-tokens", "8", "--temperature", "0", "--json"]
    drafted = command("generate", "a b", *options, "--draft", str(out), "--method", "speculative")
    assert drafted.code == 0, drafted.err
    plain = command("generate", "a b", *options, "--method", "autoregressive")
    assert drafted.document["text"] == plain.document["text"]
    other = command("generate", "a b", "--draft", str(out))
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "was trained for another target" in other.err


def test_layers_that_contradict_each_other_are_refused(command: Command, target: Path, tmp_path: Path) -> None:
    flags = ["train", "draft", "--target", str(target), "--out", str(tmp_path / "o")]
    other = command(*flags, "--layers", "3", "--kept", "0", "--kept", "1")
    assert (other.code, other.err) == (2, "error: 2 layers are to be kept, but layers is 3; leave out one\n")
    assert not (tmp_path / "o").exists()
