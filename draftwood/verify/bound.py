"""How often any rule could accept one of n independent draws at a node: what a better rule might still bring."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.sampling import Distributions


def best_acceptance(p: Tensor, q: Tensor, count: int) -> float:
    """alpha*(n) = min_j P(H_j) + 1 - Q(H_j)^n, H_j the j tokens of largest q/p (Hu et al., arXiv 2502.18779).

    n is `count`. An upper bound for rules that judge one node at a time, met by optimal transport; for one draw it is
    sum min(p, q), which rejection meets. p, q are [V] and sum to 1.
    """
    if count == 1:
        return min(1.0, float(torch.minimum(p, q).sum(dtype=torch.float64)))
    p, q = p.double(), q.double()
    order = (p / q.clamp(min=1e-300)).argsort()
    within = p[order].cumsum(0) + 1 - q[order].cumsum(0).clamp(max=1.0) ** count
    return float(within.min().clamp(0.0, 1.0))


def bounds(forest: Forest, path: Sequence[int], target: Distributions) -> list[tuple[float, bool]]:
    """(alpha*(n), whether one was accepted) at each node of the accepted path whose drafts are n independent draws."""
    found = []
    for node in path:
        proposals = forest.proposals.get(node, ())
        if node >= forest.fresh and len(proposals) == 1:
            q, nodes = proposals[0].q, proposals[0].nodes
            if q is not None and (proposals[0].replacement or len(nodes) == 1):
                found.append((best_acceptance(target.probs(node), q, len(nodes)), node != path[-1]))
    return found
