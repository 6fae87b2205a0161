"""The guided search: what runs show predicts other trees, in real runs and in worlds with noise."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable

import pytest

from draftwood import Engine, TabularModel
from draftwood.core.shape import Shape
from draftwood.tune.measuring import tree_method
from draftwood.tune.observation import Observation
from draftwood.tune.search import AcceptanceTally, Guided, overheads, pilot_shape
from draftwood.tune.shapes import Cost, expected_tokens, rising, round_seconds, shapes

TARGET = Cost({1: 1.0, 8: 1.1, 32: 1.6, 64: 3.0})
DRAFT = Cost({1: 0.05, 16: 0.07, 64: 0.2})
ACCEPTANCE = [[0.6, 0.3, 0.1, 0.05], [0.5, 0.2, 0.1], [0.4, 0.15]]


def rest(shape: Shape) -> float:
    """Seconds beyond forwards, which a search is not told beforehand."""
    return 0.05 + 0.03 * len(shape.tree) + 0.004 * shape.rows


def whim(shape: Shape) -> float:
    """A speed that no formula predicts."""
    return math.exp(0.02 * random.Random(zlib.crc32(repr(shape.tree).encode())).uniform(-1, 1))


def true_speed(shape: Shape) -> float:
    tokens = expected_tokens(Shape(shape.tree), ACCEPTANCE) * (1 + 0.1 * (shape.initial - 1))
    return whim(shape) * tokens / (round_seconds(shape, TARGET, DRAFT) + rest(shape))


def corpus(seed: int, slow: float = 1.0) -> Callable[[Shape], tuple[Observation, Observation]]:
    """Runs of 200 rounds, timed with noise; `slow`: forwards take so many times what was measured before."""
    rng = random.Random(seed)

    def measure(shape: Shape) -> tuple[Observation, Observation]:
        met = [[0] * width for width in shape.tree]
        accepted = [[0] * width for width in shape.tree]
        tokens = 0
        for _ in range(200):
            tokens += 1
            for layer, width in enumerate(shape.tree):
                chances = ACCEPTANCE[min(layer, len(ACCEPTANCE) - 1)]
                for i in range(width):
                    met[layer][i] += 1
                    if rng.random() < chances[min(i, len(chances) - 1)]:
                        accepted[layer][i] += 1
                        break
                else:
                    break
                tokens += 1
        luck = tokens / 200 / expected_tokens(Shape(shape.tree), ACCEPTANCE) * math.exp(rng.gauss(0, 0.02))
        forwards = round_seconds(shape, TARGET, DRAFT)
        own = Observation(1.0, true_speed(shape) * luck, rounds=1, met=met, taken=accepted)  # type: ignore[arg-type]
        own.verify, own.draft = slow * TARGET(shape.rows), slow * (forwards - TARGET(shape.rows))
        own.overhead = slow * rest(shape)
        return own, Observation(1.0, 1, rounds=1, verify=slow * TARGET(1), overhead=slow * rest(Shape(())))

    return measure


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_within_three_percent_of_the_best_of_all(slow: float) -> None:
    grid = [shape for shape in shapes(30, 5) if shape.tree]
    best = max(map(true_speed, grid))
    found = []
    for seed in range(5):
        search, measure = Guided(pilot_shape(30, 5), TARGET, DRAFT, 30, 5), corpus(seed, slow)
        for _ in range(10):
            shape = search.ask()
            search.tell(shape, *measure(shape))
        found.append(true_speed(search.ranked()[0][1]) / best)
        assert sum(map(len, search.runs.values())) == 10 <= len(grid) / 5
    assert sorted(found)[1] > 0.97 and sum(found) / len(found) > 0.97


def test_a_good_tree_is_run_again() -> None:
    search, measure = Guided(pilot_shape(30, 5), TARGET, DRAFT, 30, 5), corpus(3)
    for _ in range(20):
        shape = search.ask()
        search.tell(shape, *measure(shape))
    assert len(search.runs[search.ranked()[0][1]]) >= 3


def test_times_of_rounds_are_learned() -> None:
    """Costs measured at a bad moment, and what comes on top of forwards, are put right by runs."""
    search, measure = Guided(Shape((3, 2, 1)), TARGET, DRAFT, 30, 5), corpus(1, slow=0.5)
    for shape in (Shape((3, 2, 1)), Shape((1, 1, 1, 1)), Shape((2,))):
        search.tell(shape, *measure(shape))
    target, draft = search._costs
    for shape in (Shape((4, 2)), Shape((1, 1)), Shape((2, 2, 2))):
        expected = 0.5 * (round_seconds(shape, TARGET, DRAFT) + rest(shape))
        assert round_seconds(shape, target, draft) == pytest.approx(expected, rel=0.02)


def test_overheads_of_exact_data() -> None:
    shapes = (Shape(()), Shape((1, 1, 1)), Shape((4,)), Shape((3, 2, 1)))
    seen = [(len(shape.tree), shape.rows, rest(shape)) for shape in shapes]
    assert overheads(seen) == pytest.approx((0.05, 0.03, 0.004), rel=0.05)
    assert overheads([]) == (0.0, 0.0, 0.0)
    few = overheads(seen[1:2])  # one number for three: shared out, none below 0
    assert min(few) > 0 and few[0] + 3 * few[1] + 4 * few[2] == pytest.approx(seen[1][2], rel=0.01)


def test_initial_tokens_have_a_factor_of_their_own() -> None:
    search, measure = Guided(Shape((2, 1)), TARGET, DRAFT, 30, 4, (1, 2)), corpus(2)
    for shape in (Shape((2, 1)), Shape((2, 1), 2)):
        search.tell(shape, *measure(shape))
    met = search.tally.met[0][0]
    assert met == 200  # runs with two initial tokens show the luckier path: they teach nothing about acceptance
    raw = search.predicted(Shape((2, 2), 2))
    search.tell(Shape((2, 1), 2), Observation(1.0, 10 * search.runs[Shape((2, 1), 2)][0]), Observation(1.0, 1))
    assert search.tally.met[0][0] == met
    assert search.predicted(Shape((2, 2), 2)) == pytest.approx(raw * math.sqrt(10), rel=1e-6)


def test_what_may_be_asked() -> None:
    search, measure = Guided(pilot_shape(20, 3), TARGET, DRAFT, 20, 3, (2,), (1, 3)), corpus(4)
    assert search.ask() == Shape((3, 2, 1)) == pilot_shape(20, 3)  # the pilot need not be in the space
    for _ in range(12):
        shape = search.ask()
        search.tell(shape, *measure(shape))
    asked = [shape for shape in search.runs if shape != search.pilot]
    assert asked and all(search.allows(shape) for shape in asked)
    assert all(s.initial == 2 and s.rows <= 20 and set(s.tree) <= {1, 3} and 0 < len(s.tree) <= 3 for s in asked)
    assert [shape for _, shape in search.ranked()] and search.pilot not in [shape for _, shape in search.ranked()]
    with pytest.raises(ValueError, match="allow more rows"):
        Guided(Shape((1,)), TARGET, DRAFT, 3, 3, (2,))
    with pytest.raises(ValueError, match="allow more"):
        pilot_shape(1, 3)


def test_guesses_where_little_was_met() -> None:
    tally = AcceptanceTally()
    tally.add(Observation(met=[[1000, 100, 0], [900, 0]], taken=[[900, 40, 0], [800, 0]]))
    table = tally.acceptance()
    assert table[0][:2] == pytest.approx([0.9, 0.4], abs=0.01)
    assert table[1][0] == pytest.approx(800 / 900, abs=0.01)
    assert table[1][1] == pytest.approx(table[0][1], abs=0.01)  # never met in layer 1: as in the other layers
    assert 0.1 < table[0][2] < 0.3  # met nowhere: half of the one before
    assert len(table) == 2
    assert table[0][3:5] == pytest.approx([table[0][2] / 2, table[0][2] / 4])  # nor drawn: the same


def test_costs_that_fall_are_noise() -> None:
    assert rising({1: 1.0, 2: 3.0, 4: 2.0, 8: 5.0}) == {1: 1.0, 2: 2.5, 4: 2.5, 8: 5.0}
    assert rising({1: 3.0, 2: 2.0, 4: 1.0}) == {1: 2.0, 2: 2.0, 4: 2.0}
    falling = Cost({1: 1.0, 4: 2.0}).scaled(2.0).plus(0.5, 0.1)
    assert [falling(rows) for rows in (1, 4, 8)] == pytest.approx([2.6, 4.9, 4.9 + 4 * 0.1 + 4 * 2 / 3], rel=0.2)
    assert Cost({4: 2.0}).plus(1.0, 0.5)(10) == pytest.approx(8.0)


def test_real_runs_predict_tau() -> None:
    """Acceptance from runs of one tree gives tau of others, on models whose next token depends on the last."""
    rng = random.Random(1)
    table = [[rng.expovariate(1.0) for _ in range(8)] for _ in range(8)]
    target = TabularModel(lambda prefix: [weight**2.0 for weight in table[prefix[-1]]], 8)
    draft = TabularModel(lambda prefix: [weight**1.4 for weight in table[prefix[-1]]], 8)
    engine = Engine(target, [draft])
    tally = AcceptanceTally()

    def tau(tree: tuple[int, ...]) -> tuple[float, int]:
        requests = [{"prompt": [seed], "seed": seed} for seed in range(8)]
        runs = engine.batch(requests, method=tree_method(Shape(tree)), max_new_tokens=120)
        if tree == (3, 2, 2, 1):
            for run in runs:
                tally.add(Observation(met=run.metrics.met_at, taken=run.metrics.taken_at))
        rounds = sum(run.metrics.rounds for run in runs)
        return 8 * 120 / rounds, rounds

    measured, _ = tau((3, 2, 2, 1))
    predicted = expected_tokens(Shape((3, 2, 2, 1)), tally.acceptance())
    assert predicted == pytest.approx(measured, rel=0.05)  # the same rounds, but the last of a text is cut
    for tree in ((1, 1, 1), (2, 1), (2, 2, 2)):
        measured, rounds = tau(tree)
        noise = 3 * (len(tree) / 2) / math.sqrt(rounds)  # thrice the deviation of a mean of 1..len + 1 tokens
        assert expected_tokens(Shape(tree), tally.acceptance()) == pytest.approx(measured, abs=noise + 0.1)
        assert noise < 0.3 < measured - 1
