"""Rows of a large vocabulary: the short ways to its few numbers that matter end where the long ones do."""

import math

import numpy as np
import pytest
import torch
from enumeration import slow_warp
from leading_rows import among
from tabular import follows

from draftwood import NonFiniteError, SamplingParams
from draftwood.core.forest import Forest
from draftwood.core.row_tops import LogitsRow
from draftwood.sampling.distributions import Streams, draw, draw_distinct, draw_iid, draws, warp
from draftwood.sampling.drawing import SMALL, Weights
from draftwood.sampling.params import SamplingParams as Params
from draftwood.sampling.penalties import Penalties
from draftwood.sampling.rows import Leading, as_rows, largest
from draftwood.sampling.rows import leading as rows_leading
from draftwood.sampling.truncation import kept, leading, nucleus, ranked
from draftwood.verify import bound
from draftwood.verify.beam import verify_layer
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.joint import Seeded, joint_of, joint_of_likeliest
from draftwood.verify.kseq import balance
from draftwood.verify.width import ResidualChain, WidthRule

CPU = torch.device("cpu")
SIZES = [4097, 20_000, 50_257]  # no multiple of a block among them


def rows(size: int) -> list[torch.Tensor]:
    """Flat, usual, peaked, of few different values, with impossible tokens."""
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=generator)
    peaked = 6 * normal
    peaked[size - 1] = 40
    some = 3 * normal
    some[::3] = -math.inf
    return [normal * 0.01, 3 * normal, peaked, (normal * 2).round(), some]


@pytest.mark.some(11)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [
        *({"top_k": 50}, {"top_k": 5000}, {"top_p": 0.3}, {"top_p": 0.95}, {"top_p": 0.9999}, {"min_p": 0.02}),
        {"top_k": 300, "top_p": 0.8, "min_p": 0.001, "temperature": 0.7},
    ],
    ids=str,
)
def test_truncation_keeps_what_sorting_keeps(size: int, options: dict[str, float]) -> None:
    """Against the slow reference, in float64: the same tokens, the same probabilities."""
    params = SamplingParams(**options)
    for row in rows(size):
        row = row.double()
        expected = torch.tensor(slow_warp(row.tolist(), params), dtype=torch.float64)
        torch.testing.assert_close(warp(row, params), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 7, 500, 4096])
def test_the_largest_few(size: int, count: int) -> None:
    """As a stable sort has them, of equals the first; those of -inf never."""
    for row in rows(size):
        order = row.argsort(descending=True, stable=True)[:count]
        expected = [token for token in order.tolist() if row[token] > -math.inf]
        assert ranked(row.numpy(), count).tolist() == expected
        assert largest(row[None], count) == [expected]
        least = row[order[-1]]
        if least > -math.inf:
            assert leading(row.numpy(), count).tolist() == (row >= least).nonzero()[:, 0].tolist()
    few = torch.full((size,), -math.inf)
    few[[9, 4]] = torch.tensor([1.0, 1.0])
    assert ranked(few.numpy(), 5).tolist() == [4, 9] and leading(few.numpy(), 1).tolist() == [4, 9]
    assert ranked(np.zeros(size), 3, above=0.0).tolist() == []


def test_a_nucleus_of_equals_is_all_of_them() -> None:
    """Values that halving cannot divide are kept together, as ties are."""
    probs = np.full(30_000, 1 / 30_000, np.float32)
    assert nucleus(probs, 0.5) == probs[0]
    found = kept(probs, 0, 0.5, 0.0)
    assert found is not None and len(found) == 30_000
    probs[17] *= 2
    assert nucleus(probs, 0.5 / 30_000) == probs[17]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.5}], ids=str)
def test_what_is_not_finite_stays_so(bad: float, options: dict[str, float]) -> None:
    logits = torch.zeros(10_000)
    logits[77] = bad
    with pytest.raises(NonFiniteError):
        draw(warp(logits, Params(**options)), 0.5)
    nothing = torch.full((10_000,), -math.inf)
    with pytest.raises(NonFiniteError):
        draw(warp(nothing, Params(**options)), 0.5)


