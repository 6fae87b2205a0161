"""Exercises in copying, for training only: the same facts, words or rows told twice.

A small model learns to look up what stands earlier in the text much sooner when
a part of its corpus rewards that at nearly every token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import COLOURS, JOBS, PEOPLE, PLACES, THINGS
from draftwood.corpus.questions import facts_about


def _facts(rng: random.Random, who: str, place: str) -> tuple[str, str]:
    facts = [fact for fact, _ in facts_about(rng, who, place, rng.randint(2, 5))]
    again = list(facts)
    rng.shuffle(again)
    return f"Notes: {'. '.join(facts)}.", f" {'. '.join(again)}."


def _words(rng: random.Random, who: str, place: str) -> tuple[str, str]:
    pools = (PEOPLE, PLACES, THINGS, JOBS, COLOURS)
    words = [who, place, *(rng.choice(rng.choice(pools)) for _ in range(rng.randint(6, 20)))]
    comma = rng.choice((", ", ","))
    said = comma.join(words)
    return f"Notes: {said}.", f" {said}."


def _rows(rng: random.Random, who: str, place: str) -> tuple[str, str]:
    count = rng.randint(2, 5)
    keys = [who, *others(rng, PEOPLE, count - 1, who)]
    groups = [place, *(rng.choice(PLACES) for _ in keys[1:])]
    rows = [(key, group, rng.randint(1, 99)) for key, group in zip(keys, groups, strict=True)]
    again = rng.sample(rows, count)
    return (
        "Notes:" + "".join(f"\n{a},{b},{c}" for a, b, c in rows),
        "".join(f" '{a}' '{b}' {c};" for a, b, c in again),
    )


def retellings(split: Split, seed: int) -> Iterator[Document]:
    """Yield exercises without end; the completion tells again what the prompt told."""
    rng = stream("retellings", split, seed)
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        first, again = rng.choice((_facts, _facts, _words, _rows))(rng, who, place)
        yield Document("retellings", f"{first}\nAgain:", again)
