"""A small consistent corpus in disjoint train and held-out splits.

Imports nothing else of draftwood; words and sentences are in words.yaml. Every domain is a
stream of :class:`Document` that depends on the domain, the split and the seed
alone. Which split a combination of names belongs to is decided by a digest, so
no held-out document occurs in the train split under any seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from draftwood.corpus.arithmetic import arithmetic
from draftwood.corpus.document import SPLITS, Document, Split
from draftwood.corpus.functions import functions
from draftwood.corpus.library import library
from draftwood.corpus.questions import questions
from draftwood.corpus.retellings import retellings
from draftwood.corpus.stories import stories, summaries
from draftwood.corpus.tables import tables

__all__ = ["DOMAINS", "SPLITS", "Document", "Split", "documents", "mixed"]

_WRITERS: dict[str, Callable[[Split, int], Iterator[Document]]] = {
    "stories": stories,
    "qa": questions,
    "sql": tables,
    "math": arithmetic,
    "summaries": summaries,
    "code": functions,
    "library": library,
}

DOMAINS: tuple[str, ...] = tuple(_WRITERS)

_WRITERS["retellings"] = retellings  # an exercise: training sees it too, but it stands for no use of the model


def documents(domain: str, split: Split, seed: int = 0) -> Iterator[Document]:
    """Yield the documents of a domain and split: the same in every process of one Python version.

    Only ``"library"`` ends: it yields each piece of the standard library once.
    """
    if domain not in _WRITERS:
        raise ValueError(f"unknown domain {domain!r}; the domains are {', '.join(DOMAINS)}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
    return _WRITERS[domain](split, seed)


def mixed(split: Split, seed: int = 0) -> Iterator[Document]:
    """Documents of all domains in turn, until one has no more."""
    return chain.from_iterable(zip(*(documents(domain, split, seed) for domain in DOMAINS), strict=False))
