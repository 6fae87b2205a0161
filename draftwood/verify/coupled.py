"""Gumbel-coupled verification: the text under a seed is the same with and without speculation, for any drafter."""

from __future__ import annotations

from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling import Distributions, Streams
from draftwood.verify.tree import follow


class Coupled:
    """Gumbel-coupled verification: the token at position i is argmax(log p_i + g_i), g_i a function of (seed, i) alone.

    Drafts proposed with the same noise are accepted when they are that token, so that the text under a seed does not
    depend on the drafter or on whether there was one. Each token follows p exactly because g_i is Gumbel noise.
    """

    name = "coupled"
    lossless = True
    coupled = True

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        if target.params.greedy:
            return follow(forest, target.best, None)

        def choice(node: int) -> int:
            return int(perturb(target.probs(node).log(), forest.position(node) + 1, streams).argmax())

        return follow(forest, choice, target.log_prob)


def perturb(log_p: Tensor, position: int, streams: Streams) -> Tensor:
    """log p [..., V] plus the Gumbel noise of a position; impossible tokens stay at -inf."""
    return log_p + streams.gumbel(position, log_p.shape[-1], log_p.device)
