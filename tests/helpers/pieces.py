"""Small sentencepiece models, trained on the spot, and texts to try them on."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "Zwei Bäume, café und naïve Über",
    "東京 is a city 日本",
    "    indented  code\treturn x",
    "hello corpus 1234 5678 [x] <y>",
]
PARTS = [
    "the",
    "dog",
    "code",
    " ",
    "  ",
    "    ",
    "\n",
    "\t",
    "é",
    "e\u0301",
    "日",
    "🙂",
    "ﬁ",
    "①",
    "▁",
    "\x00",
    "<0x41>",
    "q",
]


@cache
def model(kind: str) -> bytes:
    """llama: BPE with byte fallback, not normalised; unigram: normalised; unknowns: that without byte fallback."""
    out = io.BytesIO()
    options: dict[str, Any] = {"model_type": "unigram", "vocab_size": 330, "normalization_rule_name": "nmt_nfkc"}
    if kind == "llama":
        options = {"model_type": "bpe", "vocab_size": 420, "normalization_rule_name": "identity"}
        options |= {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 20),
        model_writer=out,
        byte_fallback=kind != "unknowns",
        character_coverage=0.99,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        control_symbols=["[INST]"],
        user_defined_symbols=["<|user|>"],
        **(options if kind != "unknowns" else options | {"vocab_size": 60}),
    )
    return out.getvalue()


def write(directory: Path, kind: str = "llama", **files: object) -> Path:
    """A directory with tokenizer.model and JSON files of the given names."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.model").write_bytes(model(kind))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return directory


def texts(count: int, extra: tuple[str, ...] = (), seed: int = 0) -> list[str]:
    """Random texts: words, runs of spaces, characters of one and several code points, and rare ones."""
    rng = random.Random(seed)

    def part() -> str:
        rare = chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x20000)]))
        return rng.choice([*PARTS, *extra, rare])

    return ["".join(part() for _ in range(rng.randint(0, 12))) for _ in range(count)]
