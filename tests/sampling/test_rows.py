"""Softmax and sums of rows: the native library's against float64, where there is one, and PyTorch's."""

import math

import numpy as np
import pytest
import torch

from draftwood import NonFiniteError
from draftwood.core.row_tops import LogitsRow
from draftwood.sampling import rows
from draftwood.sampling.distributions import draw
from draftwood.sampling.row_shares import RowShares
from draftwood.sampling.rows import address, block_sums, draw_logits, excess, number, softmax
from draftwood.util import native_library

SIZES = [1, 7, 16, 1000, 1024, 4097, 49_152]


@pytest.fixture(params=["native", "pytorch"], autouse=True)
def computed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pytorch":
        monkeypatch.setattr(rows, "library", lambda: "not there")
    elif reason := native_library.unavailable():
        pytest.skip(reason)


def logits(size: int, count: int = 3) -> torch.Tensor:
    """Rows [count, size], flat and peaked, with impossible tokens."""
    made = torch.randn(count, size, generator=torch.Generator().manual_seed(size))
    made *= torch.tensor([0.01, 3.0, 20.0])[:count, None]
    if size > 2:
        made[:, 1::3] = -math.inf
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1e-40, 0.3, 1.0, 1.7, 1e60])
def test_softmax_is_that_of_float64(size: int, temperature: float) -> None:
    """Of each row near it, exactly 0 where a token is impossible, whatever the temperature."""
    made = logits(size)
    probs = softmax(made, temperature)
    at = min(max(temperature, 1e-30), 1e30)
    expected = ((made.double() - made.double().amax(-1, keepdim=True)) / at).softmax(-1)
    torch.testing.assert_close(probs.double(), expected, atol=1e-30, rtol=2e-5 if temperature != 1 else 3e-6)
    assert not bool(probs[made == -math.inf].any())


@pytest.mark.parametrize("size", SIZES)
def test_a_row_has_the_same_bits_beside_others(size: int) -> None:
    made = logits(size)
    together = softmax(made, 0.8)
    assert all(torch.equal(softmax(row, 0.8), one) for row, one in zip(made, together, strict=True))
    turned = made.T.contiguous().T  # not contiguous
    assert torch.equal(softmax(turned, 0.8), together)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_nothing_but_nan(bad: float) -> None:
    """A NaN, something infinite, or nothing possible at all."""
    made = torch.full((5000,), -math.inf) if bad < 0 else torch.zeros(5000)
    made[4321] = bad
    assert bool(softmax(made).isnan().all() if bad < 0 else softmax(made).isnan().any())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block", [1, 512, 4096])
def test_sums_have_the_digits_of_float64(size: int, block: int) -> None:
    """Of numbers whose sum in float32 is another: a large one and many small ones."""
    weights = torch.rand(size, generator=torch.Generator().manual_seed(block))
    weights[0] = 1e8
    expected = np.array([math.fsum(part) for part in weights.double().split(block)])
    np.testing.assert_allclose(block_sums(weights, block), expected, rtol=1e-14)
    every_other = torch.stack([weights, weights.flip(0)], -1)[:, 0]
    np.testing.assert_allclose(block_sums(every_other, block), expected, rtol=1e-14)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_what_is_left_after_a_rejection(size: int, factor: float) -> None:
    """max(0, a p - q) and its sum, of a distribution and of a point mass."""
    p, q = softmax(logits(size)[1:], 1.3)
    left, mass = excess(p, q, factor, 0)
    expected = (p.double() * factor - q.double()).clamp(min=0)
    torch.testing.assert_close(left.double(), expected, atol=1e-7, rtol=1e-6)
    assert mass == pytest.approx(float(expected.sum()), abs=1e-6)
    token = int(p.argmax())
    left, mass = excess(p, None, factor, token)
    expected = (p.double() * factor).index_fill(0, torch.tensor([token]), 0.0)
    torch.testing.assert_close(left.double(), expected, atol=1e-9, rtol=1e-6)
    assert mass == pytest.approx(float(expected.sum()), abs=1e-6)


@pytest.mark.parametrize("computed_by", ["native"], indirect=True)  # PyTorch draws from weights
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1e-40, 0.5, 1.0, 1e60])
def test_tokens_drawn_from_logits_are_those_of_their_softmax(size: int, temperature: float) -> None:
    """The token where the running sum of float64 passes u, with its log-probability, as of weights."""
    us = [0.0, *torch.rand(50, generator=torch.Generator().manual_seed(size), dtype=torch.float64).tolist(), 1 - 2**-48]
    for row in logits(size):
        start = address(row)
        assert start is not None
        at = min(max(temperature, 1e-30), 1e30)
        law = ((row.double() - row.double().max()) / at).softmax(-1)
        sums, probs = law.cumsum(0), softmax(row, temperature)
        for u in us:
            token, log_prob = draw_logits(start, size, int(row.argmax()), temperature, u)
            assert row[token] > -math.inf and log_prob == pytest.approx(float(law[token].log()), abs=1e-5)
            assert number(start, token) == row[token]
            for one in (token, draw(probs, u)):
                assert law[one] > 0 and abs(float(sums[one]) - u) <= float(law[one]) + 2e-6