@pytest.mark.parametrize("size", [3, SMALL, *SIZES])
def test_draws_are_those_of_the_whole_sum(size: int) -> None:
    """The token where the running sum of all weights passes u, in float64; taken out one after the other, too."""
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(size, generator=generator) ** 8
    weights[::2] = 0.0
    us = [0.0, *torch.rand(60, generator=generator, dtype=torch.float64).tolist(), 1 - 2.0**-48]
    sums = weights.double().cumsum(0)
    for u in us:
        token = draw(weights, u)
        assert weights[token] > 0
        assert abs(float(sums[token]) - u * float(sums[-1])) <= float(weights[token]) + 1e-9
    assert draws(weights, us) == [draw(weights, u) for u in us]
    left, taken = Weights(weights), weights.double().clone()
    for u in us[1:20]:
        sums = taken.cumsum(0)
        token = left.draw(u) if left.mass > 0 else None
        if token is None:
            assert not bool(taken.any())
            break
        assert taken[token] > 0 and abs(float(sums[token]) - u * float(sums[-1])) <= float(taken[token]) + 1e-9
        left.remove(token)
        taken[token] = 0.0
        assert left.mass == pytest.approx(float(taken.sum()), abs=1e-9)


def test_all_of_a_small_support_is_drawn_once() -> None:
    """Far apart in a large vocabulary, of weights that differ by many orders; then nothing is left, exactly."""
    probs = torch.zeros(30_000)
    tokens = [3, 511, 512, 15_000, 29_999]
    probs[tokens] = torch.tensor([1.0, 1e-3, 1e-7, 1e-20, 1e-30])
    for seed in range(50):
        (drawn,) = draw_distinct(probs[None], 9, Streams(seed))
        assert sorted(drawn) == tokens
        assert set(draw_iid(probs[None], 20, Streams(seed))[0]) <= set(tokens)


def test_only_tokens_that_have_come_are_touched_by_penalties() -> None:
    """All others keep their bits, and so does a row whose path is empty."""
    size = 20_000
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, logit_bias={5: 2.0})
    forest = Forest.from_prompt([7, 8, 7, 9])
    (child,) = forest.propose(0, [11], None)
    edited = Penalties(params, size, 3, CPU)(logits, forest, [0, child])
    touched = [(edited[row] != logits[row]).nonzero()[:, 0].tolist() for row in (0, 1)]
    assert touched == [[5, 7, 8, 9], [5, 7, 8, 9, 11]]


def test_the_bound_hardly_changes_where_alike_tokens_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = (row.double().softmax(-1) for row in rows(20_000)[1:3])
    short = [bound.best_acceptance(p, each, count) for each in (q, (p + q) / 2) for count in (2, 4, 9)]
    monkeypatch.setattr(bound, "SORTED", 1 << 20)
    exact = [bound.best_acceptance(p, each, count) for each in (q, (p + q) / 2) for count in (2, 4, 9)]
    assert short == pytest.approx(exact, abs=1e-6) and all(a >= b - 1e-12 for a, b in zip(short, exact, strict=True))


@pytest.mark.parametrize("count", [2, 4])
def test_k_seq_balances_over_what_is_undecided_alone(count: int) -> None:
    """rho as sums over all tokens give it: 1 - (1 - beta)^n = rho beta."""
    p, q = (row.double().softmax(-1) for row in rows(20_000)[1:3])
    for draft in (q, (p + q) / 2):
        shared, beta = balance(p, draft, count)
        assert beta == pytest.approx(float(shared.sum()))
        rho = (1 - (1 - beta) ** count) / beta
        torch.testing.assert_close(shared, torch.minimum(draft, p / rho), atol=1e-9, rtol=1e-6)


def test_chains_of_residuals_forget_what_is_used_up() -> None:
    p, q = (row.double().softmax(-1) for row in rows(20_000)[1:3])
    chain, rest = ResidualChain(p, q), p
    for rejections in range(5):
        torch.testing.assert_close(chain.residual(rejections), rest, atol=1e-12, rtol=1e-9)
        rest = (rest - q).clamp(min=0)
        rest = rest / rest.sum()


@pytest.mark.parametrize("width", [1, 4, 30])
def test_beams_continue_as_sorting_everything_has_it(width: int) -> None:
    """Ties, impossible tokens, and ends of text among the best."""
    logs = torch.stack(rows(20_000)).log_softmax(-1)
    scores = torch.tensor([-1.0, -0.5, -2.0, -0.25, -0.5], dtype=torch.float64)
    flat = (scores[:, None] + logs.double()).flatten()
    order = flat.argsort(descending=True, stable=True)[: 40 * width].tolist()
    outcomes = [divmod(place, 20_000) for place in order]
    search = BeamSearch(width)
    step = search.step(scores.tolist(), among(logs))
    assert step.live == outcomes[:width] and step.live_scores == flat[order[:width]].tolist() and not step.ended

    def ends(row: int, token: int) -> bool:
        return token % 3 != 1

    step = search.step(scores.tolist(), among(logs), ends)
    assert step.live == [outcome for outcome in outcomes if not ends(*outcome)][:width]
    assert step.ended == [outcome for outcome in outcomes[:width] if ends(*outcome)]


