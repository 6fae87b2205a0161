"""Word problems of arithmetic with worked steps and a final number."""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import GOODS, PEOPLE, WORDS
from draftwood.corpus.templates import written

_SIGNS = {"gain": "+", "loss": "-", "times": "*"}


def _change(rng: random.Random, kind: str, who: str, goods: str, have: int) -> tuple[str, str, int]:
    """A sentence about a change of what somebody has, the step of the solution, and what is left."""
    if kind == "times":
        number, friend = rng.choice((2, 3)), ""
        result = have * number
    else:
        number = rng.randint(2, 9) if kind == "gain" else rng.randint(1, min(9, have - 1))
        friend = others(rng, PEOPLE, 1, who)[0]
        result = have + number if kind == "gain" else have - number
    templates = WORDS["arithmetic"][kind]
    words = {"who": who, "goods": goods, "friend": friend, "number": number}
    said = written(rng, templates, **words) if len(templates) > 1 else templates[0].format(**words)
    return said, f"{have} {_SIGNS[kind]} {number} = {result}", result


def arithmetic(split: Split, seed: int) -> Iterator[Document]:
    """Yield word problems without end; the completion holds steps and answer."""
    rng = stream("math", split, seed)
    while True:
        who, goods = lead(rng, split, PEOPLE, GOODS)
        have = rng.randint(3, 30)
        said = [written(rng, WORDS["arithmetic"]["begin"], who=who, have=have, goods=goods)]
        steps: list[str] = []
        for _ in range(rng.choice((1, 2, 2, 3))):
            kinds = ["gain", "loss"] if have > 1 else ["gain"]
            kinds += ["times"] if have < 20 else []
            line, step, have = _change(rng, rng.choice(kinds), who, goods, have)
            said.append(line)
            steps.append(step)
        ask = written(rng, WORDS["arithmetic"]["ask"], who=who, goods=goods)
        solution = rng.choice(("; ", ", then ")).join(steps)
        prompt = f"Problem: {' '.join(said)} {ask}\nSteps:"
        yield Document("math", prompt, f" {solution}\nAnswer: {have}", {"number": have})
