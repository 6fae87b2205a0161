"""Other texts of the kind that the shipped exit and heads learned from and were measured on."""

from dataclasses import replace
from pathlib import Path

from draftwood import load
from draftwood.engine.loading import EMBEDDED
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.prompts import CORPUS
from draftwood.train.self_distillation import write_texts
from draftwood.train.settings import WritingSettings
from draftwood.train.texts import Texts, read_texts


def own_texts(place: Path, rows: int = 10) -> Texts:
    """Rows of 256 tokens to measure on: half of the texts the embedded target wrote, half are its corpus's."""
    plan, out = WritingSettings(given=CORPUS, count=4 * rows, seed=5), place / "texts.jsonl"
    for _ in write_texts(load(EMBEDDED / "target"), plan, out):
        pass
    found = read_texts(str(out), Tokenizer.load(EMBEDDED / "target"), 0, 256, rows, 1)
    return replace(found, train=found.held_out, held_out=found.train)
