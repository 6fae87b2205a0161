"""Isotonic regression: no sequence that does not fall is nearer."""

import itertools
import random

from draftwood.util.isotonic import isotonic


def test_what_rises_is_left_as_it_is() -> None:
    assert isotonic([]) == []
    assert isotonic([0.1, 0.3, 0.7]) == [0.1, 0.3, 0.7]


def test_neighbours_that_fall_are_replaced_by_their_weighted_mean() -> None:
    assert isotonic([1.0, 3.0, 2.0, 5.0]) == [1.0, 2.5, 2.5, 5.0]
    assert isotonic([1.0, 4.0, 1.0], [1.0, 1.0, 2.0]) == [1.0, 2.0, 2.0]


def test_nothing_on_a_grid_is_nearer() -> None:
    rng = random.Random(1)
    for _ in range(40):
        values = [rng.randint(0, 4) for _ in range(4)]
        weights = [rng.uniform(0.5, 3) for _ in values]

        def distance(fit: list[float], values: list[int] = values, weights: list[float] = weights) -> float:
            return sum(w * (a - b) ** 2 for w, a, b in zip(weights, values, fit, strict=True))

        found = isotonic(values, weights)
        assert found == sorted(found)
        steps = [i / 4 for i in range(17)]
        best = min(distance(list(each)) for each in itertools.combinations_with_replacement(steps, 4))
        assert distance(found) <= best + 1e-12
