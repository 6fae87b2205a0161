"""Small Python functions: a signature and docstring, a body, and tests that run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from draftwood.corpus.document import Document, Split, split_of, stream
from draftwood.corpus.names import WORDS

_ARGUMENTS = {
    "n": ("value", "number", "n", "x", "amount", "count"),
    "l": ("values", "numbers", "items", "data", "row", "prices"),
    "w": ("word", "text", "name", "line", "title", "label"),
}


def _argument(rng: random.Random, takes: str) -> Any:
    if takes == "n":
        return rng.randint(0, 30)
    if takes == "l":
        return [rng.randint(0, 30) for _ in range(rng.randint(4, 7))]
    return rng.choice(("lamp", "market", "tower", "a", "harbour", "kite"))


def functions(split: Split, seed: int) -> Iterator[Document]:
    """Yield functions without end; the completion is the body, the reference holds assertions that it passes."""
    rng = stream("code", split, seed)
    while True:
        kind = rng.choice(WORDS["functions"])
        k, a = rng.randint(*kind["constants"]), rng.choice(_ARGUMENTS[kind["takes"]])
        name = f"{kind['name']}_{k}"
        if split_of(name, a) != split:
            continue
        body = rng.choice(kind["bodies"]).format(a=a, k=k)
        result = kind["bodies"][0].removeprefix("return ").format(a="argument", k=k)
        tests = []
        for _ in range(3):
            argument = _argument(rng, kind["takes"])
            tests.append(f"assert {name}({argument!r}) == {eval(result, {'argument': argument})!r}")
        yield Document(
            "code",
            f'def {name}({a}):\n    """{kind["says"].format(a=a, k=k)}"""',
            f"\n    {body}\n",
            {"name": name, "body": body, "tests": tuple(tests)},
        )
