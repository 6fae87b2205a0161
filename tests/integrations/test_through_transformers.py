"""`hf:DIR` as a model: the same text through transformers, in any place, and one sentence where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import Command

from draftwood.engine.draft_sources import THROUGH_TRANSFORMERS

FLAGS = ["Once upon a time", "--max-new-tokens", "24", "--temperature", "0", "--dtype", "float64", "--json"]


def test_a_target_through_transformers_gives_the_same_text(command: Command, target: Path) -> None:
    ours = command("generate", *FLAGS, "--target", target).document
    theirs = command("generate", *FLAGS, "--target", f"{THROUGH_TRANSFORMERS}{target}").document
    assert theirs["models"]["target"] == f"hf:{target}"
    assert theirs["models"]["dtype"] == "float64"
    assert (theirs["tokens"], theirs["text"]) == (ours["tokens"], ours["text"])
    assert theirs["logprobs"] == pytest.approx(ours["logprobs"], abs=1e-4)  # its rotary tables are float32


def test_a_draft_through_transformers(command: Command, target: Path, draft: Path) -> None:
    """The target as its own draft: each draft is accepted, whichever of the two runs through transformers."""
    plain = command("generate", *FLAGS, "--target", target).document
    method = ["--method", "speculative", "--set", "gamma=3"]
    for pair in ((f"hf:{target}", f"{target}"), (f"{target}", f"hf:{target}"), (f"hf:{target}", f"hf:{target}")):
        document = command("generate", *FLAGS, *method, "--target", pair[0], "--draft", pair[1]).document
        assert document["tokens"] == plain["tokens"]
        assert document["metrics"]["tau"] == 4
    tree = ["--method", "mcsd", "--set", "tree=2,2"]
    document = command("generate", *FLAGS, *tree, "--target", f"hf:{target}", "--draft", draft).document
    assert document["tokens"] == plain["tokens"]


def test_a_directory_that_is_not_there(command: Command) -> None:
    shown = command("generate", "x", "--target", "hf:./nowhere")
    assert shown.code == 2 and shown.err.count("\n") == 1
    assert "./nowhere is not a checkpoint directory" in shown.err


def test_without_the_extra(command: Command, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "draftwood.models.hf", None)
    shown = command("generate", "x", "--target", f"hf:{target}")
    assert shown.code == 2 and shown.err.count("\n") == 1
    assert "draftwood[hf]" in shown.err
