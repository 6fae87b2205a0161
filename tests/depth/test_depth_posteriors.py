"""Posteriors by hand, the papers' wrong updates (spec §9.4, §9.5), random variates and the formula."""

import random
import statistics

import pytest
from test_depth_simulation import a_round

from draftwood.depth import (
    Acceptance,
    BetaThompson,
    CalibratedThompson,
    Confidence,
    DraftCost,
    DraftState,
    Entropy,
    Load,
    SpeedupThompson,
    best_depth,
    improvement,
)
from draftwood.depth.acceptance import CONFIDENCE_BINS, PRIOR_RATE, PRIOR_TRIALS, ConfidenceRates, SiblingAcceptance
from draftwood.depth.load import NOMINAL_RATIO
from draftwood.depth.thompson import draw_beta, draw_normal
from draftwood.sampling.distributions import Streams


def test_beta_posterior_by_hand() -> None:
    posterior = Acceptance(1, 1)
    for drafted, accepted in ((4, 4), (4, 0), (3, 2), (0, 0), (1, 1)):
        posterior.add(a_round(accepted, drafted, 0.1))
    assert (posterior.a, posterior.b) == (1 + 4 + 0 + 2 + 1, 1 + 0 + 1 + 1)
    fading = Acceptance(2, 3, 0.5)
    fading.add(a_round(3, 4, 0.1))
    fading.add(a_round(1, 2, 0.1))
    assert (fading.a, fading.b) == (2 + 0.5 * 3 + 1, 3 + 0.5 * 1 + 1)
    for _ in range(60):
        fading.add(a_round(0, 0, 0.1))
    assert (fading.a, fading.b) == pytest.approx((2, 3))


def rounds_of(acceptance: float, count: int, drafted: int = 5) -> list[tuple[int, int]]:
    """(drafted, accepted) of simulated rounds."""
    rng = random.Random(5)
    found = []
    for _ in range(count):
        accepted = 0
        while accepted < drafted and rng.random() < acceptance:
            accepted += 1
        found.append((drafted, accepted))
    return found


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_beta_posterior_finds_the_rate_and_the_papers_does_not(acceptance: float) -> None:
    """Spec §9.4: with r = |Q_v| - 1 successes and n - r failures the mean is far too low."""
    right, a, b = Acceptance(), 1.0, 1.0
    for drafted, accepted in rounds_of(acceptance, 3000):
        right.add(a_round(accepted, drafted, 0.1))
        a, b = a + accepted - 1, b + min(accepted + 1, drafted) - (accepted - 1)
    assert right.mean == pytest.approx(acceptance, abs=0.02)
    assert abs(a / (a + b) - acceptance) > 0.1
    if acceptance == 0.3:
        assert a < 0  # no Beta distribution at all


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_running_mean_finds_the_rate_and_the_papers_only_rises(acceptance: float) -> None:
    """Spec §9.5."""
    right = CalibratedThompson(8, lambda state, target: 0.5)
    wrong, t, history = 0.5, 0, []
    for drafted, accepted in rounds_of(acceptance, 3000):
        right.observe(a_round(accepted, drafted, 0.1))
        t += accepted
        wrong = (wrong * (t - accepted + 1) + accepted) / (t + 1)
        history.append(wrong)
    assert right.theta_hat == pytest.approx(acceptance, abs=0.02)
    assert history == sorted(history)
    assert wrong > 0.99


def test_calibrated_posterior_by_hand() -> None:
    controller = CalibratedThompson(8, lambda state, target: 0.9, model_deviation=0.2, sample_deviation=0.4, theta0=0.5)
    assert controller.posterior(0.9) == pytest.approx((0.9, 0.04))  # nothing seen: the predictor's word
    controller.observe(a_round(1, 4, 0.1))
    controller.observe(a_round(0, 0, 0.1))  # nothing was verified
    assert controller.theta_hat == pytest.approx((0.5 + 1) / 3)
    mu = (0.16 * 0.9 + 1 * 0.04 * 0.5) / (0.04 + 0.16)
    assert controller.posterior(0.9) == pytest.approx((mu, 0.04 * 0.16 / (0.16 + 0.04)))
    for _ in range(5000):
        controller.observe(a_round(4, 4, 0.1))
    mu, variance = controller.posterior(0.1)
    assert mu == pytest.approx(controller.theta_hat, abs=0.01)
    assert variance < 1e-4


