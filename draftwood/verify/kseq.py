"""K-SEQ (SpecTr, Sun et al. 2023, arXiv 2310.15141): n independent draws at one node, all accepted by one ratio."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwood.core.forest import Proposal
from draftwood.verify.tree import Accept, Rejection, Resolve, resolve

HALVINGS = 30  # of the interval in which rho is sought


def balance(p: Tensor, q: Tensor, count: int) -> tuple[Tensor, float]:
    """min(q, p/rho) [V] and its sum beta, for the rho in [1, n] at which 1 - (1 - beta)^n = rho beta.

    The rule is exact for every rho that is no smaller; a smaller one would accept some tokens too often.
    """
    low, high = 1.0, float(count)
    drafts, wanted = q.cpu().numpy(), p.cpu().numpy()
    above = wanted <= drafts  # p/rho is the less whatever rho is; q is where p >= n q; what lies between is not known
    between = ~above & (wanted < count * drafts)
    below = ~(above | between)
    p_above, q_below = (float(some.sum(dtype=np.float64)) for some in (wanted[above], drafts[below]))
    p_between, q_between = wanted[between].astype(np.float64), drafts[between].astype(np.float64)
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        beta = q_below + p_above / rho + float(np.minimum(q_between, p_between / rho).sum())
        low, high = (low, rho) if 1 - (1 - beta) ** count <= rho * beta else (rho, high)
    shared = torch.minimum(q, p / high)
    return shared, min(1.0, float(shared.sum()))


def resolve_together(
    p: Tensor, proposals: Sequence[Proposal], token: Sequence[int], accept: Accept
) -> tuple[int | None, Tensor]:
    """`resolve` with independent draws of one distribution accepted with min(1, p/(rho q)) each.

    The rest is norm(p - min(q, p/rho) (1 - (1 - beta)^n)/beta). Other draws are resolved one after the other.
    """
    rest = p
    for proposal in proposals:
        q, count = proposal.q, len(proposal.nodes)
        if q is None or count < 2 or not proposal.replacement:
            child, left = resolve(rest, [proposal], token, accept)
        else:
            shared, beta = balance(rest, q, count)
            met = (node for node in proposal.nodes if accept(float(shared[token[node]]), float(q[token[node]])))
            child = next(met, None)
            left = (rest - shared * ((1 - (1 - beta) ** count) / beta if beta else 0.0)).clamp_(min=0.0)
            total = left.sum()
            left = left / total if float(total) > 0 else rest
        if child is not None:
            return child, p
        rest = left
    return None, rest


class KSeq(Rejection):
    """Rejection that judges the independent draws of a node by one ratio."""

    name = "kseq"

    @property
    def rule(self) -> Resolve:
        return resolve_together
