"""Which prompts the embedded pair is told to be foreign to: ordinary English is, held-out documents are not."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from conftest import Command

import draftwood
from benchmarks.grow.checkpoint import grow_checkpoint
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.embedded_hint import hint
from draftwood.engine.loading import EMBEDDED

ORDINARY = (
    "Once upon a time there was a little girl who lived in a village near the forest.",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Write a poem about the sea.",
    "def fibonacci(n):",
    "In 1969, Neil Armstrong became the first person to walk on the moon.",
    "The meaning of life is",
    "Dear Sir or Madam, I am writing to apply for the position advertised last week.",
    "Hello, how are you today?",
    "The stock market fell sharply on Monday as investors worried about inflation.",
)


@pytest.fixture(scope="module")
def engine() -> draftwood.Engine:
    return draftwood.load()


def test_ordinary_text_is_foreign(engine: draftwood.Engine) -> None:
    assert all(hint(engine, text) for text in ORDINARY)


@pytest.mark.parametrize("domain", DOMAINS)
def test_held_out_documents_are_not(engine: draftwood.Engine, domain: str) -> None:
    found = [hint(engine, item.prompt) for item in islice(documents(domain, "held-out", 3), 10)]
    assert sum(map(bool, found)) <= (2 if domain == "library" else 0)  # Python source is hard for it


def test_other_models_and_short_prompts_have_no_hint(engine: draftwood.Engine, target: Path) -> None:
    assert hint(engine, "Ada") is None
    assert hint(draftwood.load(target), ORDINARY[0]) is None


def test_it_is_said_once_on_standard_error(command: Command, tmp_path: Path) -> None:
    short = ("--max-new-tokens", 2)
    foreign, usual = ORDINARY[1], "Story: In Corfe there lived a sailor"
    timed = ("--methods", "lookup", "--repeat", 1, "--warmup", 0)
    for name, *flags in (("generate",), ("explain",), ("compare", *timed)):
        shown = command(name, foreign, *short, *flags)
        assert shown.code == 0 and shown.err.count("the embedded models know a small made-up corpus only") == 1
        assert "made-up corpus" not in shown.out
        assert "made-up corpus" not in command(name, usual, *short, *flags).err
    grown = tmp_path / "grown"
    grow_checkpoint(EMBEDDED / "target", grown, "embedded:target", {"layers": 13})
    assert "made-up corpus" in command("generate", foreign, *short, "--target", grown).err
