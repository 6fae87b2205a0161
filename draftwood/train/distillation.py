"""The loss of learning from a text and from the target's own distributions, with its gradient in one go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.train.settings import Divergence

UNKNOWN = -100  # in the place of a token to predict that a draft does not know


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ahead: Tensor, log_p: Tensor | None, weight: float, divergence: Divergence
    ) -> Tensor:
        log_q = torch.log_softmax(logits, -1)
        known = ahead != UNKNOWN
        place = ahead.clamp(min=0)[:, None]
        on_text = (1 - weight) * known.to(logits.dtype)
        loss = -(log_q.gather(-1, place)[:, 0] * on_text).sum()
        if log_p is None:
            gradient = log_q.exp_().mul_(on_text[:, None])
        elif divergence == "kl":
            p = log_p.exp()
            loss = loss + weight * (_dots(p, log_p) - _dots(p, log_q)).sum()
            gradient = log_q.exp_().mul_((on_text + weight * p.sum(-1))[:, None]).sub_(p, alpha=weight)
        else:
            p, q = log_p.exp(), log_q.exp_()
            loss = loss + weight * (1 - torch.minimum(p, q).sum(-1)).sum()
            short = q * (q < p)  # where a higher q is accepted more often
            gradient = q.mul_((on_text + weight * short.sum(-1))[:, None]).sub_(short, alpha=weight)
        ctx.save_for_backward(gradient.scatter_add_(-1, place, -on_text[:, None]))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grads[0]), None, None, None, None


def _dots(one: Tensor, other: Tensor) -> Tensor:
    """The dot products of rows [n, V] with rows of the same number."""
    return torch.bmm(one[:, None], other[..., None]).flatten()


def chosen(rows: Tensor, here: Tensor, first: int = 0, each: int = 1) -> Tensor:
    """The rows [n, V] of rows [B, T, V] that here [B, N] marks: mark (b, i) is for row (b, first + i * each).

    The gradient of indexing by marks or by pairs sorts them first; this one takes a fifth of its time.
    """
    batch, place = here.nonzero(as_tuple=True)
    return rows.flatten(0, 1).index_select(0, batch * rows.shape[1] + place * each + first)


def distillation_loss(
    logits: Tensor, ahead: Tensor, log_p: Tensor | None, weight: float, divergence: Divergence = "kl"
) -> Tensor:
    """Sum over places of (1 - w) * -log q(token ahead) + w * D(p, q), q the softmax of logits.

    D is sum_x p(x) (log p(x) - log q(x)), or with "tv" 1 - sum_x min(p(x), q(x)): the total variation of p and q, which
    is the share of drafts that is rejected (Leviathan et al. 2023, corollary 3.6; Zhou et al. 2024, DistillSpec).
    logits [n, V], ahead [n] with UNKNOWN where only p counts, log_p [n, V], which need not sum to 1, or None. It can be
    differentiated once, with far fewer passes over [n, V] than PyTorch's functions take.
    """
    target = None if log_p is None else log_p.to(logits.dtype)
    w = 0.0 if target is None else weight
    loss: Tensor = _Loss.apply(logits, ahead, target, w, divergence)  # type: ignore[no-untyped-call]
    return loss
