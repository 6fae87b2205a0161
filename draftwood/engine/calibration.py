"""The text that int4 weights are calibrated with: the user's, else text that the model itself writes."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.int4 import CalibrationText
from draftwood.models.text.text_files import texts_of
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.models.text.vocabulary_map import VocabularyMap

ROWS, LENGTH = 16, 256  # of calibration text, in tokens
FEW_TOKENS = 512  # of a file, below which a warning says that there are few
OPENINGS = ("", "The", "In ", "I", "How", "#", "def ", "1.")  # of texts that a model writes
STEPS = 8  # in which it writes them, for the progress

OnProgress = Callable[[str, float], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Int4Calibration:
    """The text that a user gives to calibrate with: the tokens of a file, and the tokenizer of the models."""

    tokenizer: Tokenizer | None
    file: Path | None = None
    tokens: tuple[int, ...] = ()

    @staticmethod
    def read(file: str | Path | None, tokenizer: Tokenizer | None) -> Int4Calibration:
        """Read the first 4096 tokens of a text file, or of a .jsonl file of texts, messages or tokens."""
        if file is None:
            return Int4Calibration(tokenizer)
        tokens: list[int] = []
        for text in texts_of(path := Path(file), tokenizer):
            tokens += text
            if len(tokens) >= ROWS * LENGTH:
                break
        if not tokens:
            raise ConfigurationError(f"calibration file {file} holds no text; give a file of texts")
        if len(tokens) < FEW_TOKENS:
            log.warning(
                "calibration file %s has %d tokens only; int4 weights are better with %d",
                file,
                len(tokens),
                ROWS * LENGTH,
            )
        return Int4Calibration(tokenizer, path, tuple(tokens[: ROWS * LENGTH]))

    def of_draft(self, between: VocabularyMap) -> Int4Calibration:
        """The same for a draft with another tokenizer: a file's text is in the draft's tokens, as drafting reads it."""
        tokens = between.text(self.tokens)[: ROWS * LENGTH] if self.tokens else ()
        return replace(self, tokenizer=between.draft.tokenizer, tokens=tuple(tokens))

    def text(self, home: Path, name: str, embedded: bool, on_progress: OnProgress) -> CalibrationText:
        """The text for the checkpoint at `home`; the embedded models have the corpus that they were trained on.

        ModelError where there is no file, and no tokenizer to read what the model writes.
        """
        if self.file is not None:
            return CalibrationText(f"text {_digest(self.tokens)}", partial(_in_rows, list(self.tokens)))
        if self.tokenizer is None:
            raise ModelError(
                f"int4 weights are calibrated on text, which {name} cannot write without a tokenizer; "
                "give tokenizer=, or calibration= with a .jsonl file of tokens"
            )
        if embedded:
            return CalibrationText("the embedded corpus", partial(corpus_rows, self.tokenizer))
        writing = partial(on_progress, f"writing text to calibrate {name} with")
        openings = _digest(token for opening in OPENINGS for token in (*self.tokenizer.encode(opening), -1))
        name = f"own text behind {openings}, {ROWS}x{LENGTH}"  # another tokenizer's is another text
        return CalibrationText(name, partial(own_rows, home, self.tokenizer, writing))


NO_CALIBRATION = Int4Calibration(None)


def _digest(tokens: Iterable[int]) -> str:
    return sha256(array("q", tokens).tobytes()).hexdigest()[:16]


def corpus_rows(tokenizer: Tokenizer, context: int) -> Tensor:
    """Tokens [R, T] of the embedded corpus: prose, questions, SQL, sums, Python."""
    tokens: list[int] = []
    for document in mixed("train"):
        tokens += tokenizer.encode(document.text)
        if len(tokens) >= ROWS * LENGTH:
            break
    return _in_rows(tokens[: ROWS * LENGTH], context)


def own_rows(home: Path, tokenizer: Tokenizer, advance: Callable[[float], None], context: int) -> Tensor:
    """Tokens [R, T] that the model at `home` writes behind a few openings, sampled at temperature 1 with fixed seeds.

    The empty opening is a text's beginning where the tokenizer has a token for that. `advance` is called with shares.
    """
    length = min(LENGTH, context - 1)
    openings = [tokens for opening in OPENINGS if (tokens := tokenizer.encode(opening)[:length])] or [[0]]
    rows = [openings[row % len(openings)] for row in range(ROWS)]
    engine = Engine(checkpoint.load(home, "auto"), max_running=ROWS)
    advance(0)
    for step in range(STEPS):
        wanted = [-(-(length - len(row)) // (STEPS - step)) for row in rows]
        requests = [
            {"prompt": row, "max_new_tokens": max(1, count), "seed": step * ROWS + number}
            for number, (row, count) in enumerate(zip(rows, wanted, strict=True))
        ]
        written = engine.batch(requests, ROWS, method="autoregressive", temperature=1, ignore_eos=True)
        rows = [[*row, *result.tokens] for row, result in zip(rows, written, strict=True)]
        advance(1 / STEPS)
    return torch.tensor([row[:length] for row in rows])


def _in_rows(tokens: list[int], context: int) -> Tensor:
    """Tokens as rows [R, T] of at most 256, as many as are full; few tokens are one row."""
    length = min(LENGTH, context, len(tokens))
    return torch.tensor(tokens[: len(tokens) - len(tokens) % length]).view(-1, length)


def timed(name: str, on_progress: OnProgress) -> Callable[[float], None]:
    """A function `advance(share)` for `int4.quantised`: after the first layer the step says how long all will take."""
    started = monotonic()
    step = f"quantising {name} to int4, once"

    def advance(share: float) -> None:
        nonlocal started, step
        if not share:
            started = monotonic()
        elif "about" not in step:
            seconds = (monotonic() - started) / share
            long = f"{seconds / 60:.0f} minutes" if seconds > 100 else f"{max(1, seconds):.0f} s"
            step += f": about {long}"
        on_progress(step, share)

    return advance
