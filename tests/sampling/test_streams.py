"""Random streams: uniform, independent between purposes, and functions of (seed, position, purpose, counter) alone."""

import itertools
import math

import pytest
import torch
from ledger import lent

from draftwood import Engine, NonFiniteError, TabularModel
from draftwood.sampling.distributions import PURPOSES, Streams, draw, draw_distinct, draw_iid

CPU = torch.device("cpu")


def chi_square(counts: list[int]) -> float:
    """Deviation from uniform in standard deviations above the mean of chi-square."""
    expected = sum(counts) / len(counts)
    freedom = len(counts) - 1
    return (sum((n - expected) ** 2 / expected for n in counts) - freedom) / math.sqrt(2 * freedom)


def histogram(values: list[float], bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        assert 0 <= value < 1
        counts[int(value * bins)] += 1
    return counts


@pytest.mark.parametrize("purpose", ["draft", "accept", "depth"])
@pytest.mark.parametrize("along", ["seed", "position", "counter"])
def test_numbers_are_uniform(purpose: str, along: str) -> None:
    """Along each of the things that a number is a function of, pairs of neighbours included."""
    values = []
    streams = Streams(5)
    for i in range(20_000):
        if along == "seed":
            streams = Streams(i)
        elif along == "position":
            streams.at(i)
        values.append(streams.uniform(purpose))
    assert chi_square(histogram(values, 64)) < 5
    pairs = [0] * 256
    for a, b in itertools.pairwise(values):
        pairs[int(a * 16) * 16 + int(b * 16)] += 1
    assert chi_square(pairs) < 5


def test_purposes_are_independent() -> None:
    """Numbers of the same seed, position and counter for different purposes: joint counts are flat, none are equal."""
    names = [name for name in PURPOSES if name != "noise"]
    rows = []
    for seed in range(200):
        streams = Streams(seed)
        for position in range(100):
            streams.at(position)
            rows.append([streams.uniform(name) for name in names])
    for i in range(len(names)):
        for j in range(i):
            joint = [0] * 256
            for row in rows:
                assert row[i] != row[j]
                joint[int(row[i] * 16) * 16 + int(row[j] * 16)] += 1
            assert chi_square(joint) < 5


def test_a_number_is_a_function_of_its_place() -> None:
    """Whatever was used before, at other positions or for other purposes."""
    a, b = Streams(9), Streams(9)
    a.at(3)
    for _ in range(50):
        a.uniform("draft")
        a.arrivals(40, 3, CPU)
    b.at(100)
    b.uniform("depth")
    for streams in (a, b):
        streams.at(12)
    a.uniform("depth")
    assert [a.uniform("accept") for _ in range(5)] == [b.uniform("accept") for _ in range(5)]
    assert torch.equal(a.arrivals(13, 7, CPU), b.arrivals(13, 7, CPU))
    assert Streams(10).uniform("accept") != Streams(9).uniform("accept")


def test_any_whole_number_is_a_seed() -> None:
    values = {Streams(seed).uniform("accept") for seed in (-1, 0, 1, 2**63, 2**64 - 2, -(2**70) + 5)}
    assert len(values) == 6


def test_arrivals_have_their_law() -> None:
    """Exp(1), mapped through its distribution function, is uniform, over positions and over seeds; all are positive.

    So are the small ones, which decide: their number below 1/1000 and 1/100,000, and the law of those below.
    """
    streams = Streams(2)
    for times in (
        torch.stack([streams.arrivals(position, 101, CPU) for position in range(200)]),
        torch.stack([Streams(seed).arrivals(7, 101, CPU) for seed in range(200)]),
        streams.arrivals(3, 2_000_000, CPU),
    ):
        assert bool(((times > 0) & torch.isfinite(times)).all())
        assert chi_square(histogram((1 - (-times.double()).exp()).flatten().tolist(), 64)) < 5
    for least in (1e-3, 1e-5):
        few = times[times < least].double()
        assert abs(len(few) - 2_000_000 * least) < 5 * math.sqrt(2_000_000 * least)
        if len(few) > 1000:
            assert chi_square(histogram((few / least).tolist(), 16)) < 5


def test_arrivals_of_neighbours_are_independent() -> None:
    """Of neighbouring tokens, of one token at neighbouring positions, and under neighbouring seeds."""
    size = 50_000
    times = [Streams(seed).arrivals(position, size, CPU) for seed, position in ((1, 5), (1, 6), (2, 5))]
    u = [(1 - (-row.double()).exp()) for row in times]
    for a, b in ((u[0][:-1], u[0][1:]), (u[0], u[1]), (u[0], u[2]), (u[0][:-2], u[0][2:])):
        joint = torch.bincount((a * 16).long() * 16 + (b * 16).long(), minlength=256)
        assert chi_square(joint.tolist()) < 5


def test_draws_follow_the_weights_and_avoid_zeros() -> None:
    """Any sum, zeros at both ends and between; u = 0 and u just below 1 included."""
    weights = torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0, 0.0])
    assert draw(weights, 0.0) == 2
    assert draw(weights, 1 - 2.0**-48) == 4
    assert draw(weights, 0.75) == 4
    assert draw(weights, 0.75 - 2.0**-40) == 2
    tiny = torch.tensor([0.0, 1e-30, 0.0], dtype=torch.float64)
    assert {draw(tiny, u / 64) for u in range(64)} == {1}
    streams = Streams(1)
    for _ in range(300):
        probs = torch.tensor([[0.0, 0.2, 0.0, 0.8], [1.0, 0.0, 0.0, 0.0]])
        first, second = draw_iid(probs, 3, streams)
        assert set(first) <= {1, 3} and set(second) == {0}
        first, second = draw_distinct(probs, 3, streams)
        assert sorted(first) == [1, 3] and second == [0]


