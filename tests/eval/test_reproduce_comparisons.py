"""What a paper says beside what was measured: words, orders and colours follow from the numbers."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from jinja2 import Template

from draftwood.eval.intervals import Interval
from draftwood.eval.reproduce.comparison import Comparison, Order


def comparison(what: str, paper: tuple[float, float], ours: Interval | None, **more: Any) -> Comparison:
    return Comparison(what=what, paper=paper, ours=ours, **more)


def order(ours: dict[str, Interval | None]) -> Order:
    return Order(what="speed", paper={"a": 3.0, "b": 2.0, "c": 1.0}, ours=ours)


def interval(value: float | None, low: float | None = None, high: float | None = None) -> Interval:
    return Interval(value=value, low=low, high=high, n=9)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (interval(1.7, 1.6, 1.8), "same direction; within the paper's range"),
        (interval(2.3, 2.1, 2.5), "same direction; larger than in the paper"),
        (interval(1.2, 1.1, 1.6), "same direction; smaller than in the paper, but the interval reaches it"),
        (interval(0.8, 0.7, 0.9), "opposite direction; smaller than in the paper"),
        (interval(1.1, 0.9, 1.3), "no direction is shown; smaller than in the paper"),
        (interval(1.7), "one item has no interval, so no direction is shown; within the paper's range"),
        (interval(None), "not measured here"),
        (None, "not measured here"),
    ],
    ids=["within", "larger", "reaches", "opposite", "unclear", "single", "empty", "none"],
)
def test_a_comparison_follows_from_the_numbers(ours: Interval | None, words: str) -> None:
    sentence = comparison("speed", (1.5, 1.9), ours).sentence
    assert sentence.startswith("speed: the paper 1.50–1.90×; ") and words in sentence


def test_a_comparison_with_the_most_that_a_paper_saw() -> None:
    assert "no more than the paper's most" in comparison("s", (1.9, 1.9), interval(1.4, 1.2, 1.6), most=True).sentence
    over = comparison("s", (1.9, 1.9), interval(2.4, 2.2, 2.6), most=True)
    assert over.short == "same way, more"
    assert over.theirs == "at most 1.90×" and over.verdict == "same direction; more than the paper's most"


def test_an_order_follows_from_the_numbers() -> None:
    same = order({"a": interval(9), "b": interval(5), "c": interval(4), "other": interval(1)})
    equal = order({"a": interval(9), "b": interval(5), "c": interval(5)})
    assert equal.here == "a > b = c" and equal.verdict.startswith("2 of 3 pairs")
    assert same.verdict == "same order" and same.here == "a > b > c"
    other = order({"a": interval(9, 8, 10), "b": interval(4, 3, 5), "c": interval(7, 6, 8)})
    assert other.verdict == "2 of 3 pairs of methods in the same order, 1 of the others clearly in another"
    assert order({"a": interval(9), "b": None, "c": interval(None)}).here == "not measured here"


def test_verdicts_have_a_colour_and_a_sign() -> None:
    """By the words of the verdict: as in the paper, the other way, or open."""
    template = files("draftwood.eval.reproduce").joinpath("reproduction.html").read_text("utf-8")
    macro = template[template.index("{% macro verdict") : template.index("{% endmacro %}") + len("{% endmacro %}")]
    shown = {
        words: Template(macro + "{{ verdict(words) }}").render(words=words).split()
        for words in ("same direction; larger than in the paper", "opposite direction", "", "2 of 3 pairs of methods")
    }
    assert [found[1].split('"')[1] for found in shown.values()] == ["agrees", "differs", "open", "open"]
