"""Comparison of two SQL results: the execution accuracy of Spider (Zhong et al. 2020)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

Rows = Sequence[Sequence[Any]]

QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`")
ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
HIDDEN = "\x00"  # stands for a semicolon in quotes
MAX_TRIES = 20_000  # column orders that are looked at; only results of many look-alike columns have more


def orders(sql: str) -> bool:
    """True if a query says ORDER BY outside its quotes: then the order of rows is part of its result."""
    return ORDERED.search(QUOTED.sub("''", sql)) is not None


def same_rows(predicted: Rows, gold: Rows, ordered: bool) -> bool:
    """True if results are equal but for the order of columns and, unless `ordered`, of rows; duplicates count.

    Two empty results are equal whatever their columns.
    """
    if not predicted and not gold:
        return True
    if len(predicted) != len(gold) or len(predicted[0]) != len(gold[0]):
        return False
    mine = [[_value(value) for value in column] for column in zip(*predicted, strict=True)]
    theirs = [[_value(value) for value in column] for column in zip(*gold, strict=True)]
    if ordered:  # columns are then equal one by one
        return Counter(map(tuple, mine)) == Counter(map(tuple, theirs))
    wanted = Counter(zip(*theirs, strict=True))
    shapes = [Counter(column) for column in mine]
    fits = [[i for i, shape in enumerate(shapes) if shape == Counter(column)] for column in theirs]
    tries = 0

    def place(chosen: list[int]) -> bool:
        """True if the columns chosen so far can be completed."""
        nonlocal tries
        if len(chosen) == len(theirs):
            tries += 1
            return Counter(zip(*(mine[i] for i in chosen), strict=True)) == wanted
        return tries < MAX_TRIES and any(place([*chosen, i]) for i in fits[len(chosen)] if i not in chosen)

    return place([])


def _value(value: Any) -> Any:
    """A value that can be counted; text and numbers stay apart, 1 and 1.0 do not."""
    return ("bytes", bytes(value)) if isinstance(value, bytearray | memoryview) else value


def extract_query(text: str) -> str:
    """The first query of an answer: out of a code fence if there is one, up to its semicolon or an empty line."""
    fenced = re.search(r"```(?:\w*\n)?(.*?)(?:```|\Z)", text, re.DOTALL)
    body = (fenced[1] if fenced else text).strip()
    body = re.split(r";|\n\s*\n", QUOTED.sub(_hide, body), maxsplit=1)[0].replace(HIDDEN, ";").strip()
    for parted in ("> =", "< =", "! ="):  # as tokenised gold queries are written
        body = body.replace(parted, parted.replace(" ", ""))
    return body


def _hide(quoted: re.Match[str]) -> str:
    """A quoted text whose semicolons end no query."""
    return quoted[0].replace(";", HIDDEN)
