"""The loss of distillation and its gradient are those of PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from draftwood.train.distillation import UNKNOWN, chosen, distillation_loss
from draftwood.train.settings import Divergence


@pytest.mark.parametrize("weight", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("whole", [True, False])  # whether p sums to 1
@pytest.mark.parametrize("divergence", ["kl", "tv"])
def test_value_and_gradient(weight: float, taught: bool, whole: bool, divergence: Divergence) -> None:
    torch.manual_seed(2)
    logits = torch.randn(5, 11, dtype=torch.float64, requires_grad=True)
    ahead = torch.tensor([3, UNKNOWN, 0, 10, UNKNOWN])
    log_p = torch.log_softmax(torch.randn(5, 14, dtype=torch.float64), -1)[:, :11]
    log_p = torch.log_softmax(log_p, -1) if whole else log_p
    log_q = torch.log_softmax(logits, -1)
    share = weight if taught else 0.0
    expected = (1 - share) * F.nll_loss(log_q, ahead, reduction="sum")
    if divergence == "kl":
        expected = expected + share * F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    else:
        expected = expected + share * (1 - torch.minimum(log_p, log_q).exp().sum(-1)).sum()
    (gradient,) = torch.autograd.grad(3 * expected, logits)
    loss = distillation_loss(logits, ahead, log_p if taught else None, weight, divergence)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    (mine,) = torch.autograd.grad(3 * loss, logits)
    torch.testing.assert_close(mine, gradient)


@pytest.mark.parametrize(("first", "each"), [(0, 1), (2, 1), (1, 3)])
def test_chosen_rows_and_their_gradient_are_those_of_indexing_by_marks(first: int, each: int) -> None:
    torch.manual_seed(3)
    rows = torch.randn(2, first + 5 * each, 7, requires_grad=True)
    here = torch.rand(2, 5) < 0.5
    picked, marked = chosen(rows, here, first, each), rows[:, first::each][:, :5][here]
    assert torch.equal(picked, marked)
    weight = torch.randn(marked.shape)
    (one,), (other,) = (torch.autograd.grad((each_ * weight).sum(), rows) for each_ in (picked, marked))
    assert torch.equal(one, other)
