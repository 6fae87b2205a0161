"""Rows of the embedded pair's corpus, packed once into a directory: what its models are trained on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from draftwood.corpus import Split
from draftwood.train.packing import SHARES, filled, mixed
from draftwood.util.files import replacing
from recipes.exercises import documents

# Shares at the beginning of a run: mostly exercises in copying. Looking things up is
# learnt in one sudden step, and these bring the step forward.
OPENING_SHARES = {"chants": 0.7, "retellings": 0.2, "sql": 0.1}

# Shares at the end of a run: the same, with SQL as careless people write it.
CLOSING_SHARES = {"careless-sql" if domain == "sql" else domain: share for domain, share in SHARES.items()}

EOS = "<|eos|>"  # ends a document of the corpus


def pack(
    tokenizer: Tokenizer, split: Split, rows: int, context: int, seed: int, shares: Mapping[str, float] = SHARES
) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Return ``rows`` rows of ``context`` tokens of the corpus, filled as ``filled`` does."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(texts)]

    eos = end_token(tokenizer)
    source = filled(mixed(encode, eos, split, seed, shares, documents), context, eos)
    packed = np.empty((rows, context), dtype=np.uint16)
    for place, row in enumerate(itertools.islice(source, rows)):
        packed[place] = row
    return packed


def packed_rows(
    tokenizer: Tokenizer,
    directory: Path,
    split: Split,
    rows: int,
    context: int,
    seed: int,
    shares: Mapping[str, float] = SHARES,
) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Return the packed rows of a directory, packing them first where missing.

    Memory-mapped uint16 of shape [rows, context].
    """
    path = directory / f"{split}-{context}-{rows}-{seed}.npy"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:  # np.save adds an ending to other paths
            np.save(file, pack(tokenizer, split, rows, context, seed, shares))
    loaded: np.ndarray[tuple[int, int], np.dtype[np.uint16]] = np.load(path, mmap_mode="r")
    return loaded


def end_token(tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends a document."""
    found = tokenizer.token_to_id(EOS)
    if found is None:
        raise ValueError(f"the tokenizer has no token {EOS}")
    return int(found)
