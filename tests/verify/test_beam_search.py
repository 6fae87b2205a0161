"""Beam search as selection: against sorting everything; ties, pool, early stopping, speculative acceptance."""

import math

import pytest
import torch
from leading_rows import among

from draftwood.errors import ConfigurationError
from draftwood.verify.beam_search import BeamSearch, Pool, layer_stands


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("width", [1, 2, 4])
def test_step_equals_a_full_sort(width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = -torch.randint(0, 3, (width,), generator=generator).double()
    log_probs = -torch.randint(0, 4, (width, 5), generator=generator).double()  # many ties
    ends = {0} if seed % 2 else set()
    pairs = [(b, t) for b in range(width) for t in range(5)]
    value = {(b, t): float(scores[b] + log_probs[b, t]) for b, t in pairs}
    ranked = sorted(pairs, key=lambda x: (-value[x], x))
    step = BeamSearch(width).step(scores.tolist(), among(log_probs), lambda beam, token: token in ends)
    assert step.live == [x for x in ranked if x[1] not in ends][:width]
    assert step.ended == [x for x in ranked[:width] if x[1] in ends]
    assert step.live_scores == [value[x] for x in step.live]
    assert step.ended_scores == [value[x] for x in step.ended]


def test_impossible_continuations_are_no_beams() -> None:
    log_probs = torch.tensor([[0.0, -math.inf, -math.inf]], dtype=torch.float64)
    step = BeamSearch(3).step([0.0], among(log_probs))
    assert step.live == [(0, 0)]


def test_layer_stands_if_all_live_beams_were_drafted() -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], dtype=torch.float64).log()
    step = BeamSearch(2).step([0.0, -0.1], among(log_probs))
    assert step.live == [(1, 0), (0, 0)]
    assert layer_stands(step.live, [(0, 0), (0, 1), (1, 0)])
    assert not layer_stands(step.live, [(0, 0), (0, 1)])


def test_pool_keeps_the_best_by_penalised_score() -> None:
    pool: Pool[str] = Pool(BeamSearch(2, length_penalty=2.0, n_best=2))
    pool.add(-4.0, 2, "a")  # -1
    pool.add(-4.0, 1, "b")  # -4
    pool.add(-9.0, 3, "c")  # -1, later than a
    assert [handle for _, _, handle in pool.best()] == ["a", "c"]
    assert [score for score, _, _ in pool.best()] == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("early", "penalty", "done"),
    [(True, 1.0, True), (False, 1.0, True), ("never", 1.0, False), ("never", 0.0, True), ("never", -1.0, True)],
)
def test_early_stopping(early: bool | str, penalty: float, done: bool) -> None:
    """Live -6 at length 2 (score -3); grown to length 10 it might reach -0.6; worst finished -2 at length 1."""
    pool: Pool[int] = Pool(BeamSearch(1, length_penalty=penalty, early_stopping=early))  # type: ignore[arg-type]
    assert not pool.done([-6.0], 2, 10)
    pool.add(-2.0, 1, 0)
    assert pool.done([-6.0], 2, 10) == done
    assert pool.done([], 2, 10)


def test_live_beam_that_can_win_goes_on() -> None:
    pool: Pool[int] = Pool(BeamSearch(1))
    pool.add(-2.0, 1, 0)
    assert not pool.done([-2.0], 2, 10)


def test_bad_settings() -> None:
    with pytest.raises(ConfigurationError, match="width"):
        BeamSearch(0)
    with pytest.raises(ConfigurationError, match="n_best"):
        BeamSearch(2, n_best=3)
