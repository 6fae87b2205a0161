"""Small Python functions: a signature and docstring, a body, and tests that run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draftwood.corpus.document import Document, Split, split_of, stream


@dataclass(frozen=True)
class _Shape:
    """One kind of function: its wording, its body, and what it computes."""

    name: str
    docstring: str
    bodies: tuple[str, ...]
    compute: Callable[[Any, int], Any]
    takes: str


_NUMBER = ("value", "number", "n", "x", "amount", "count")
_LIST = ("values", "numbers", "items", "data", "row", "prices")
_WORD = ("word", "text", "name", "line", "title", "label")

_SHAPES = (
    _Shape("add", "Return {a} plus {k}.", ("return {a} + {k}",), lambda a, k: a + k, "n"),
    _Shape("subtract", "Return {a} minus {k}.", ("return {a} - {k}",), lambda a, k: a - k, "n"),
    _Shape("multiply", "Return {a} times {k}.", ("return {a} * {k}",), lambda a, k: a * k, "n"),
    _Shape(
        "is_over",
        "Return whether {a} is greater than {k}.",
        ("return {a} > {k}", "if {a} > {k}:\n        return True\n    return False"),
        lambda a, k: a > k,
        "n",
    ),
    _Shape(
        "divides",
        "Return whether {a} can be divided by {k}.",
        ("return {a} % {k} == 0", "return not {a} % {k}"),
        lambda a, k: a % k == 0,
        "n",
    ),
    _Shape(
        "limit",
        "Return {a}, but at most {k}.",
        ("return min({a}, {k})", "if {a} > {k}:\n        return {k}\n    return {a}"),
        lambda a, k: min(a, k),
        "n",
    ),
    _Shape(
        "sum_over",
        "Return the sum of all {a} greater than {k}.",
        (
            "return sum(x for x in {a} if x > {k})",
            "total = 0\n    for x in {a}:\n        if x > {k}:\n            total += x\n    return total",
        ),
        lambda a, k: sum(x for x in a if x > k),
        "l",
    ),
    _Shape(
        "count_over",
        "Count the {a} greater than {k}.",
        ("return len([x for x in {a} if x > {k}])", "return sum(1 for x in {a} if x > {k})"),
        lambda a, k: sum(1 for x in a if x > k),
        "l",
    ),
    _Shape(
        "add_all",
        "Add {k} to each of the {a}.",
        (
            "return [x + {k} for x in {a}]",
            "result = []\n    for x in {a}:\n        result.append(x + {k})\n    return result",
        ),
        lambda a, k: [x + k for x in a],
        "l",
    ),
    _Shape("first", "Return the first {k} of the {a}.", ("return {a}[:{k}]",), lambda a, k: a[:k], "l"),
    _Shape("last", "Return the last {k} of the {a}.", ("return {a}[-{k}:]",), lambda a, k: a[-k:], "l"),
    _Shape(
        "sort_first",
        "Return the {k} smallest of the {a}, in order.",
        ("return sorted({a})[:{k}]",),
        lambda a, k: sorted(a)[:k],
        "l",
    ),
    _Shape(
        "repeat",
        "Return the {a} repeated {k} times.",
        ("return {a} * {k}", 'return "".join({a} for _ in range({k}))'),
        lambda a, k: a * k,
        "w",
    ),
    _Shape(
        "shorten",
        "Return the first {k} letters of the {a} in upper case.",
        ("return {a}[:{k}].upper()", "return {a}.upper()[:{k}]"),
        lambda a, k: a[:k].upper(),
        "w",
    ),
    _Shape(
        "is_long",
        "Return whether the {a} has more than {k} letters.",
        ("return len({a}) > {k}",),
        lambda a, k: len(a) > k,
        "w",
    ),
)


def _argument(rng: random.Random, takes: str) -> Any:
    if takes == "n":
        return rng.randint(0, 30)
    if takes == "l":
        return [rng.randint(0, 30) for _ in range(rng.randint(4, 7))]
    return rng.choice(("lamp", "market", "tower", "a", "harbour", "kite"))


def functions(split: Split, seed: int) -> Iterator[Document]:
    """Yield functions without end; the completion is the body.

    Constants below 10 are rare on purpose only where slices need them small.
    The reference holds assertions that the written body passes.
    """
    rng = stream("code", split, seed)
    while True:
        shape = rng.choice(_SHAPES)
        small = shape.name in {"first", "last", "sort_first", "repeat", "shorten", "is_long"}
        k = rng.randint(2, 4) if small else rng.randint(2, 60)
        pool = {"n": _NUMBER, "l": _LIST, "w": _WORD}[shape.takes]
        a = rng.choice(pool)
        name = f"{shape.name}_{k}"
        if split_of(name, a) != split:
            continue
        says = shape.docstring.format(a=a, k=k)
        body = rng.choice(shape.bodies).format(a=a, k=k)
        tests = []
        for _ in range(3):
            argument = _argument(rng, shape.takes)
            tests.append(f"assert {name}({argument!r}) == {shape.compute(argument, k)!r}")
        yield Document(
            "code",
            f'def {name}({a}):\n    """{says}"""',
            f"\n    {body}\n",
            {"name": name, "body": body, "tests": tuple(tests)},
        )