@pytest.mark.parametrize("size", [10, 3000, 9000])
def test_the_largest_above_a_number(size: int) -> None:
    """Equal to sorting, whatever ties and however few are above it: rows of zeros, of -inf, rounded numbers."""
    draws = np.random.default_rng(size)
    for trial in range(200):
        row = draws.normal(size=size).astype(np.float32).round(int(draws.integers(0, 4)))
        if trial % 2:
            row[draws.random(size) < draws.choice([0.5, 0.99, 0.9999])] = draws.choice([-np.inf, 0.0])
        count, above = int(draws.integers(1, 60)), float(draws.choice([-np.inf, 0.0, 1.0]))
        some = np.sort(row[row > above])[::-1]
        wanted = row > above if len(some) <= count else row >= some[count - 1]
        if np.isfinite(row.max()):
            assert leading(row, count, above).tolist() == np.flatnonzero(wanted).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by the native library, where it is there; by NumPy
@pytest.mark.parametrize("size", [1, 63, 64, 65, 3000, 50_257])
def test_leading_tokens_are_those_of_sorting(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    for trial in range(20 if size < 10_000 else 6):
        logits = (torch.randn(size, generator=generator) * 3).round(decimals=trial % 3).to(dtype)
        if trial % 2:
            logits[torch.rand(size, generator=generator) < 0.9] = -math.inf
            logits[trial % size] = 0.5
        log_sum = float(logits.logsumexp(-1))
        order = [place for place in logits.argsort(descending=True, stable=True).tolist() if logits[place] > -math.inf]
        for count in (1, 8, 70):
            found, again = rows_leading([LogitsRow(logits, log_sum)] * 2, count)
            assert again == found
            assert found.tokens == order[:count]
            assert found.log_probs == [float(logits[place]) - log_sum for place in order[:count]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_leading_tokens_of_what_is_no_distribution(bad: float, dtype: torch.dtype) -> None:
    logits = torch.zeros(5000, dtype=dtype)
    logits[17] = bad
    with pytest.raises(NonFiniteError):
        rows_leading([LogitsRow(logits, float(logits.logsumexp(-1)))], 4)
    with pytest.raises(NonFiniteError):
        rows_leading([LogitsRow(logits.log_softmax(-1), 0.0)], 4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("ended", [False, True])
def test_layers_of_few_drafts_follow_the_joint_of_whole_rows(temperature: float, ended: bool) -> None:
    """Pairs of beams, drawn, judged and completed as a request's streams have it, against their product law."""
    size, labels = 20_000, [4, 7]
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(3))
    for row, token, more in ((0, 5, 11.0), (0, 600, 10.0), (0, 19_999, 9.5), (1, 5, 10.5), (1, 0, 9.0)):
        logits[row, token] = more
    normal = as_rows(logits.log_softmax(-1))
    p = joint_of(
        [-1.0, -1.4], [normal[0], None if ended else normal[1]], SamplingParams(temperature=temperature), labels=labels
    )
    guess = Leading([5, 600, 77], [math.log(0.4), math.log(0.3), math.log(0.2)])  # one token in vain, others not told
    q = joint_of_likeliest([-1.0, -1.0], [guess, None if ended else guess], labels, size, SamplingParams())
    table = p.table()
    names = {outcome: outcome for outcome, prob in table.items() if prob > 0.01}
    law: dict[object, float] = {}
    for one, first in table.items():
        law[names.get(one)] = law.get(names.get(one), 0.0) + first
    pairs = {(one, other): law[one] * law[other] for one in law for other in law}
    seen, accepted = [], 0
    for seed in range(4000):
        streams = Streams(seed)
        draws = q.draws(3, Seeded(streams, "draft"))
        layer = verify_layer(draws, q, p, labels, WidthRule(fixed=2), Seeded(streams, "accept"))
        seen.append(tuple(names.get(beam) for beam in layer.beams))
        accepted += layer.accepted
    assert follows(seen, pairs) and 1000 < accepted < 7000
