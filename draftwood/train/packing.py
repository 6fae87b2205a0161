"""Documents packed into rows of tokens, ready for training.

A row begins with the beginning of a document and never cuts one that fits, so
training sees what inference sees: a document from position 0, or one after
another with the end-of-sequence token between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from draftwood.corpus import Document, Split, documents

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

# Documents that wait for a row with room for them.
_WAITING = 48


# Texts to token ids.
Encode = Callable[[list[str]], list[list[int]]]


Write = Callable[[str, Split, int], Iterator[Document]]  # the documents of a domain, split and seed


def _encoded(
    encode: Encode, write: Write, domain: str, split: Split, seed: int, batch: int = 256
) -> Iterator[tuple[Document, list[int]]]:
    """Yield the documents of a domain and their tokens without end; a domain that ends starts again."""
    while True:
        source = write(domain, split, seed)
        while some := list(itertools.islice(source, batch)):
            yield from zip(some, encode([document.text for document in some]), strict=True)
        seed += 1_000_000


def in_shares(
    encode: Encode, split: Split, seed: int, shares: Mapping[str, float] = SHARES, write: Write = documents
) -> Iterator[tuple[Document, list[int]]]:
    """Yield documents of all domains and their tokens; each time of the one furthest behind its share."""
    sources = {domain: _encoded(encode, write, domain, split, seed) for domain in shares}
    given = dict.fromkeys(shares, 0.0)
    while True:
        domain = min(shares, key=lambda name: given[name] / shares[name])
        document, tokens = next(sources[domain])
        given[domain] += len(tokens) + 1  # with what ends it
        yield document, tokens


def mixed(
    encode: Encode,
    eos: int,
    split: Split,
    seed: int,
    shares: Mapping[str, float] = SHARES,
    write: Write = documents,
) -> Iterator[list[int]]:
    """Yield the tokens of documents in their shares, each with its end."""
    return ([*tokens, eos] for _, tokens in in_shares(encode, split, seed, shares, write))


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
