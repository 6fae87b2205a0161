"""Four bits a weight: how far weights and products may move, what is kept exactly, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.quantise import GROUP_SIZE, MAX_CODE, divide, quantise, seen_divided


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(weight: Tensor) -> Tensor:
    """Round to nearest between the ends of each group, not even rounded to float16."""
    groups = weight.view(len(weight), -1, GROUP_SIZE)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low) / MAX_CODE
    return (((groups - low) / scale).round() * scale + low).view_as(weight)


def skewed(weight: Tensor) -> Tensor:
    """With a few large weights, as real models have them."""
    return torch.where(drawn(*weight.shape, seed=7) > 2.5, 8 * weight, weight)


@pytest.mark.parametrize("weight", [drawn(24, 96), skewed(drawn(24, 96)), 0.05 * drawn(24, 96) + 0.5])
def test_weights_are_nearer_than_rounded_ones(weight: Tensor) -> None:
    made = quantise(weight)
    assert made.codes.dtype == torch.uint8 and made.codes.max() <= MAX_CODE and made.codes.shape == (24, 96)
    assert made.scale.dtype == made.shift.dtype == torch.float16 and made.scale.shape == made.shift.shape == (24, 3)
    error, before = (made.weight() - weight).square(), (nearest(weight) - weight).square()
    groups = [each.view(24, 3, GROUP_SIZE).sum(-1) for each in (error, before)]
    assert (groups[0] <= 1.02 * groups[1] + 1e-9).all()  # no group is worse, but for float16
    assert error.sum() < 0.95 * before.sum()


def test_what_matters_is_nearer() -> None:
    weight, importance = drawn(24, 96), drawn(96, seed=1).square() ** 3
    plain, weighted = (
        ((quantise(weight, each).weight() - weight) ** 2 @ importance).sum() for each in (None, importance)
    )
    assert weighted < 0.8 * plain


@pytest.mark.parametrize("weight", [drawn(24, 96), skewed(drawn(24, 96))])
def test_errors_are_made_up_for_where_inputs_go_together(weight: Tensor) -> None:
    inputs = drawn(400, 24, seed=2) @ drawn(24, 96, seed=3) + 0.3 * drawn(400, 96, seed=4)
    moments = inputs.T @ inputs / len(inputs)

    def moved(importance: Tensor | None) -> float:
        return float(((quantise(weight, importance).weight() - weight) @ inputs.T).square().mean())

    rounded = float(((nearest(weight) - weight) @ inputs.T).square().mean())
    assert moved(moments.diagonal()) < rounded and moved(moments) < 0.4 * rounded


def test_weights_that_codes_can_stand_for_are_kept_exactly() -> None:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, MAX_CODE + 1, (24, 3, GROUP_SIZE), generator=generator)
    codes[..., 3], codes[..., 9] = 0, MAX_CODE
    scale, shift = drawn(24, 3, 1).abs().half().float(), drawn(24, 3, 1, seed=6).half().float()
    weight = (codes * scale + shift).view(24, 96)
    inputs = drawn(64, 96)
    for importance in (None, torch.arange(96.0), inputs.T @ inputs):
        assert torch.equal(quantise(weight, importance).weight(), weight)
    flat = torch.full((3, 64), 0.25)
    assert torch.equal(quantise(flat).weight(), flat) and torch.equal(quantise(0 * flat).weight(), 0 * flat)


def test_the_last_group_may_be_short() -> None:
    weight = drawn(24, 70) + 3
    inputs = drawn(200, 70, seed=1)
    for importance in (None, inputs.square().mean(0), inputs.T @ inputs):
        made = quantise(weight, importance)
        assert made.codes.shape == made.weight().shape == weight.shape and made.scale.shape == (24, 3)
        assert (made.weight() - weight).abs().max() < 0.4
    assert torch.equal(quantise(weight[:, :64]).codes, quantise(weight).codes[:, :64])


def test_training_sees_rounded_weights_and_their_own_gradient() -> None:
    """Each group is divided from its least to its largest weight; the short one, too."""
    weight = drawn(5, 70).requires_grad_()
    seen = seen_divided(weight)
    for start in (0, 32, 64):
        group, rounded = weight[:, start : start + 32].detach(), seen[:, start : start + 32].detach()
        step = (group.amax(1, keepdim=True) - group.amin(1, keepdim=True)) / MAX_CODE
        assert ((rounded - group).abs() <= 0.51 * step + 2e-3).all()
        assert max(len(set(row)) for row in rounded.half().tolist()) <= MAX_CODE + 1
    assert (seen - weight).abs().max() > 0.05
    torch.testing.assert_close(divide(weight).weight(), seen.detach(), atol=1e-6, rtol=0)
    equal = torch.full((2, 40), 0.3)
    assert torch.equal(divide(equal).weight(), equal.half().float())
    factors = drawn(5, 70, seed=8)
    (seen * factors).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, factors)


def test_equal_weights_give_equal_codes_and_stay_as_they_are() -> None:
    weight, inputs = drawn(24, 96).bfloat16(), drawn(50, 96)
    before = weight.clone()
    one, other = (quantise(weight, inputs.T @ inputs) for _ in range(2))
    assert torch.equal(one.codes, other.codes) and torch.equal(one.scale, other.scale) and torch.equal(weight, before)
    square = drawn(96, 96)
    kept = square.clone()
    quantise(square.T, inputs.T @ inputs)
    assert torch.equal(square, kept)


def test_inputs_that_never_come_do_no_harm() -> None:
    weight = drawn(8, 64)
    for importance in (torch.zeros(64), torch.zeros(64, 64), torch.eye(64) * (torch.arange(64) > 40)):
        assert (quantise(weight, importance).weight() - weight).abs().max() < 0.5


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e6])
def test_weights_that_cannot_be_held_are_refused(value: float) -> None:
    weight = drawn(4, 64)
    weight[2, 40] = value
    with pytest.raises(ModelError, match="not finite, or too large for float16, cannot be quantised"):
        quantise(weight)


def test_inputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelError, match="inputs of a matrix are not finite on the calibration text"):
        quantise(drawn(4, 64), torch.full((64, 64), torch.nan))
