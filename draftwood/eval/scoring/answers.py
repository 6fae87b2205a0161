"""Short answers against gold answers: SQuAD's and TriviaQA's exact match and F1, GSM8K's final number.

Follows the data sets' published rules.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = frozenset(string.punctuation)
QUOTES = frozenset("‘’´`")
NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")  # in 7-4 the 4 has no sign
MARKED = re.compile(r"####\s*(-?\$?[\d.,]+)")  # as GSM8K's solutions end

Normal = Callable[[str], str]


def squad_normal(text: str) -> str:
    """Lower case, then without punctuation, articles and surplus white space (Rajpurkar et al. 2016, §6)."""
    kept = "".join(letter for letter in text.lower() if letter not in PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", kept).split())


def trivia_normal(text: str) -> str:
    """As SQuAD's, but punctuation and underscores part words (Joshi et al. 2017)."""
    lower = text.lower().replace("_", " ")
    parted = "".join(" " if letter in PUNCTUATION or letter in QUOTES else letter for letter in lower)
    return " ".join(ARTICLES.sub(" ", parted).split())


def exact_match(answer: str, golds: Iterable[str], normal: Normal = squad_normal) -> float:
    """1 where the answer is one of the gold answers, as both are normalised; else 0."""
    normalised = normal(answer)
    return float(any(normalised == normal(gold) for gold in golds))


def word_f1(answer: str, golds: Iterable[str], normal: Normal = squad_normal) -> float:
    """The best F1 of words, with multiplicity, over the gold answers. Where a side is empty, 1 if both are, else 0."""
    return max((_f1(normal(answer).split(), normal(gold).split()) for gold in golds), default=0.0)


def _f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


def squad_golds(golds: Iterable[str]) -> list[str]:
    """The gold answers that count: those with a word; an unanswerable question (SQuAD v2) has the empty one."""
    return [gold for gold in golds if squad_normal(gold)] or [""]


def final_number(text: str) -> Decimal | None:
    """The number behind the first '####', else the last number of the text; without commas, $ and a trailing full stop.

    None where there is no number.
    """
    marked = MARKED.search(text)
    numbers = [marked[1]] if marked else NUMBER.findall(text)
    return as_number(numbers[-1]) if numbers else None


def as_number(text: str) -> Decimal | None:
    """'-$1,200.50.' as a number."""
    try:
        return Decimal(text.strip().replace(",", "").replace("$", "").rstrip("."))
    except InvalidOperation:
        return None


def same_number(answer: str, gold: str) -> float:
    """1 where the answer's final number is the gold one: 18, 18.0 and $18. are the same; else 0."""
    number, wanted = final_number(answer), final_number(gold)
    return float(number is not None and number == wanted)
