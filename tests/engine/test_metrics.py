"""The one definition of every metric, on rounds written by hand and on generations whose acceptance is known."""

import json
from typing import Any

import pytest
import torch

from draftwood import Engine, Metrics, Round, TabularModel
from draftwood.core.records import BeamLayer, Judged
from draftwood.verify.bound import best_acceptance


def expected_layers(threshold: float, beta: float, gamma: int) -> float:
    """Theorem 3.2: at least (1 - a^(gamma+1))/(1 - a) layers per round are expected, a = min(t, beta) (spec §9.7)."""
    a = min(threshold, beta)
    return float(gamma + 1) if a >= 1 else (1 - a ** (gamma + 1)) / (1 - a)


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
        "layers": (),
    }
    return Round(tokens=tokens, drafted=drafted, depth_accepted=depth, attempted=attempted, **{**values, **given})


def test_sums_and_ratios() -> None:
    metrics = Metrics()
    metrics.add(round_([1, 2, 3], 4, 2, 3, most=4))
    metrics.add(round_([4], 4, 0, 1, most=4))
    metrics.add(round_([5, 6, 7, 8, 9], 4, 4, 4, most=4))
    metrics.add(round_([1], 0, 0, 0))
    metrics.seconds = 5.0
    assert (metrics.rounds, metrics.emitted, metrics.drafted, metrics.accepted) == (4, 10, 12, 6)
    assert metrics.tau == 2.5
    assert metrics.acceptance_rate == 0.5  # v_d: accepted over drafted
    assert metrics.position_rate == pytest.approx(6 / 8)  # went on, over positions that had drafts
    assert metrics.alpha == pytest.approx(
        (2 / 4 + 0 + 4 / 4) / 3
    )  # accepted over configured depth, rounds that drafted
    assert metrics.attempted_at == [3, 2, 2, 1] and metrics.accepted_at == [2, 2, 1, 1]
    assert metrics.acceptance_by_position == pytest.approx([2 / 3, 1, 0.5, 1])
    assert metrics.tokens_per_second == 2
    assert metrics.draft_cost_ratio == pytest.approx((0.6 / 6) / (1.5 / 3))
    assert metrics.target_rows == 16 and metrics.draft_rows == 12
    assert metrics.first_round_seconds == pytest.approx(0.85)
    assert metrics.verify_seconds == 2.0 and metrics.sampling_seconds == pytest.approx(0.4)


def test_the_cost_of_a_draft_is_without_the_prompt() -> None:
    """Nor with that which a draft reads where it begins later."""
    metrics = Metrics()
    metrics.add(round_([1], 0, 0, 0, verify_seconds=9.0, draft_forwards=0, draft_seconds=0.0))
    assert metrics.draft_cost_ratio == 0
    metrics.add(round_([1, 2], 2, 1, 2, verify_seconds=0.5, draft_forwards=2, draft_seconds=3.0))
    assert metrics.draft_cost_ratio == 0
    metrics.add(round_([1, 2], 2, 1, 2, verify_seconds=0.3, draft_forwards=2, draft_seconds=0.1))
    assert metrics.draft_cost_ratio == pytest.approx((0.1 / 2) / (0.8 / 2))
    assert (metrics.verify_seconds, metrics.draft_seconds) == (pytest.approx(9.8), pytest.approx(3.1))


def test_nothing_drafted_divides_by_nothing() -> None:
    metrics = Metrics()
    for value in (
        metrics.tau,
        metrics.acceptance_rate,
        metrics.alpha,
        metrics.position_rate,
        metrics.tokens_per_second,
    ):
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
    assert result.metrics.alpha == result.metrics.position_rate == result.metrics.accepted == 0
    assert result.metrics.tau == 1 and result.metrics.attempted == 5
    assert result.kinds == ["corrected"] * 5 + ["plain"]  # no draft where only one token is left
    assert result.metrics.acceptance_by_position == [0]


def test_acceptance_rate_is_the_overlap_of_p_and_q() -> None:
    """Chain, laws without memory, token by token: a = sum_x min(p, q) is the position rate, tau (1 - a^3) / (1 - a)."""
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    engine = Engine(TabularModel(lambda prefix: p, 3), [TabularModel(lambda prefix: q, 3)])
    method = {"name": "speculative", "gamma": 2, "verify": "rejection"}
    total = Metrics()
    for result in engine.batch([{"prompt": [0], "seed": seed} for seed in range(60)], method=method, max_new_tokens=60):
        for round_ in result.rounds:
            total.add(round_)
    alpha = 0.2 + 0.3 + 0.1
    assert total.position_rate == pytest.approx(alpha, abs=0.03)
    assert total.tau == pytest.approx((1 - alpha**3) / (1 - alpha), abs=0.06)
    assert total.acceptance_by_position == pytest.approx([alpha, alpha], abs=0.04)