def test_distinct_draws_follow_successive_sampling() -> None:
    """The ordered pair (x, y) has chance q(x) q(y) / (1 - q(x))."""
    q = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    count = 20_000
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(count):
        pair = tuple(draw_distinct(q, 2, Streams(seed))[0])
        seen[pair] = seen.get(pair, 0) + 1
    statistic = 0.0
    for x in range(3):
        for y in range(3):
            if x != y:
                expected = count * float(q[0, x] * q[0, y] / (1 - q[0, x]))
                statistic += (seen[x, y] - expected) ** 2 / expected
    assert statistic < 5 + 5 * math.sqrt(10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_weights_that_are_no_distribution(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        draw(torch.tensor([bad, 0.0]), 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_target_that_is_not_finite(bad: float, sampling: dict[str, float], verify: str) -> None:
    """Raised in the round that meets it, and the cache rows are given back."""
    broken = TabularModel(lambda prefix: [bad, 1.0, 1.0] if len(prefix) > 3 else [0.1, 1.0, 1.0], 3)
    engine = Engine(broken, [TabularModel.random(3, 1)])
    for method in ("autoregressive", "speculative", "mcsd", "specinfer"):
        with pytest.raises(NonFiniteError):
            engine.generate([1, 2], {"name": method, "verify": verify}, sampling, max_new_tokens=8)
    assert engine.generate([1, 2], {"name": "autoregressive", "verify": verify}, sampling, max_new_tokens=1).tokens
    assert not any(lent(engine))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
@pytest.mark.parametrize("method", ["speculative", "specinfer", "mcsd"])
def test_draft_that_is_not_finite(bad: float, sampling: dict[str, float], method: str) -> None:
    broken = TabularModel(lambda prefix: [bad, 1.0, 1.0], 3)
    engine = Engine(TabularModel.random(3, 1), [broken])
    with pytest.raises(NonFiniteError):
        engine.generate([1, 2], method, sampling, max_new_tokens=8)
    assert not any(lent(engine))
