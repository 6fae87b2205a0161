"""How often any rule could accept one of n independent draws at a node: what a better rule might still bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import excess

Numbers: TypeAlias = npt.NDArray[np.float64]
SORTED = 4096  # tokens of a larger vocabulary are put into groups before they are sorted


def best_acceptance(p: Tensor, q: Tensor, count: int) -> float:
    """alpha*(n) = min_j P(H_j) + 1 - Q(H_j)^n, H_j the j tokens of largest q/p (Hu et al., arXiv 2502.18779).

    n is `count`. An upper bound for rules that judge one node at a time, met by optimal transport; for one draw it is
    sum min(p, q), which rejection meets. p, q are [V] and sum to 1.
    """
    if count == 1:
        return min(1.0, max(0.0, 1.0 - excess(p, q, 1.0, -1)[1]))
    wanted, drafts = (each.cpu().numpy().astype(np.float64) for each in (p, q))
    if len(wanted) > SORTED:
        wanted, drafts = _alike(wanted, drafts)
    order = (wanted / drafts.clip(1e-300)).argsort()
    within = wanted[order].cumsum() + 1 - drafts[order].cumsum().clip(max=1.0) ** count
    return float(within.min().clip(0.0, 1.0))


def _alike(p: Numbers, q: Numbers) -> tuple[Numbers, Numbers]:
    """The sums of p and q over tokens whose q/p agree to a 500th: at its least the bound hardly depends on these."""
    ratio = (q / p.clip(1e-300)).clip(2.0**-40, 2.0**40).astype(np.float32)
    place = ratio.view(np.int32) >> 14  # of the mantissa's 23 bits 9
    place -= place.min()
    return np.bincount(place, p).astype(np.float64), np.bincount(place, q).astype(np.float64)


def bounds(forest: Forest, path: Sequence[int], target: Distributions) -> list[tuple[float, bool]]:
    """(alpha*(n), whether one was accepted) at each node of the accepted path whose drafts are n independent draws."""
    judged = []
    for node in path:
        proposals = forest.proposals.get(node, ())
        if node >= forest.fresh and len(proposals) == 1:
            q, nodes = proposals[0].q, proposals[0].nodes
            if q is not None and (proposals[0].replacement or len(nodes) == 1):
                judged.append((best_acceptance(target.probs(node), q, len(nodes)), node != path[-1]))
    return judged