@pytest.mark.some(1)
@pytest.mark.parametrize(("expansion", "bound"), [([1, 1], 0.6), ([3, 1], None)], ids=str)
def test_acceptance_beside_what_any_rule_could_accept(expansion: list[int], bound: float | None) -> None:
    """Of one round in 16; chains meet the bound by rejection, several draws stay below it."""
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    engine = Engine(TabularModel(lambda prefix: p, 3), [TabularModel(lambda prefix: q, 3)])
    method = {"name": "specinfer", "expansion": expansion, "verify": "rejection"}
    total = Metrics()
    for seed in range(40):
        result = engine.generate([0], method, max_new_tokens=100, seed=seed)
        assert all(not round_.bounds for round_ in result.rounds if round_.position % 16)
        for round_ in result.rounds:
            total.add(round_)
    first, second = (best_acceptance(torch.tensor(p), torch.tensor(q), count) for count in (expansion[0], 1))
    if bound is not None:
        assert total.acceptance_bound == pytest.approx(bound) == first
    else:
        assert second < total.acceptance_bound < first
    assert total.bounded_rate == pytest.approx(total.acceptance_bound, abs=0.12)
    assert engine.generate([0], method, {"temperature": 0}).metrics.acceptance_bound == 0
    distinct = engine.generate([0], {"name": "mcsd", "tree": [2]}).metrics
    assert distinct.bounded == 0 == distinct.bounded_rate


@pytest.mark.parametrize("method", [{"name": "speculative", "gamma": 5}, {"name": "mcsd", "tree": [2, 1, 1, 1, 1]}])
def test_alpha_divides_by_the_configured_depth(method: dict[str, Any]) -> None:
    """MCSD §1: a chain cut short by a drafted end of text, by a controller or by the limit is no shorter."""
    model = TabularModel(lambda prefix: [float(len(prefix) == 3), float(len(prefix) != 3)], 2)  # 1, 1, then the end
    engine = Engine(model, [model], end_tokens=frozenset({0}))
    result = engine.generate([1], {**method, "depth": "fixed"}, {"temperature": 1.0}, max_new_tokens=50)
    assert result.tokens == [1, 1, 0] and [round_.drafted for round_ in result.rounds] == [3]
    metrics = result.metrics
    assert (metrics.alpha, metrics.position_rate, metrics.acceptance_rate) == (3 / 5, 1, 1)
    metrics = engine.generate([1], {**method, "depth": "entropy:0"}, max_new_tokens=2).metrics
    assert metrics.alpha == 1 / 5 and metrics.position_rate == 1


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
    assert [token for round_ in data["rounds"] for token in round_["tokens"]] == result.tokens
    assert data["method"]["name"] == "mcsd" and data["sampling"]["top_k"] == 3
    assert 0 < sum(round_["seconds"] for round_ in data["rounds"]) <= result.metrics.seconds * 1.05


def layer_(width: int, accepted: int, draws: int, least: float = 0.0) -> BeamLayer:
    """A layer of `draws` draws, `accepted` of them; without draws one that ends a round."""
    judged = [Judged((0, i), "accepted" if i < accepted else "rejected", 0.5, 0.5, 1.0) for i in range(draws)]
    return BeamLayer(
        width, [(0, i) for i in range(width)], accepted, judged, bool(draws) and accepted == width, least, least
    )


def test_layers_of_beams() -> None:
    """Two layers accepted and a bonus; one accepted, one not; and a round without drafts."""
    metrics = Metrics()
    metrics.add(round_([1], 4, 2, 2, draws=8, layers=[layer_(3, 3, 4, 0.9), layer_(2, 2, 4, 0.5), layer_(2, 0, 0)]))
    metrics.add(round_([2], 4, 1, 2, draws=8, layers=[layer_(2, 2, 4, 0.7), layer_(4, 1, 4, 0.1)]))
    assert metrics.drafted_at == [2, 2]
    metrics.add(round_([3], 0, 0, 0, draws=0, layers=[layer_(1, 0, 0)]))
    assert metrics.layers_per_round == (3 + 2 + 1) / 3
    assert metrics.mean_width == pytest.approx((3 + 2 + 2 + 2 + 4 + 1) / 6)
    assert metrics.mean_accepted_width == pytest.approx((3 + 2 + 2 + 1) / 4)  # of layers that had drafts
    assert metrics.drafted_at == [2, 2] and metrics.least == [0.9, 0.5, 0.7, 0.1]
    a = (0.6 + 0.5 + 0.6 + 0.1) / 4
    assert metrics.predicted_layers(0.6) == pytest.approx((2 * expected_layers(0.6, a, 2) + 1) / 3)
    assert metrics.predicted_layers() == pytest.approx((2 * expected_layers(1.0, 0.55, 2) + 1) / 3)
    values = metrics.as_dict()
    assert values["mean_width"] == metrics.mean_width and values["layers_per_round"] == 2
    assert "least" not in values and "drafted_at" not in values


def test_without_beams_there_are_no_layers() -> None:
    metrics = Metrics()
    metrics.add(round_([1, 2, 3], 4, 2, 3))
    assert metrics.layers_per_round == metrics.mean_width == metrics.mean_accepted_width == 0
    assert metrics.predicted_layers(0.9) == 0 and metrics.layers == 0