def test_calibrated_thompson_follows_its_predictor_at_first() -> None:
    def mean_depth(chance: float) -> float:
        controller, streams, total = CalibratedThompson(50, lambda state, target: chance, 0.01), Streams(1), 0
        for position in range(2000):
            streams.at(position)
            controller.start(streams)
            depth = 0
            while controller.deeper(DraftState(depth)):
                depth += 1
            total += depth
        return total / 2000

    assert mean_depth(0.8) == pytest.approx(5, rel=0.1)
    assert mean_depth(0.2) == pytest.approx(1.25, rel=0.1)


def test_beta_thompson_goes_on_as_often_as_when_theta_is_drawn() -> None:
    """EESD Algorithm 2 draws theta and then a coin; the controller draws the coin with theta's mean."""
    controller, streams = BetaThompson(1000, Acceptance(3.0, 1.5)), Streams(2)
    ours, theirs = [], []
    rng = random.Random(2)
    for position in range(8_000):
        streams.at(position)
        controller.start(streams)
        depth = 1
        while controller.deeper(DraftState(depth)):
            depth += 1
        ours.append(depth)
        depth = 1
        while rng.random() < rng.betavariate(3.0, 1.5):
            depth += 1
        theirs.append(depth)
    for depth in range(1, 6):
        assert ours.count(depth) == pytest.approx(theirs.count(depth), abs=4 * (2 * theirs.count(depth)) ** 0.5)


def test_first_layer_of_the_papers_controllers_is_always_drafted() -> None:
    for controller in (BetaThompson(4, Acceptance(1e-3, 1e3)), CalibratedThompson(4, lambda state, target: 0.0)):
        controller.start(Streams(0))
        assert controller.deeper(DraftState(0))
        assert not controller.deeper(DraftState(4))


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.6), (1.0, 1.0), (2.5, 0.5), (40.0, 10.0), (3000.0, 1000.0)])
def test_beta_draws_have_the_moments_of_beta(a: float, b: float) -> None:
    streams = Streams(int(10 * a))
    numbers = [draw_beta(a, b, lambda: streams.uniform("depth")) for _ in range(4000)]
    variance = a * b / ((a + b) ** 2 * (a + b + 1))
    assert all(0 <= x <= 1 for x in numbers)
    assert statistics.mean(numbers) == pytest.approx(a / (a + b), abs=4 * (variance / 4000) ** 0.5)
    assert statistics.variance(numbers) == pytest.approx(variance, rel=0.12)


def test_variates_depend_on_the_uniform_numbers_only() -> None:
    for draw in (draw_normal, lambda uniform: draw_beta(2, 3, uniform)):
        first, again = (draw(random.Random(9).random) for _ in range(2))
        assert first == again


@pytest.mark.parametrize("end", [0.0, 1 - 2.0**-48])
def test_variates_are_finite_at_the_ends_of_the_uniform_numbers(end: float) -> None:
    assert 0 <= draw_beta(0.5, 0.7, lambda: end) <= 1
    assert -10 < draw_normal(lambda: end) < 10


def test_improvement_by_hand() -> None:
    assert improvement(0.5, 2, 0.25) == pytest.approx((1 + 0.5 + 0.25) / 1.5)
    assert improvement(1.0, 4, 0.1) == pytest.approx(5 / 1.4)
    assert improvement(0.7, 0, 0.3) == 1
    for bad in ((-0.1, 1, 0.1), (1.1, 1, 0.1), (0.5, -1, 0.1), (0.5, 1, -0.1)):
        with pytest.raises(ValueError, match="rate must be in"):
            improvement(*bad)


def test_best_depth_is_the_argmax() -> None:
    for alpha in (0.0, 0.1, 0.35, 0.6, 0.8, 0.95, 1.0):
        for c in (0.01, 0.05, 0.2, 0.5, 1.0, 3.0):
            gains = [improvement(alpha, k, c) for k in range(17)]
            assert gains[best_depth(alpha, 16, c)] == pytest.approx(max(gains), abs=1e-12)
    assert best_depth(0.9, 0, 0.1) == 0
    assert best_depth(0.4, 9, 0.5) == 0


