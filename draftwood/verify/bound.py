"""How often any rule could accept one of n independent draws at a node: what a better rule might still bring."""

from __future__ import annotations

from torch import Tensor


def best_acceptance(p: Tensor, q: Tensor, count: int) -> float:
    """alpha*(n) = min_j P(H_j) + 1 - Q(H_j)^n, H_j the j tokens of largest q/p (Hu et al., arXiv 2502.18779).

    n is `count`. An upper bound for rules that judge one node at a time, met by optimal transport; for one draw it is
    sum min(p, q), which rejection meets. p, q are [V] and sum to 1.
    """
    p, q = p.double(), q.double()
    order = (p / q.clamp(min=1e-300)).argsort()
    within = p[order].cumsum(0) + 1 - q[order].cumsum(0).clamp(max=1.0) ** count
    return float(within.min().clamp(0.0, 1.0))
