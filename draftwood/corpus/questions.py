"""Passages of facts with extractive questions: every answer stands in the passage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import PEOPLE, PLACES, POOLS, THINGS, WORDS
from draftwood.corpus.templates import filled

# One answer in eight is a hedged one. It is not exact, so sampling loses points
# that the most probable answer keeps.
_HEDGED_SHARE = 1 / 8

# One question in twelve asks for the person, which is a look-up backwards.
_WHO_SHARE = 1 / 12


@dataclass(frozen=True)
class _Question:
    """A question, the span of the passage that answers it, and the bare answer in that span."""

    text: str
    span: str
    bare: str


def _fact(rng: random.Random, who: str, place: str, thing: str) -> tuple[str, list[_Question]]:
    """A fact of one of the kinds, and its three questions."""
    kind = rng.choice(WORDS["facts"])
    words: dict[str, object] = {"who": who, "place": place, "thing": thing}
    for name, how in kind["draw"].items():
        if isinstance(how, str):
            words[name] = rng.choice(POOLS[how])
        elif isinstance(how, dict):
            words[name] = rng.randint(how["from"], how["to"])
        else:
            words |= rng.choice(how)
    (fact,) = filled(rng, [kind["fact"]], **words)
    return fact, [_Question(*filled(rng, question, **words)) for question in kind["questions"]]


# What may stand before a fact; the fact itself begins with the person.
_OPENERS = ("", "", "", "Later ", "Then ", "Meanwhile ")

_HEDGES = ("Perhaps", "It seems that", "I think")


def facts_about(rng: random.Random, who: str, place: str, count: int) -> Iterator[tuple[str, list[_Question]]]:
    """Yield facts with their questions, the first about ``who`` and ``place``; none share a person, place or thing."""
    people = [who, *others(rng, PEOPLE, count - 1, who)]
    places = [place, *others(rng, PLACES, count - 1, place)]
    for trio in zip(people, places, rng.sample(THINGS, count), strict=True):
        yield _fact(rng, *trio)


def questions(split: Split, seed: int) -> Iterator[Document]:
    """Yield passages with questions without end.

    A prompt holds the passage and perhaps earlier questions with their answers; the completion answers the last one
    with a span of the passage, from the person to what was asked. The reference takes the span and the bare answer.
    """
    rng = stream("qa", split, seed)
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        facts: list[str] = []
        questions: list[_Question] = []
        for fact, (first, second, backward) in facts_about(rng, who, place, rng.choice((2, 3, 3, 4, 4, 5))):
            # The lead opens the passage, so that it tells the split.
            facts.append((rng.choice(_OPENERS) if facts else "") + fact + ".")
            questions.append(backward if rng.random() < _WHO_SHARE else rng.choice((first, second)))
        rng.shuffle(questions)
        questions = questions[: rng.choice((1, 2, 3, 4, 5))]
        answered = []
        for one in questions:
            hedge = f" {rng.choice(_HEDGES)}" if rng.random() < _HEDGED_SHARE else ""
            answered.append(f"{hedge} {one.span}")
        # Only the last question is called so: what follows its answer is the end.
        earlier = [f"\nQ: {one.text}\nA:{said}" for one, said in zip(questions[:-1], answered, strict=False)]
        prompt = f"Passage: {' '.join(facts)}{''.join(earlier)}\nQuestion: {questions[-1].text}\nAnswer:"
        answers = tuple(dict.fromkeys((questions[-1].span, questions[-1].bare)))
        yield Document("qa", prompt, answered[-1], {"answers": answers})
