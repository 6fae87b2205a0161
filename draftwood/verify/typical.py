"""Rules that do not keep the target's distribution, for Medusa: typical acceptance, and greedy text at any temperature.

Both are lossy and say so. Pure maths: neither looks at q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify.tree import end_of_path, follow, next_token


def typical_threshold(p: Tensor, epsilon: float, delta: float) -> Tensor:
    """min(epsilon, delta exp(-H(p))) for each distribution [..., V], H in nats (Cai et al. 2024, §2.3.1)."""
    entropy = torch.special.entr(p).sum(-1)
    return (delta * torch.exp(-entropy)).clamp(max=epsilon)


class Typical:
    """Accept a draft x where p(x) > min(epsilon, delta exp(-H(p))), p = T∘target; the longest accepted path wins.

    Of equally long ones the likelier wins, then the one drafted first. The next root is drawn from p at its end. What
    is emitted is typical of the target, not distributed as it: drafts that are likely enough are always taken. At
    temperature 0 it is greedy decoding (for epsilon below 1).
    """

    name = "typical (lossy)"
    lossless = False
    coupled = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self.epsilon, self.delta = epsilon, delta

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """Verdict for a forest with one root."""
        paths = {forest.roots[0]: 0.0}  # accepted node -> log-likelihood of its path; parents come before children
        thresholds: dict[int, float] = {}
        for node in range(forest.roots[0] + 1, len(forest)):
            parent = forest.parent[node]
            if parent in paths:
                p = target.probs(parent)
                if parent not in thresholds:
                    thresholds[parent] = float(typical_threshold(p, self.epsilon, self.delta))
                if float(p[forest.token[node]]) > thresholds[parent]:
                    paths[node] = paths[parent] + target.log_prob(parent, forest.token[node])
        last = max(paths, key=lambda node: (forest.depth[node], paths[node], -node))
        token = next_token(last, None, target, streams)
        path = forest.path(last)
        return end_of_path(forest, path[path.index(forest.roots[0]) :], token, target.log_prob)


class GreedyText:
    """Accept exactly the target's best token at each node, whatever the temperature: the text of greedy decoding."""

    name = "greedy (lossy in sampling)"
    lossless = False
    coupled = False

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """As `Rejection` at temperature 0."""
        return follow(forest, target.best, None)
