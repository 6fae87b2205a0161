"""Word problems of arithmetic with worked steps and a final number."""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import GOODS, PEOPLE, PLACES


def _gain(rng: random.Random, who: str, goods: str, have: int) -> tuple[str, str, int]:
    more = rng.randint(2, 9)
    friend = others(rng, PEOPLE, 1, who)[0]
    said = rng.choice(
        (
            f"{who} buys {more} more.",
            f"{friend} gives {who} {more} more.",
            f"Then {who} finds {more} {goods} in {rng.choice(PLACES)}.",
        )
    )
    return said, f"{have} + {more} = {have + more}", have + more


def _loss(rng: random.Random, who: str, goods: str, have: int) -> tuple[str, str, int]:
    less = rng.randint(1, min(9, have - 1))
    friend = others(rng, PEOPLE, 1, who)[0]
    said = rng.choice(
        (f"{who} loses {less} of them.", f"{who} gives {less} to {friend}.", f"{friend} takes {less} {goods}.")
    )
    return said, f"{have} - {less} = {have - less}", have - less


def _times(rng: random.Random, who: str, goods: str, have: int) -> tuple[str, str, int]:
    factor = rng.choice((2, 3))
    said = f"Then the number of {goods} becomes {factor} times as large."
    return said, f"{have} * {factor} = {have * factor}", have * factor


def arithmetic(split: Split, seed: int) -> Iterator[Document]:
    """Yield word problems without end; the completion holds steps and answer."""
    rng = stream("math", split, seed)
    while True:
        who, goods = lead(rng, split, PEOPLE, GOODS)
        have = rng.randint(3, 30)
        said = [rng.choice((f"{who} has {have} {goods}.", f"{who} starts with {have} {goods}."))]
        steps: list[str] = []
        for _ in range(rng.choice((1, 2, 2, 3))):
            kinds = [_gain, _loss] if have > 1 else [_gain]
            if have < 20:
                kinds.append(_times)
            line, step, have = rng.choice(kinds)(rng, who, goods, have)
            said.append(line)
            steps.append(step)
        ask = rng.choice((f"How many {goods} does {who} have now?", f"How many {goods} are left with {who}?"))
        joiner = rng.choice(("; ", ", then "))
        yield Document(
            "math",
            f"Problem: {' '.join(said)} {ask}\nSteps:",
            f" {joiner.join(steps)}\nAnswer: {have}",
            {"number": have},
        )
