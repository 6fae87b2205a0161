"""Documents packed into rows of tokens, ready for training.

A row begins with the beginning of a document and never cuts one that fits, so
training sees what inference sees: a document from position 0, or one after
another with the end-of-sequence token between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from draftwood.corpus import Document, Split, documents
from draftwood.util.files import replacing

# Shares of the tokens, not of the documents.
SHARES = {
    "stories": 0.09,
    "qa": 0.28,
    "sql": 0.25,
    "math": 0.07,
    "summaries": 0.06,
    "code": 0.03,
    "library": 0.08,
    "retellings": 0.14,
}

# Shares at the beginning of a run: mostly exercises in copying. Looking things up is
# learnt in one sudden step, and these bring the step forward.
OPENING_SHARES = {"chants": 0.7, "retellings": 0.2, "sql": 0.1}

# Shares at the end of a run: the same, with SQL as careless people write it.
CLOSING_SHARES = {"careless-sql" if domain == "sql" else domain: share for domain, share in SHARES.items()}

# Documents that wait for a row with room for them.
_WAITING = 48


# Texts to token ids.
Encode = Callable[[list[str]], list[list[int]]]


EOS = "<|eos|>"  # ends a document of the corpus


def _encoded(
    encode: Encode, domain: str, split: Split, seed: int, batch: int = 256
) -> Iterator[tuple[Document, list[int]]]:
    """Yield the documents of a domain and their tokens without end; a domain that ends starts again."""
    while True:
        source = documents(domain, split, seed)
        while some := list(itertools.islice(source, batch)):
            yield from zip(some, encode([document.text for document in some]), strict=True)
        seed += 1_000_000


def in_shares(
    encode: Encode, split: Split, seed: int, shares: Mapping[str, float] = SHARES
) -> Iterator[tuple[Document, list[int]]]:
    """Yield documents of all domains and their tokens; each time of the one furthest behind its share."""
    sources = {domain: _encoded(encode, domain, split, seed) for domain in shares}
    given = dict.fromkeys(shares, 0.0)
    while True:
        domain = min(shares, key=lambda name: given[name] / shares[name])
        document, tokens = next(sources[domain])
        given[domain] += len(tokens) + 1  # with what ends it
        yield document, tokens


def mixed(
    encode: Encode, eos: int, split: Split, seed: int, shares: Mapping[str, float] = SHARES
) -> Iterator[list[int]]:
    """Yield the tokens of documents in their shares, each with its end."""
    return ([*tokens, eos] for _, tokens in in_shares(encode, split, seed, shares))


def filled(source: Iterator[list[int]], context: int, eos: int) -> Iterator[list[int]]:
    """Yield rows of ``context`` tokens, filled best fit first, until the source ends.

    What stays free at the end of a row is filled with end-of-sequence tokens.
    A document longer than a row is cut.
    """
    waiting = list(itertools.islice(source, _WAITING))
    while waiting:
        # The oldest document opens the row, so none waits for ever.
        row = waiting.pop(0)[:context]
        while True:
            waiting.extend(itertools.islice(source, 1))
            fits = [i for i, one in enumerate(waiting) if len(one) <= context - len(row)]
            if not fits:
                break
            # First fit while there is much room, best fit at the end: long
            # documents must not crowd the beginnings of the rows.
            roomy = context - len(row) > context // 3
            chosen = fits[0] if roomy else max(fits, key=lambda i: len(waiting[i]))
            row = row + waiting.pop(chosen)
        yield row + [eos] * (context - len(row))


def pack(
    tokenizer: Tokenizer, split: Split, rows: int, context: int, seed: int, shares: Mapping[str, float] = SHARES
) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Return ``rows`` rows of ``context`` tokens of the corpus, filled as ``filled`` does."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(texts)]

    eos = end_token(tokenizer)
    source = filled(mixed(encode, eos, split, seed, shares), context, eos)
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
