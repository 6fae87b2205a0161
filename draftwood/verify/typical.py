"""Rules that do not keep the target's distribution, for Medusa: typical acceptance, and greedy text at any temperature.

Both are lossy and say so. Pure maths; refuses to know where drafts came from: neither looks at q.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling import Penalties, SamplingParams, Streams, draw, warp
from draftwood.verify.tree import end_of_path, follow


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

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self.epsilon, self.delta = epsilon, delta

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict:
        """Verdict for a forest with one root; logits [len(forest) - fresh, V] of the target, rows in node order."""
        if penalties is not None:
            logits = penalties(logits, forest, range(forest.fresh, len(forest)))
        probs = warp(logits, params)
        thresholds = typical_threshold(probs, self.epsilon, self.delta).tolist()
        root = forest.roots[0]
        likelihood = {root: 0.0}  # of accepted nodes; parents come before children
        for node in range(root + 1, len(forest)):
            parent = forest.parent[node]
            if parent in likelihood:
                chance = float(probs[parent - forest.fresh, forest.token[node]])
                if chance > thresholds[parent - forest.fresh]:
                    likelihood[node] = likelihood[parent] + math.log(chance)
        last = max(likelihood, key=lambda node: (forest.depth[node], likelihood[node], -node))
        p = probs[last - forest.fresh]
        token = draw(p, streams.uniform("accept"))
        warped = {(last, token): math.log(float(p[token]))}
        node = last
        while node != root:
            parent = forest.parent[node]
            warped[parent, forest.token[node]] = likelihood[node] - likelihood[parent]
            node = parent
        return end_of_path(forest, last, token, warped)


class GreedyText:
    """Accept exactly the target's best token at each node, whatever the temperature: the text of greedy decoding."""

    name = "greedy (lossy in sampling)"
    lossless = False

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict:
        """As `Rejection` at temperature 0."""
        if penalties is not None:
            logits = penalties(logits, forest, range(forest.fresh, len(forest)))
        return follow(forest, logits.argmax(-1).tolist(), None)
