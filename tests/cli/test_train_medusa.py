"""`draftwood train medusa` and `draftwood tune skip`, as a user runs them, on a tiny target."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Command

from draftwood.models.checkpoints import artifact

SIZES = [
    "--context",
    "24",
    "--rows",
    "16",
    "--held-out",
    "2",
    "--batch",
    "2",
    "--warmup",
    "1",
    "--precision",
    "float32",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "a b c " * (i % 5 + 3)}) + "\n" for i in range(40)), "utf-8")
    return path


def test_train_resume_and_use(
    command: Command, target: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "heads"
    flags = ["train", "medusa", "--target", str(target), "--data", str(text), "--out", str(out), "--heads", "2", *SIZES]
    first = command(*flags, "--steps", "4", "--save-every", "2", "--json").document
    assert (first["heads"], first["steps"], first["new"], first["shared"]) == (2, 4, 4, False)
    assert 0 <= first["acceptance_2"] <= 1 and "acceptance_3" not in first
    assert {path.name for path in out.iterdir()} >= {"heads.safetensors", "run.safetensors", "curve.json"}
    assert command(*flags, "--steps", "4", "--json").document["new"] == 0
    said = command(*flags, "--steps", "4").out
    assert "2 heads" in said and "acceptance head by head" in said
    assert "no plot" not in said or find_spec("matplotlib") is None
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert "no plot without matplotlib: pip install 'draftwood[plots]'" in command(*flags, "--steps", "4").out
    other = command(*flags, "--steps", "4", "--shared")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "whose shared is False, not True" in other.err
    options = ["--target", str(target), "--max-new-tokens", "8", "--temperature", "0", "--json"]
    method = ["--method", "medusa", "--set", f"heads={out}", "--set", "tree=2,1"]
    drafted = command("generate", "a b", *options, *method)
    assert drafted.code == 0, drafted.err
    assert (
        drafted.document["text"] == command("generate", "a b", *options, "--method", "autoregressive").document["text"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data", "nowhere.txt"], "there is no file nowhere.txt; give a file of texts, or corpus"),
        (["--heads", "0"], "--heads is 0, but must be at least 1"),
        (["--precision", "half"], "--precision is half, but must be 'bfloat16' or 'float32'"),
        (["--rows", "0"], "--rows is 0, but must be at least 1"),
    ],
)
def test_bad_flags_of_train_medusa(
    command: Command, target: Path, text: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    data = [] if "--data" in flags else ["--data", str(text)]
    outcome = command("train", "medusa", "--target", str(target), "--out", str(tmp_path / "o"), *data, *flags)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert not (tmp_path / "o").exists()


def test_tune_skip_and_use(command: Command, target: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "set.safetensors"
    prompts.write_text("a b c\nb c\n", "utf-8")
    flags = ["--target", str(target), "--prompts", str(prompts), "--max-new-tokens", "6", "--gamma", "2"]
    document = command("tune", "skip", *flags, "--budget", "3", "--out", str(out), "--json").document
    assert document["judged"] <= 3 and document["speed_up"] > 0
    saved = artifact.load(out, "skip").settings
    assert (saved["attention"], saved["mlp"]) == (document["attention"], document["mlp"])
    said = command("tune", "skip", *flags, "--budget", "2", "--out", str(out))
    assert "sets judged on 2 texts; use it with --method self-spec --set skip=" in said.out
    options = ["--target", str(target), "--max-new-tokens", "8", "--temperature", "0", "--json"]
    drafted = command("generate", "a b", *options, "--method", "self-spec", "--set", f"skip={out}")
    assert drafted.code == 0, drafted.err
    assert (
        drafted.document["text"] == command("generate", "a b", *options, "--method", "autoregressive").document["text"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget", "0"], "--budget is 0, but must be at least 1"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1, but must be at least 2"),
        (["--out", "set.txt"], "--out is set.txt, but self-spec reads a .safetensors file; name one"),
    ],
)
def test_bad_flags_of_tune_skip(command: Command, target: Path, flags: list[str], message: str) -> None:
    outcome = command("tune", "skip", "--target", str(target), *flags)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
