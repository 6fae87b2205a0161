"""Training data: rows of tokens from a file of texts, or from the corpus of the embedded pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftwood.corpus import Split
from draftwood.errors import ConfigurationError
from draftwood.models.text.text_files import prompted_texts_of
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.packing import filled, mixed
from draftwood.train.prompts import CORPUS

HELD_OUT_EVERY = 20  # one document of so many is held out

Tokens = np.ndarray[tuple[int, int], np.dtype[np.int32]]


@dataclass(frozen=True)
class Texts:
    """Rows of `context` tokens: those to train on [R, context] and those held out [H, context].

    A token of which nothing is to be learned, as of a prompt, is there as ~token, below 0 (`tokens_of`).
    `digest` tells data apart, so that a run is only resumed with what it began with. `end` is between texts and fills
    rows; `ends` are all tokens that the model may end a text with.
    """

    train: Tokens
    held_out: Tokens
    digest: str
    end: int
    ends: frozenset[int] = frozenset()

    def is_end(self, tokens: Tensor) -> Tensor:
        """Whether each of the tokens ends a text."""
        return torch.isin(tokens, torch.tensor([self.end, *sorted(self.ends)], device=tokens.device))

    def frequent(self, count: int | None = None, share: float = 1.0) -> Tensor:
        """The `count` most frequent tokens [n] to learn, in order; None: the fewest that make a `share` of them."""
        counts = np.bincount(self.train[self.train >= 0])
        often = np.argsort(-counts, kind="stable")
        if count is None:
            reached = np.cumsum(counts[often]) >= share * counts.sum()
            count = 1 + int(reached.argmax())
        return torch.from_numpy(np.sort(often[:count]))


def tokens_of(rows: Tensor) -> Tensor:
    """The tokens of rows, in which those of which nothing is learned are ~token."""
    return torch.where(rows < 0, ~rows, rows)


def read_texts(
    data: str,
    tokenizer: Tokenizer,
    end: int,
    context: int,
    rows: int,
    held_out: int,
    seed: int = 0,
    vocabulary: int | None = None,
    ends: frozenset[int] = frozenset(),
    whole: bool = True,
) -> Texts:
    """At most `rows` rows to train on and `held_out` held out, from 'corpus' or a file.

    `end` is put behind texts that do not end in one of `ends`. Unless they are learned `whole`, nothing is learned of
    prompts, and rows that would hold nothing else are left out.

    A .jsonl file has an object with text, messages or tokens in each line; any other file is one text. Every twentieth
    text, or piece of a long text, is held out. Raises ConfigurationError for a file that cannot be used, and for tokens
    of a file that are not below `vocabulary`.
    """
    if data == CORPUS:

        def encode(texts: list[str]) -> list[list[int]]:
            return [tokenizer.encode(text) for text in texts]

        def packed(split: Split, count: int) -> Tokens:
            return _array(itertools.islice(filled(mixed(encode, end, split, seed), context, end), count), context)

        return Texts(packed("train", rows), packed("held-out", held_out), f"{CORPUS}-{seed}", end, ends)
    path = Path(data)
    pieces = [
        piece
        for document in documents_of(path, tokenizer, end, vocabulary, ends, whole)
        for start in range(0, len(document), context)
        if max(piece := document[start : start + context]) >= 0
    ]
    if len(pieces) < 2:
        raise ConfigurationError(
            f"{path} holds {'no text' if not pieces else 'too little text'}; "
            f"give a file with at least two texts, or one of more than {context} tokens"
        )
    every = min(HELD_OUT_EVERY, len(pieces))
    apart = [piece for i, piece in enumerate(pieces) if i % every == every - 1]
    rest = [piece for i, piece in enumerate(pieces) if i % every != every - 1]
    train, held_out_rows = (
        _array(itertools.islice(filled(iter(part), context, end), count), context)
        for part, count in ((rest, rows), (apart, held_out))
    )
    return Texts(train, held_out_rows, sha256(path.read_bytes() + b"answers" * (not whole)).hexdigest()[:16], end, ends)


def documents_of(
    path: Path, tokenizer: Tokenizer, end: int, vocabulary: int | None, ends: frozenset[int], whole: bool = True
) -> Iterator[list[int]]:
    """Token ids of each text of a file, with `end` behind it unless it ends in that or one of `ends`.

    Unless it is `whole`, its prompt's tokens are ~token, and a prompt alone is no text. ConfigurationError for a token
    beyond the `vocabulary`.
    """
    for tokens, prompt in prompted_texts_of(path, tokenizer):
        if vocabulary is not None and tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise ConfigurationError(
                f"{path} has tokens outside of the model's vocabulary of {vocabulary}; "
                "give text, or tokens of this model"
            )
        if tokens and (whole or prompt < len(tokens)):
            marked = tokens if whole else [*(~token for token in tokens[:prompt]), *tokens[prompt:]]
            yield marked if marked[-1] in {end, *ends} else [*marked, end]


def _array(rows: Iterator[list[int]], context: int) -> Tokens:
    made = list(rows)
    return np.array(made, dtype=np.int32).reshape(len(made), context)
