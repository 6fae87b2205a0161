"""Scorers against cases worked by hand from the data sets' published rules."""

from decimal import Decimal

import pytest

from draftwood.eval.intervals import pass_at
from draftwood.eval.scoring.answers import (
    as_number,
    exact_match,
    final_number,
    same_number,
    squad_golds,
    squad_normal,
    trivia_normal,
    word_f1,
)
from draftwood.eval.scoring.rows import extract_query, orders, same_rows
from draftwood.eval.tasks.code import full_program
from draftwood.eval.tasks.summarising import rouge


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an   apple, a day ", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),  # articles are words, not letters
        ("well-known", "wellknown"),  # punctuation goes without a trace
        ("a", ""),
    ],
)
def test_squad_normalises_case_punctuation_articles_and_space(text: str, normal: str) -> None:
    assert squad_normal(text) == normal


def test_trivia_parts_words_at_punctuation_and_underscores() -> None:
    assert trivia_normal("well-known") == "well known"
    assert trivia_normal("New_York’s") == "new york s"


def test_exact_match_takes_any_gold_answer() -> None:
    assert exact_match("The Broncos.", ["Carolina Panthers", "broncos"]) == 1
    assert exact_match("Denver Broncos", ["broncos"]) == 0


def test_f1_counts_words_with_multiplicity_and_takes_the_best_gold() -> None:
    # 3 of 4 words said are among 3 gold ones: P = 3/4, R = 1, F1 = 6/7
    assert word_f1("in the red barn door", ["in red barn"]) == pytest.approx(6 / 7)
    assert word_f1("barn barn", ["barn"]) == pytest.approx(2 / 3)
    assert word_f1("red barn", ["blue", "red barn"]) == 1
    assert word_f1("sky", ["barn"]) == 0


def test_unanswerable_questions_want_the_empty_answer() -> None:
    assert squad_golds([]) == [""] and squad_golds(["The", "barn"]) == ["barn"]
    assert exact_match("", [""]) == word_f1("", [""]) == 1
    assert exact_match("barn", [""]) == word_f1("barn", [""]) == 0
    assert word_f1("", ["barn"]) == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        ("9 * 2 = $<<9*2=18>>18.\n#### 1,234", "1234"),
        ("#### $70,000.", "70000"),
        ("#### -5", "-5"),
        ("So he has 3 cats and 1,250.50 dollars.", "1250.50"),
        ("It is $5. No: $7.", "7"),
        ("The temperature is -3", "-3"),
        ("7-4", "4"),
        ("#### 18\nQuestion: what is 9?", "18"),
        ("none", None),
        ("#### .", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


def test_numbers_are_compared_as_numbers() -> None:
    assert same_number("#### 18.00", "18") == 1
    assert same_number("about 180", "18") == 0
    assert as_number("-$1,200.50.") == Decimal("-1200.50")


A, B = (1, "x"), (2, "y")


@pytest.mark.parametrize(
    ("predicted", "gold", "ordered", "same"),
    [
        ([A, B], [B, A], False, True),
        ([A, B], [B, A], True, False),
        ([A, A], [A], False, False),  # duplicates count
        ([A, A, B], [A, B, B], False, False),
        ([("x", 1), ("y", 2)], [A, B], True, True),  # columns may stand in another order
        ([("x", 2), ("y", 1)], [A, B], False, False),  # but rows stay together
        ([(1.0,)], [(1,)], False, True),
        ([("1",)], [(1,)], False, False),
        ([], [], False, True),
        ([A], [], False, False),
        ([(1,)], [A], False, False),
        ([(None, 1)], [(1, None)], False, True),
        ([(1, 2, 1), (2, 1, 1)], [(1, 1, 2), (1, 2, 1)], False, True),
    ],
)
def test_rows(predicted: list[tuple], gold: list[tuple], ordered: bool, same: bool) -> None:
    assert same_rows(predicted, gold, ordered) is same


def test_many_equal_columns_are_compared_in_time() -> None:
    rows = [tuple(i // 2**k % 2 for k in range(12)) for i in range(4)]
    assert same_rows([row[::-1] for row in rows], rows, ordered=False)


def test_order_matters_where_the_gold_query_says_so() -> None:
    assert orders("SELECT a FROM t ORDER  BY a") and orders("select a from t\norder by a")
    assert not orders("SELECT 'order by' FROM t") and not orders('SELECT "order by" FROM reorder')


@pytest.mark.parametrize(
    ("said", "query"),
    [
        (" SELECT a FROM t; SELECT b", "SELECT a FROM t"),
        ("Sure:\n```sql\nSELECT a\nFROM t;\n```\nDone; bye", "SELECT a\nFROM t"),
        ("SELECT ';' FROM t\n\nQ: more", "SELECT ';' FROM t"),
        ("SELECT a FROM t WHERE a > = 3", "SELECT a FROM t WHERE a >= 3"),
        ("", ""),
    ],
)
def test_the_first_query_of_an_answer(said: str, query: str) -> None:
    assert extract_query(said) == query


def test_pass_at_k_is_the_chance_that_one_of_k_drawn_samples_passes() -> None:
    assert pass_at(5, 0, 1) == 0 and pass_at(5, 5, 1) == 1
    assert pass_at(5, 2, 1) == pytest.approx(2 / 5)
    assert pass_at(5, 2, 3) == pytest.approx(1 - 1 / 10)  # of 10 triples, one has no passing sample
    assert pass_at(5, 3, 3) == 1
    with pytest.raises(ValueError, match="means nothing"):
        pass_at(5, 2, 6)


def test_programs_of_chat_models_come_out_of_their_fence() -> None:
    prompt = "import math\n\ndef half(x):\n"
    assert full_program(prompt, "    return x / 2\n", "half") == prompt + "    return x / 2\n"
    fenced = full_program(prompt, "Sure.\n```python\ndef half(x):\n    return x / 2\n```\nIt halves.", "half")
    assert fenced.strip() == "import math\n\n\ndef half(x):\n    return x / 2"
    assert full_program(prompt, "```\n    return 1\n```", "half") == prompt + "\n    return 1\n"


def test_rouge_is_f_of_stemmed_words() -> None:
    found = rouge("the cats sat", "the cat sat down")
    assert found["rouge1"] == pytest.approx(2 * 3 / (3 + 4))
    assert found["rouge2"] == pytest.approx(2 * 2 / (2 + 3))
    assert found["rougeL"] == pytest.approx(6 / 7)
    assert rouge("", "a cat")["rougeL"] == 0
