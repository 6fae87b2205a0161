"""Intervals of several tasks, and of what was chosen on one half of the items and judged on the other."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.intervals import judged_apart, of_tasks
from draftwood.eval.intervals import Array, quotient


def ratio(sums: Array) -> Array:
    result: Array = sums[0] / sums[1]
    return result


def test_tasks_weigh_alike_and_items_are_drawn_within_them() -> None:
    many, few = [[2.0] * 90, [1.0] * 90], [[8.0] * 10, [1.0] * 10]
    both = of_tasks([many, few], ratio)
    assert both["value"] == pytest.approx(4) and both["n"] == 100  # of all items alike it would be 2.6
    assert both["low"] == pytest.approx(4) == both["high"]  # no sample has more of one task than another
    some = np.random.default_rng(0).uniform(1, 2, (4, 12)).tolist()
    one = of_tasks([some], lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]))
    assert one == pytest.approx(quotient(*some))  # a single task is as ever
    assert of_tasks([[[1.0], [2.0]], few], ratio)["low"] is None
    assert of_tasks([], ratio)["value"] is None


def fastest_of_noise(items: int, seed: int) -> tuple[float, float]:
    """Twelve settings that are equally fast but for noise, chosen and judged on the same items, and apart."""
    seconds = np.random.default_rng(seed).lognormal(0, 0.5, (13, items))
    table = np.stack([np.ones_like(seconds), seconds], axis=1)

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        best = 1 + (sums[1:, 0] / sums[1:, 1]).argmax(0)
        return best, np.zeros_like(best)

    def of(first: Array, second: Array) -> Array:
        result: Array = first[0] / first[1] / (second[0] / second[1])
        return result

    rates = items / seconds.sum(1)
    return float(rates[1:].max() / rates[0]), judged_apart(table, choose, of)[0]["value"] or 0.0


def test_what_is_chosen_apart_is_not_flattered() -> None:
    same, apart = np.log([fastest_of_noise(20, seed) for seed in range(60)]).mean(0)
    assert same > 0.1 and abs(apart) < 0.06


def test_a_choice_is_made_on_one_half_and_timed_on_the_other() -> None:
    """Of two candidates each is fastest on one half: judged apart, both choices are the slow one."""
    fast, slow = [1.0, 4.0] * 4, [4.0, 1.0] * 4
    table = np.stack([np.stack([np.ones(8), each]) for each in (fast, slow, [2.0] * 8)])

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        best = (sums[:2, 0] / sums[:2, 1]).argmax(0)
        return best, np.full_like(best, 2)

    found, chosen = judged_apart(table, choose, lambda a, b: a[0] / a[1] / (b[0] / b[1]))
    assert chosen == [(0, 2), (1, 2)] and found["value"] == pytest.approx(0.5)  # on the same items it would be 2
    assert found["low"] == found["high"] == pytest.approx(0.5)


def test_intervals_have_the_uncertainty_of_the_choice() -> None:
    """Where the halves hardly decide between a fast and a slow setting, samples choose either."""
    rng = np.random.default_rng(1)
    near = rng.lognormal(0, 0.6, (2, 16))
    table = np.stack([np.stack([np.ones(16), each]) for each in (*near, np.ones(16))])
    picked: set[int] = set()

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        best = (sums[:2, 0] / sums[:2, 1]).argmax(0)
        picked.update(best.tolist())
        return best, np.full_like(best, 2)

    judged_apart(table, choose, lambda a, b: a[0] / a[1] / (b[0] / b[1]))
    assert picked == {0, 1}


def test_items_of_one_cluster_stay_together() -> None:
    """Drawn with each other within their task, and in the same half; of one cluster in a half there is no interval."""
    rates = np.repeat([1.0, 3.0, 2.0, 4.0], 3)
    columns = [rates.tolist(), [1.0] * 12]
    clusters = np.repeat(range(4), 3).tolist()
    found, alone = of_tasks([columns], ratio, [clusters]), of_tasks([columns], ratio)
    assert found["value"] == alone["value"] == pytest.approx(2.5) and found["n"] == alone["n"] == 12
    assert found["low"] == pytest.approx(1.25, abs=0.3) and found["low"] < (alone["low"] or 0) - 0.1
    assert of_tasks([columns, columns], ratio, [clusters, [0] * 12])["low"] is None
    halves: list[Array] = []

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        halves.append(sums[0, 0])
        return np.zeros(sums.shape[-1], int), np.ones(sums.shape[-1], int)

    table = np.stack([columns, [[1.0] * 12] * 2])
    found, _ = judged_apart(table, choose, lambda a, b: a[0] / b[0], clusters)
    assert [half[0] for half in halves[:2]] == [9, 21] and found["value"] == pytest.approx(2.5) and found["n"] == 12
    assert {*np.unique(halves[2])} == {6.0, 9.0, 12.0}  # of two clusters of three
    assert judged_apart(table, choose, lambda a, b: a[0] / b[0], [i % 2 for i in range(12)])[0]["low"] is None
