"""The worth of trees: formulas against brute force and simulation, the search against looking at everything."""

import itertools
import math
import random

import pytest

from draftwood.core.shape import Shape
from draftwood.depth import improvement
from draftwood.tune.shapes import (
    Cost,
    best_shapes,
    expected_tokens,
    layer_acceptance,
    round_seconds,
    shapes,
)


def speed_up(shape: Shape, acceptance: list[list[float]], target: Cost, draft: Cost) -> float:
    """Tokens per second over those of plain decoding: expected_tokens T(1) / (T(rows) + sum_l D(rows of l - 1)).

    For a chain with constant acceptance and costs this is the improvement factor, `depth.improvement` (MCSD Eq. 1).
    """
    return expected_tokens(shape, acceptance) * target(1) / round_seconds(shape, target, draft)


TARGET = Cost({1: 1.0, 8: 1.1, 32: 1.6, 64: 3.0})
DRAFT = Cost({1: 0.05, 16: 0.07, 64: 0.2})
ACCEPTANCE = [[0.6, 0.3, 0.1, 0.05], [0.5, 0.2, 0.1], [0.4, 0.15]]


def brute_tokens(shape: Shape, acceptance: list[list[float]]) -> float:
    """Every outcome of every sibling that is met, for each initial token on its own."""

    def lengths(layer: int) -> dict[int, float]:
        """Law of the accepted length below an accepted node above `layer`."""
        if layer == len(shape.tree):
            return {0: 1.0}
        chances = acceptance[min(layer, len(acceptance) - 1)]
        law: dict[int, float] = {}
        for outcome in itertools.product((True, False), repeat=shape.tree[layer]):
            chance = 1.0
            for i, accepted in enumerate(outcome):
                a = chances[min(i, len(chances) - 1)]
                chance *= a if accepted else 1 - a
            if any(outcome):
                for length, share in lengths(layer + 1).items():
                    law[length + 1] = law.get(length + 1, 0.0) + chance * share
            else:
                law[0] = law.get(0, 0.0) + chance
        return law

    law = lengths(0)
    total = 0.0
    for paths in itertools.product(law.items(), repeat=shape.initial):
        total += math.prod(chance for _, chance in paths) * (1 + max(length for length, _ in paths))
    return total


@pytest.mark.parametrize("shape", [Shape((4, 2, 2, 1)), Shape((1, 1, 1)), Shape((4, 3, 1, 1), 2), Shape((2, 1), 3)])
def test_expected_tokens_against_brute_force(shape: Shape) -> None:
    assert expected_tokens(shape, ACCEPTANCE) == pytest.approx(brute_tokens(shape, ACCEPTANCE), abs=1e-12)


def test_rows_of_the_papers_tree() -> None:
    """(2,4,3,1,1): 40 drafts for each of two target tokens (§4.1); the mask of Figure 1's has (3 + 6)^2 cells."""
    assert Shape((4, 3, 1, 1), 2).rows == 2 * (1 + 40)
    assert Shape((1, 1), 3).rows == 9
    assert layer_acceptance([0.5], 3) == pytest.approx(0.875)


def test_speed_up_of_a_chain_is_the_improvement() -> None:
    for alpha, gamma, c in ((0.8, 4, 0.05), (0.3, 2, 0.2)):
        chain = Shape((1,) * gamma)
        assert speed_up(chain, [[alpha]], Cost({1: 1.0}), Cost({1: c})) == pytest.approx(improvement(alpha, gamma, c))


def test_speed_up_against_simulated_rounds() -> None:
    rng, shape = random.Random(5), Shape((2, 2, 1), 2)
    tokens = 0
    for _ in range(40_000):
        best = 0
        for _ in range(shape.initial):
            length = 0
            for layer, width in enumerate(shape.tree):
                if not any(rng.random() < ACCEPTANCE[layer][i] for i in range(width)):
                    break
                length += 1
            best = max(best, length)
        tokens += best + 1
    simulated = tokens / 40_000 * TARGET(1) / round_seconds(shape, TARGET, DRAFT)
    assert speed_up(shape, ACCEPTANCE, TARGET, DRAFT) == pytest.approx(simulated, rel=0.01)


def test_costs_are_interpolated() -> None:
    cost = Cost({1: 1.0, 5: 2.0, 9: 6.0})
    assert [cost(rows) for rows in (1, 3, 5, 7, 9, 11)] == pytest.approx([1.0, 1.5, 2.0, 4.0, 6.0, 8.0])
    assert Cost({4: 2.0})(100) == 2.0
    for bad in ({}, {0: 1.0}, {1: 0.0}):
        with pytest.raises(ValueError, match="measure at least one"):
            Cost(bad)


@pytest.mark.parametrize("initial", [(1,), (1, 2, 3)])
@pytest.mark.parametrize("rows", [1 * 3, 12, 26])
def test_search_finds_what_looking_at_all_finds(rows: int, initial: tuple[int, ...]) -> None:
    jumpy = Cost({1: 1.0, 4: 1.3, 8: 1.1, 16: 2.0})  # measured with noise: costs that fall
    for target in (TARGET, jumpy):
        everything = sorted(
            (speed_up(shape, ACCEPTANCE, target, DRAFT) for shape in shapes(rows, 5, initial)), reverse=True
        )
        found = best_shapes(ACCEPTANCE, target, DRAFT, rows, 5, initial, 3)
        assert [speed for speed, _ in found] == pytest.approx(everything[:3])
        assert all(shape.rows <= rows for _, shape in found)
        assert [speed_up(shape, ACCEPTANCE, target, DRAFT) for _, shape in found] == pytest.approx(everything[:3])


def test_shapes_within_a_row_limit() -> None:
    assert list(shapes(3, 9)) == [Shape(()), Shape((1,)), Shape((1, 1)), Shape((2,))]
    with pytest.raises(ValueError, match="allow more rows"):
        best_shapes(ACCEPTANCE, TARGET, DRAFT, 1, initial=(2,))
    with pytest.raises(ValueError, match="1 or more"):
        Shape((2, 0))