def test_cost_is_the_marginal_one_at_the_load() -> None:
    """Rows that the machine has room for are free; others' tokens count where they are not."""
    cost = DraftCost()
    assert cost.ratio == NOMINAL_RATIO
    cost.start(Load(lambda rows: 0.2, lambda rows: 1.0))
    assert cost.ratio == pytest.approx(0.2)
    cost.start(Load(lambda rows: 0.2, lambda rows: 1.0, drafting=4))
    assert cost.ratio == pytest.approx(0.2)
    cost.start(Load(lambda rows: 0.0, lambda rows: float(rows), drafting=4))
    assert cost.ratio == pytest.approx(1.0)
    cost.start(Load(lambda rows: 0.2, lambda rows: 1.0, drafting=1, others=3, rows=3))
    assert cost.ratio == pytest.approx(0.8)
    cost.add(a_round(2, 6, 0.1), 3)  # a tree: two rows a layer
    cost.start(Load(lambda rows: 0.0, lambda rows: float(rows)))
    assert cost.ratio == pytest.approx(2.0)
    fixed = DraftCost(0.3)
    fixed.start(Load(lambda rows: 0.2, lambda rows: 1.0))
    assert fixed.ratio == 0.3


def test_speedup_thompson_goes_by_the_load() -> None:
    def depth(c: float) -> float:
        controller, streams, total = SpeedupThompson(12), Streams(4), 0
        for position in range(200):
            streams.at(position)
            controller.start(streams, Load(lambda rows: c, lambda rows: 1.0))
            k = 0
            while controller.deeper(DraftState(k)):
                k += 1
            total += k
            controller.observe(a_round(k - 1 if position % 2 else k, k, c) if k else a_round(0, 0, c))
        return total / 200

    assert depth(0.01) > depth(0.2) > depth(1.5)


@pytest.mark.parametrize("discount", [0.97, 1e-30])  # by the smaller one counts must be made small again and again
def test_rates_fade_as_if_all_earlier_trials_were_discounted(discount: float) -> None:
    rng, rates, places = random.Random(1), ConfidenceRates(), SiblingAcceptance()
    seen: list[tuple[int, bool]] = []
    for _ in range(60):
        rates.fade(discount)
        seen.append((rng.randrange(CONFIDENCE_BINS + 1), rng.random() < 0.6))
        rates.add(*seen[-1])
        places.add(a_round(int(seen[-1][1]), 1, 0.1), discount)
        weights = [discount**age for age in reversed(range(len(seen)))]
        told = sum(weights)
        right = sum(weight for weight, (_, accepted) in zip(weights, seen, strict=True) if accepted)
        assert rates.rate() == pytest.approx((right + PRIOR_TRIALS * PRIOR_RATE) / (told + PRIOR_TRIALS))
        assert places.chances(1)[1] == pytest.approx((right + PRIOR_TRIALS * PRIOR_RATE) / (told + PRIOR_TRIALS))
        for bin_, chance in enumerate(rates.chances([0.3] * (CONFIDENCE_BINS + 1))):
            mine = [(weight, ok) for weight, (at, ok) in zip(weights, seen, strict=True) if at == bin_]
            tried, accepted = sum(weight for weight, _ in mine), sum(weight for weight, ok in mine if ok)
            assert chance == pytest.approx((accepted + PRIOR_TRIALS * 0.3) / (tried + PRIOR_TRIALS))


def test_confidence_and_entropy_read_logits() -> None:
    import torch

    flat, sharp = [0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]
    logits = torch.tensor([flat, sharp])
    unsure, sure = DraftState(1, [5], logits, [(0, 2)]), DraftState(1, [6], logits, [(1, 0)])
    assert unsure.confidences() == pytest.approx([0.25])
    assert sure.confidences()[0] > 0.99
    assert DraftState(1, [5], logits, [(0, 2)], drawn=[0.75]).confidences() == [0.75]  # as it was drawn
    assert unsure.entropies() == pytest.approx([1.3863], abs=1e-4)
    both = DraftState(1, [5, 6], logits, [(0, 2), (1, 0)])
    for rule in (Confidence(8, 0.4), Entropy(8, 1.0)):
        assert not rule.deeper(unsure)
        assert rule.deeper(sure)
        assert rule.deeper(both)  # one live node is enough
        assert rule.deeper(DraftState(0))
        assert not rule.deeper(DraftState(8, [6], logits, [(1, 0)]))
    assert Confidence(8, 0.24).deeper(unsure)
