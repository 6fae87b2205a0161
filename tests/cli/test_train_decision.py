"""`draftwood train decision` on the embedded pair: what it writes works as a controller; mistakes are one sentence."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from conftest import Command

from draftwood.corpus import documents
from draftwood.depth.decision import Decision, save_decision
from draftwood.models.checkpoints import artifact

DOMAINS = ("stories", "sql", "math", "code")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Flags for a short training: a file of prompts of several domains, some tokens each."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    texts = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "train", 3), 7)]
    file.write_text("".join(text.replace("\n", " ") + "\n" for text in texts), "utf-8")
    # so few prompts that some splits hold out too little of what was learned: not this one
    return "--prompts", file, "--max-new-tokens", 28, "--method", "mcsd-fork", "--seed", 2


@pytest.mark.parametrize("kind", ["hidden", pytest.param("output", marks=pytest.mark.slow)])
def test_a_model_is_trained_and_ends_drafting(
    command: Command, small: tuple[object, ...], tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "new" / "decision.safetensors"
    found = command("train", "decision", "--kind", kind, *small, "--out", out, "--json").document
    assert found["examples"] > 300 and found["prompts"] == 28
    assert found["held_out"] < found["examples"] / 2
    assert found["auc"] > 0.6 and found["log_loss"] < found["base_loss"]
    made = artifact.load(out, "decision")
    assert made.settings["kind"] == kind and made.about["judgement"]["auc"] == found["auc"]
    assert made.about["recorded"]["method"]["name"] == "mcsd-fork"
    drawn = find_spec("matplotlib") is not None  # it is in an extra
    assert found["figure"] == (str(out.with_suffix(".png")) if drawn else None)
    assert out.with_suffix(".png").is_file() is drawn
    assert not list(out.parent.glob("*partial*"))
    text = ("Story: In Corfe there lived a sailor", "--temperature", 0, "--max-new-tokens", 48, "--json")
    plain = command("generate", *text, "--method", "autoregressive").document
    drafted = []
    for depth in ("fixed", f"decision:{out},threshold=0.9"):
        method = ("--method", "mcsd-fork", "--set", "gamma=8", "--set", f"depth={depth}")
        shown = command("generate", *text, *method).document
        assert shown["tokens"] == plain["tokens"]
        drafted.append(shown["metrics"]["drafted"])
    assert drafted[1] < drafted[0]


def test_the_table_and_a_missing_matplotlib(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"Q: What is {i} + {i}?\n\n" for i in range(12)), "utf-8")
    out = tmp_path / "decision.safetensors"
    flags = ("--prompts", prompts, "--max-new-tokens", 16, "--temperature", 0, "--temperature", 1, "--epochs", 2)
    shown = command("train", "decision", *flags, "--out", out)
    assert shown.code == 0 and not shown.err
    lines = shown.out.splitlines()
    assert "of 12 prompts" in lines[0]
    assert all(word in shown.out for word in ("share accepted", "log loss", "ROC", "calibration error", "overlap"))
    assert f"--set depth=decision:{out}" in lines[-2]
    assert lines[-1].startswith("no figure: ") and "draftwood[plots]" in lines[-1]
    assert max(map(len, lines[1:-2])) <= 80
    assert out.is_file() and not out.with_suffix(".png").exists()


MISTAKES = [  # (flags, what the sentence must say)
    (["--kind", "hiden"], "--kind is hiden, but must be 'hidden' or 'output'"),
    (["--out", "model.json"], "decision reads a .safetensors file"),
    (["--out", "a,b.safetensors"], "takes a path without commas and ="),
    (["--epochs", "0"], "--epochs is 0, but must be at least 1"),
    (["--limit", "0"], "--limit is 0, but must be at least 1"),
    (["--prompts", "none.txt"], "the prompt file none.txt cannot be read"),
    (["--prompts", "empty.txt"], "empty.txt is empty"),
    (["--out", "file/model.safetensors"], "file"),
    (["--out", "folder.safetensors"], "which is a directory; name a file"),
    (["--method", "dsbd"], "decision models are not recorded with method dsbd"),
    (["--method", "mcsd-fork", "--set", "verify=longest"], "is lossy as it is set"),
    (["--temperature", "-1"], "sampling: option 'temperature' is -1.0"),
    (["--limit", "2", "--max-new-tokens", "4"], "drafts were judged, of 100 needed"),
    (["--max-new-tokens", "60"], "prompts cannot be split with held_out 0.2; record more"),
]


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_mistakes(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given.txt").write_text("Story: In Corfe\n" * 2 + "Problem: Ada has 3 pears.\nQ: Who\n", "utf-8")
    Path("empty.txt").write_text("\n \n", "utf-8")
    Path("file").write_text("a file", "utf-8")
    Path("folder.safetensors").mkdir()
    shown = command("train", "decision", "--out", "model.safetensors", "--prompts", "given.txt", *flags)
    assert shown.code == 2 and not shown.out
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1
    assert sentence in shown.err
    assert not Path("model.safetensors").exists()


def test_a_model_is_of_its_draft(command: Command, tmp_path: Path, pair: list[str]) -> None:
    out = tmp_path / "decision.safetensors"
    save_decision(out, Decision("output", 9), "0123456789abcdef")
    shown = command("generate", "Once", *pair, "--set", f"depth=decision:{out}", "--method", "speculative")
    assert shown.code == 2 and "was trained for another draft" in shown.err and shown.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hidden", "output"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_prompts_of_the_world_are_the_default(command: Command, tmp_path: Path, kind: str, temperature: int) -> None:
    flags = ("--kind", kind, "--temperature", temperature, "--limit", 140)
    found = command("train", "decision", *flags, "--out", tmp_path / "one.safetensors", "--json").document
    assert found["prompts"] == 140 and found["held_out"] > 400
    assert found["auc"] > 0.75 and found["log_loss"] < 0.85 * found["base_loss"]