@pytest.mark.parametrize("computed_by", ["native"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1e-40, 0.3, 1.0, 1.7, 1e60])
@pytest.mark.parametrize("ended", [None, 1])
def test_shares_of_beams_and_tokens(size: int, temperature: float, ended: int | None) -> None:
    """The softmax of all of them over the temperature, in float64."""
    made, scores = logits(size), [-0.7, -0.2, -2.0]
    rows = [LogitsRow(row, float(row.double().logsumexp(-1))) for row in made]
    given = [None if beam == ended else row for beam, row in enumerate(rows)]
    shares = RowShares.of(scores, given, temperature)
    assert shares is not None
    log_joint = torch.tensor(scores, dtype=torch.float64)[:, None] + made.double().log_softmax(-1)
    if ended is not None:
        log_joint = torch.nn.functional.pad(log_joint, (1, 0), value=-math.inf)
        log_joint[ended] = -math.inf
        log_joint[ended, 0] = scores[ended]
    at = min(max(temperature, 1e-30), 1e30)
    expected = ((log_joint - log_joint.max()) / at).flatten().softmax(-1).view_as(log_joint)
    near = {"atol": 1e-30, "rtol": 1e-4 if temperature != 1 else 3e-6}
    one_by_one = torch.tensor([shares.at(place) for place in range(len(shares))], dtype=torch.float64)
    for found in (shares.dense().double(), one_by_one):
        torch.testing.assert_close(found.view_as(log_joint), expected, **near)
        assert not bool(found.view_as(log_joint)[log_joint == -math.inf].any())


@pytest.mark.parametrize("computed_by", ["native"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("ended", [None, 1])
def test_beams_and_tokens_drawn_from_shares(size: int, temperature: float, ended: int | None) -> None:
    """Where the running sum of float64 passes u of the whole, with some shares made smaller and without."""
    generator = torch.Generator().manual_seed(size)
    rows = [LogitsRow(row, float(row.double().logsumexp(-1))) for row in logits(size)]
    given = [None if beam == ended else row for beam, row in enumerate(rows)]
    shares = RowShares.of([-0.7, -0.2, -2.0], given, temperature)
    assert shares is not None
    us = [0.0, *torch.rand(60, generator=generator, dtype=torch.float64).tolist(), 1 - 2**-48]
    whole = shares.dense().double()
    likely = whole.topk(min(9, len(whole))).indices.tolist()
    others = torch.randint(len(whole), (20,), generator=generator).tolist()
    less = {place: max(0.0, 0.3 * shares.at(place) - 1e-9) for place in {*likely[1:], *others}} | {likely[0]: 0.0}
    for changed in ({}, less, dict.fromkeys(likely, 0.0)):
        law = whole.clone()
        law[[*changed]] = torch.tensor([*changed.values()], dtype=torch.float64)
        if not law.any():
            continue
        law /= law.sum()
        sums = law.cumsum(0)
        drawn = (shares.changed(changed) if changed else shares).draws(us)
        for u, place in zip(us, drawn, strict=True):
            assert law[place] > 0 and abs(float(sums[place]) - u) <= float(law[place]) + 3e-6
    with pytest.raises(NonFiniteError):
        shares.changed(dict.fromkeys(range(len(shares)), 0.0)).draws([0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_shares_that_are_not_finite(bad: float) -> None:
    made = torch.zeros(2, 5000)
    made[1, 77] = bad
    rows = [LogitsRow(row, float(row.logsumexp(-1))) for row in made]
    if RowShares.of([0.0, -1.0], rows[:1] * 2, 1.0) is not None:  # the native library's
        for scores, wrong in (([0.0, -1.0], rows), ([0.0, math.nan], rows[:1] * 2)):
            for temperature in (1.0, 0.5):
                with pytest.raises(NonFiniteError):
                    found = RowShares.of(scores, wrong, temperature)
                    assert found is not None and found.draws([0.5])
    assert RowShares.of([0.0], [LogitsRow(made[0].double(), 8.0)], 1.0) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_token_is_drawn_where_numbers_are_not_finite(bad: float) -> None:
    row = torch.full((5000,), bad if bad < 0 else 0.0)
    row[77] = bad
    with pytest.raises(NonFiniteError):
        draw(softmax(row), 0.5)
    if (start := address(row)) is not None:
        with pytest.raises(NonFiniteError):
            draw_logits(start, 5000, 77, 1.0, 0.5)
    with pytest.raises(NonFiniteError):
        draw(torch.zeros(9), 0.5)


def test_other_types_and_gradients_are_pytorch_s() -> None:
    made = logits(1000, 1)
    assert softmax(made.double()).dtype == torch.float64 and softmax(made.bfloat16()).dtype == torch.bfloat16
    made = made.clamp(min=-9).requires_grad_()
    softmax(made).square().sum().backward()
    assert made.grad is not None and bool(made.grad.any())