LAWS = ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4])


@pytest.mark.some(1)
@pytest.mark.parametrize("options", [{"width": 1, "draft_width": 1}, {"threshold": 0.8, "draft_width": 4}])
def test_theorem_3_2(options: dict[str, Any]) -> None:
    """Laws without memory and one beam: layers per round are as predicted; with more beams they are not fewer."""
    p, q = LAWS
    engine = Engine(TabularModel(lambda prefix: p, 4), [TabularModel(lambda prefix: q, 4)])
    total = Metrics()
    requests = [{"prompt": [0], "seed": seed} for seed in range(25)]
    for result in engine.batch(requests, method={"name": "dsbd", "gamma": 3, **options}, max_new_tokens=60):
        for round_ in result.rounds:
            total.add(round_)
    if "width" in options:
        chance = sum(map(min, p, q))
        assert total.least == pytest.approx([chance] * len(total.least))
        assert total.layers_per_round == pytest.approx(expected_layers(1.0, chance, 3), rel=0.05)
        assert total.layers_per_round == pytest.approx(total.predicted_layers(), rel=0.05)
        assert total.mean_width == 1
    else:
        assert total.layers_per_round > 0.97 * total.predicted_layers(0.8)
        assert total.mean_accepted_width < total.mean_width


def test_which_layers_are_foretold() -> None:
    engine = Engine(TabularModel.random(5, seed=1), [TabularModel.random(5, seed=2)])

    def predicted(**method: Any) -> tuple[float | None, Metrics]:
        result = engine.generate([1, 2], method, max_new_tokens=12)
        assert result.as_dict()["metrics"]["predicted_layers"] == result.predicted_layers
        return result.predicted_layers, result.metrics

    dynamic, metrics = predicted(name="dsbd", threshold=0.5)
    assert dynamic == metrics.predicted_layers(0.5) < metrics.predicted_layers(0.9)
    fixed, metrics = predicted(name="dsbd", width=2, threshold=0.5, depth="fixed")
    assert fixed == metrics.predicted_layers(1.0)
    assert predicted(name="dsbd", replacement=False)[0] is None
    for name in ("beam-sampling", "beam-search", "speculative-beam-search", "mcsd"):
        value, metrics = predicted(name=name)
        assert value is None
        assert metrics.layers_per_round >= (name != "mcsd")


def test_figures_of_early_exit_by_hand() -> None:
    """EESD App. D on 3 rounds: 12 drafted, 6 accepted, 9 emitted; forwards of the target take 0.5 s, drafts 0.05 s."""
    metrics = Metrics()
    for drafted, accepted in ((4, 4), (5, 2), (3, 0)):
        times = {"draft_seconds": 0.05 * drafted, "verify_seconds": 0.5, "sampling_seconds": 0.1, "other_seconds": 0.0}
        metrics.add(round_([1] * (accepted + 1), drafted, accepted, min(accepted + 1, drafted), **times))
    v, r, a = 6 / 12, 6 / 9, 0.1
    assert metrics.acceptance_rate == v and metrics.draft_share == pytest.approx(r)
    assert metrics.harmonic_mean == pytest.approx(2 * v * r / (v + r))
    assert metrics.draft_token_cost == pytest.approx(a)
    assert metrics.predicted_speedup == pytest.approx(v / ((a - v) * r + v))  # Eq. 14
    assert metrics.predicted_speedup == pytest.approx(9 * 0.5 / (12 * 0.05 + 3 * 0.5))  # Eq. 13: seconds over seconds
    assert metrics.predicted_speedup_at(v) == pytest.approx(1)  # drafts as dear as they are good
    assert metrics.predicted_speedup_at(0) == pytest.approx(9 / 3)
    assert Metrics(emitted=3, accepted=3, drafted=4, rounds=1).predicted_speedup_at(0) == 3  # ended within its drafts
    shares = metrics.time_shares
    assert shares == pytest.approx({"draft": 0.6 / 2.4, "verify": 1.5 / 2.4, "sampling": 0.3 / 2.4, "other": 0})
    assert metrics.as_dict()["time_shares"] == shares and metrics.as_dict()["harmonic_mean"] == metrics.harmonic_mean
    with pytest.raises(ValueError, match="a cost cannot be negative"):
        metrics.predicted_speedup_at(-0.1)


def test_figures_of_early_exit_where_nothing_is_accepted_or_drafted() -> None:
    metrics = Metrics()
    assert (metrics.draft_share, metrics.harmonic_mean, metrics.predicted_speedup) == (0, 0, 1)
    assert set(metrics.time_shares.values()) == {0}
    metrics.add(round_([1], 0, 0, 0, draft_seconds=0.0))
    assert (metrics.draft_token_cost, metrics.predicted_speedup) == (0, 1)
    wasted = Metrics()
    wasted.add(round_([1], 4, 0, 1))
    assert wasted.harmonic_mean == 0
    assert wasted.predicted_speedup == pytest.approx(1 / (0.1 * 4 + 1))  # Eq. 14 would be 0/0
