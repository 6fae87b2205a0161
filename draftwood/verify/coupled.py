"""Gumbel-coupled verification: the text under a seed is the same with and without speculation, for any drafter."""

from __future__ import annotations

from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.sampling.rows import best
from draftwood.verify.tree import follow


class Coupled:
    """Gumbel-coupled verification: the token at position i is argmax(log p_i + g_i), g_i a function of (seed, i) alone.

    It is computed as argmax(p_i / e_i) with g_i = -log e_i, which takes no logarithm of a whole vocabulary. Drafts
    proposed with the same noise are accepted when they are that token, so that the text under a seed does not depend on
    the drafter or on whether there was one. Each token follows p exactly because g_i is Gumbel noise.
    """

    name = "coupled"
    lossless = True
    coupled = True

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        if target.params.greedy:
            return follow(forest, target.best, None)

        def choice(node: int) -> int:
            return best(perturb(target.probs(node), forest.position(node) + 1, streams)[None])[0]

        return follow(forest, choice, target.log_prob)


def perturb(p: Tensor, position: int, streams: Streams) -> Tensor:
    """p [V] over the arrival times of a position, the exponential of log p plus its Gumbel noise; 0 stays 0."""
    return p / streams.arrivals(position, p.shape[-1], p.device)
