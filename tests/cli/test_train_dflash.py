"""`draftwood train dflash`, as a user runs it, on a tiny target, and its head as a draft."""

import json
from pathlib import Path

from conftest import Command

SIZES = ["--context", "24", "--rows", "16", "--held-out", "2", "--batch", "2", "--warmup", "1", "--block", "4"]


def test_train_resume_and_use(command: Command, target: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "texts.jsonl", tmp_path / "dflash"
    text.write_text("".join(json.dumps({"text": "a b c " * (i % 5 + 3)}) + "\n" for i in range(40)), "utf-8")
    flags = ["train", "dflash", "--target", str(target), "--data", str(text), "--out", str(out), *SIZES]
    flags += ["--precision", "float32", "--steps", "4", "--layers", "1"]
    first = command(*flags, "--save-every", "2", "--json").document
    assert (first["block"], first["layers"], first["steps"], first["new"]) == (4, 1, 4, 4)
    assert 0 <= first["acceptance_3"] <= 1 and "acceptance_4" not in first and first["gain"] > 0
    assert {path.name for path in out.iterdir()} >= {"dflash.safetensors", "run.safetensors", "curve.json"}
    again = command(*flags)
    assert "a DFlash head of 1 layers" in again.out and "acceptance place by place" in again.out
    other = command(*flags, "--block", "6")
    assert (other.code, other.err.count("\n")) == (2, 1) and "whose block is 4, not 6" in other.err
    few = command("train", "dflash", "--target", str(target), "--out", str(tmp_path / "o"), "--block", "1")
    assert few.code == 2 and "--block is 1, but must be at least 2" in few.err
    options = ["--target", str(target), "--max-new-tokens", "8", "--temperature", "0", "--json"]
    plain = command("generate", "a b", *options, "--method", "autoregressive").document["text"]
    for named in (["--draft", str(out)], ["--method", "dflash", "--set", f"block={out}", "--set", "width=2"]):
        drafted = command("generate", "a b", *options, *named)
        assert drafted.code == 0, drafted.err
        assert drafted.document["text"] == plain and drafted.document["method"]["name"] == "dflash"
