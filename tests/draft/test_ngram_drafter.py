"""Prompt lookup: the chain is what followed the latest earlier occurrence of the longest n-gram."""

import random

import pytest

from draftwood import SamplingParams
from draftwood.core.forest import TRUNK, Forest
from draftwood.depth import Fixed
from draftwood.draft import NgramDrafter, Proposer
from draftwood.sampling import Streams


def proposed(
    drafter: NgramDrafter, forest: Forest, depth: int = 4, limit: int = 9, end: frozenset[int] = frozenset()
) -> list[int]:
    """The drafted tokens; checks that they are a chain of point masses."""
    propose = Proposer(SamplingParams(), Streams(0), 100)
    forest.end = end
    assert list(drafter.draft(forest, Fixed(depth), limit, propose)) == []
    assert forest.parent == [TRUNK, *range(len(forest) - 1)]
    assert all(made.q is None for proposals in forest.proposals.values() for made in proposals)
    return forest.token[1:]


def drafts(tokens: list[int], low: int = 1, high: int = 4, **options: int) -> list[int]:
    return proposed(NgramDrafter(high, low), Forest.from_prompt(tokens), **options)


def slow(tokens: list[int], low: int, high: int, depth: int) -> list[int]:
    """By searching the whole text: longest n first, latest place first; a copy may run into itself."""
    for n in range(high, low - 1, -1):
        if n > len(tokens):
            continue
        for place in range(len(tokens) - 1, n - 1, -1):
            if tokens[place - n : place] == tokens[-n:]:
                text = list(tokens)
                for i in range(depth):
                    text.append(text[place + i])
                return text[len(tokens) :]
    return []


def test_what_followed_is_proposed() -> None:
    assert drafts([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]
    assert drafts([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], depth=2) == [4, 9]  # the latest
    assert drafts([1, 2, 3, 7, 8, 2, 4, 9, 1, 2], depth=2) == [3, 7]  # the longest before the latest
    assert drafts([1, 2, 3, 4]) == []
    assert drafts([5]) == []


def test_a_copy_may_run_into_itself() -> None:
    assert drafts([7, 7]) == [7, 7, 7, 7]
    assert drafts([1, 2, 1, 2, 1]) == [2, 1, 2, 1]


def test_lengths_of_n_grams() -> None:
    assert drafts([1, 2, 3, 9, 2], low=2) == []
    assert drafts([1, 2, 3, 9, 2], low=1, high=1, depth=1) == [3]
    assert drafts([4, 1, 2, 3, 5, 1, 2, 3], low=3, high=3, depth=1) == [5]


def test_n_grams_may_be_longer_than_half_of_a_short_text() -> None:
    """Four tokens match further back, three of them later: the longer match wins, whatever max_ngram allows."""
    text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4]
    for high in (4, 8, 12, 16):
        assert drafts(text, high=high, depth=1) == [5]
    assert drafts(text, high=3, depth=1) == [6]


def test_where_drafting_ends() -> None:
    text = [1, 2, 3, 4, 5, 6, 1]
    assert drafts(text, depth=3) == [2, 3, 4]
    assert drafts(text, limit=2) == [2, 3]
    assert drafts(text, limit=0) == []
    assert proposed(NgramDrafter(4, 1), Forest.from_prompt(text), end=frozenset({4})) == [
        2,
        3,
        4,
    ]  # nothing after an end token


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 3), (2, 4), (3, 3), (1, 9)])
def test_the_growing_index_equals_a_search(low: int, high: int) -> None:
    """One drafter over a growing text, as a request uses it, against a search of the whole text each time."""
    rng = random.Random(f"{low} {high}")
    found = 0
    for _ in range(60):
        drafter = NgramDrafter(high, low)
        text = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
        for _ in range(6):
            expected = slow(text, low, high, 5)
            assert proposed(drafter, Forest.from_prompt(text), depth=5) == expected
            found += bool(expected)
            text += [rng.randrange(3) for _ in range(rng.randrange(1, 5))]
    assert found > 50
