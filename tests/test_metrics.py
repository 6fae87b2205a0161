"""The one definition of every metric, on rounds written by hand and on generations whose acceptance is known."""

import json
from typing import Any

import pytest

from draftwood import Engine, Metrics, Round, TabularModel


def round_(tokens: list[int], drafted: int, depth: int, attempted: int, **given: Any) -> Round:
    """A round with plain values where nothing is said."""
    values: dict[str, Any] = {
        "position": 0,
        "logprobs": [-1.0] * len(tokens),
        "warped_logprobs": [-1.0] * len(tokens),
        "top_logprobs": [],
        "warped_top_logprobs": [],
        "draws": drafted,
        "accepted": min(depth, len(tokens)),
        "draft_seconds": 0.2,
        "verify_seconds": 0.5,
        "sampling_seconds": 0.1,
        "other_seconds": 0.05,
        "target_rows": 1.0 + drafted,
        "draft_rows": float(drafted),
        "draft_forwards": 2,
        "forest_token": [],
        "forest_parent": [],
        "forest_path": [],
        "roots": [],
        "root_parents": [],
        "kinds": ["plain"] * len(tokens),
    }
    return Round(tokens=tokens, drafted=drafted, depth_accepted=depth, attempted=attempted, **{**values, **given})


def test_sums_and_ratios() -> None:
    metrics = Metrics()
    metrics.add(round_([1, 2, 3], 4, 2, 3))
    metrics.add(round_([4], 4, 0, 1))
    metrics.add(round_([5, 6, 7, 8, 9], 4, 4, 4))
    metrics.add(round_([1], 0, 0, 0))
    metrics.seconds = 5.0
    assert (metrics.rounds, metrics.emitted, metrics.drafted, metrics.accepted) == (4, 10, 12, 6)
    assert metrics.tau == 2.5
    assert metrics.acceptance_rate == 0.5  # v_d: accepted over drafted
    assert metrics.alpha == pytest.approx(6 / 8)  # went on, over positions that had drafts
    assert metrics.attempted_at == [3, 2, 2, 1] and metrics.accepted_at == [2, 2, 1, 1]
    assert metrics.acceptance_by_position == pytest.approx([2 / 3, 1, 0.5, 1])
    assert metrics.tokens_per_second == 2
    assert metrics.draft_cost_ratio == pytest.approx((0.8 / 8) / (2.0 / 4))
    assert metrics.target_rows == 16 and metrics.draft_rows == 12
    assert metrics.first_round_seconds == pytest.approx(0.85)
    assert metrics.verify_seconds == 2.0 and metrics.sampling_seconds == pytest.approx(0.4)


def test_nothing_drafted_divides_by_nothing() -> None:
    metrics = Metrics()
    for value in (metrics.tau, metrics.acceptance_rate, metrics.alpha, metrics.tokens_per_second):
        assert value == 0
    assert metrics.draft_cost_ratio == 0 and metrics.acceptance_by_position == []
    json.dumps(metrics.as_dict())


def test_a_perfect_draft_is_always_accepted() -> None:
    target = TabularModel.random(5, seed=1)
    engine = Engine(target, [TabularModel.random(5, seed=1)])
    result = engine.generate([1, 2], {"name": "speculative", "gamma": 3}, max_new_tokens=16)
    metrics = result.metrics
    assert (metrics.rounds, metrics.tau, metrics.alpha, metrics.acceptance_rate) == (4, 4, 1, 1)
    assert metrics.acceptance_by_position == [1, 1, 1]
    assert result.kinds == ["accepted", "accepted", "accepted", "bonus"] * 4
    assert metrics.target_rows == 1 + 4 * 4  # the prompt's other token, then root and drafts
    # the draft computes the prompt and each token once; at the end, not the last draft and the bonus token
    assert metrics.draft_forwards == 12 and metrics.draft_rows == 2 + 14


def test_a_hopeless_draft_is_never_accepted() -> None:
    engine = Engine(TabularModel(lambda prefix: [1.0, 0.0], 2), [TabularModel(lambda prefix: [0.0, 1.0], 2)])
    result = engine.generate([0], {"name": "speculative", "gamma": 2}, max_new_tokens=6)
    assert result.metrics.alpha == result.metrics.accepted == 0
    assert result.metrics.tau == 1 and result.metrics.attempted == 5
    assert result.kinds == ["corrected"] * 5 + ["plain"]  # no draft where only one token is left
    assert result.metrics.acceptance_by_position == [0]


def test_acceptance_rate_is_the_overlap_of_p_and_q() -> None:
    """Chain, laws without memory: alpha estimates sum_x min(p, q), tau (1 - alpha^(gamma+1)) / (1 - alpha)."""
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    engine = Engine(TabularModel(lambda prefix: p, 3), [TabularModel(lambda prefix: q, 3)])
    total = Metrics()
    for seed in range(60):
        for news in engine.generate([0], {"name": "speculative", "gamma": 2}, max_new_tokens=60, seed=seed).rounds:
            total.add(news)
    alpha = 0.2 + 0.3 + 0.1
    assert total.alpha == pytest.approx(alpha, abs=0.03)
    assert total.tau == pytest.approx((1 - alpha**3) / (1 - alpha), abs=0.06)
    assert total.acceptance_by_position == pytest.approx([alpha, alpha], abs=0.04)


def test_method_and_baseline_count_tokens_alike() -> None:
    """Emitted tokens, end token included, for plain decoding and for drafts that overshoot the end."""
    target = TabularModel.random(4, seed=3)
    engine = Engine(target, [TabularModel.random(4, seed=3)], end_tokens=frozenset({0}))
    for seed in range(30):
        options = {"max_new_tokens": 9, "seed": seed}
        for name in ("autoregressive", "speculative", "mcsd"):
            result = engine.generate([1], {"name": name, "verify": "coupled"}, **options)
            plain = engine.generate([1], {"name": "autoregressive", "verify": "coupled"}, **options)
            assert result.metrics.emitted == plain.metrics.emitted == len(result.tokens) == plain.metrics.rounds


def test_a_result_is_plain_data() -> None:
    engine = Engine(TabularModel.random(4, seed=3), [TabularModel.random(4, seed=4)])
    result = engine.generate([1], "mcsd", {"top_k": 3}, max_new_tokens=9, top_logprobs=2)
    data = json.loads(json.dumps(result.as_dict()))
    assert data["tokens"] == result.tokens
    assert data["metrics"]["tau"] == result.metrics.tau
    assert [token for news in data["rounds"] for token in news["tokens"]] == result.tokens
    assert data["method"]["name"] == "mcsd" and data["sampling"]["top_k"] == 3
    assert 0 < sum(news["seconds"] for news in data["rounds"]) <= result.metrics.seconds * 1.05
