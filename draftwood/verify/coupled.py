"""Gumbel-coupled verification: the text under a seed is the same with and without speculation, for any drafter.

Knows how noise and position belong together. Refuses to know where drafts came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling import Penalties, SamplingParams, Streams, warp
from draftwood.verify.tree import follow


class Coupled:
    """Gumbel-coupled verification: the token at position i is argmax(log p_i + g_i), g_i a function of (seed, i) alone.

    Drafts proposed with the same noise are accepted when they are that token, so that the text under a seed does not
    depend on the drafter or on whether there was one. Each token follows p exactly because g_i is Gumbel noise.
    """

    name = "coupled"
    lossless = True

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict:
        nodes = range(forest.fresh, len(forest))
        if penalties is not None:
            logits = penalties(logits, forest, nodes)
        if params.greedy:
            return follow(forest, logits.argmax(-1).tolist(), None)
        log_p = warp(logits, params).log()
        perturbed = perturb(log_p, [forest.position(node) + 1 for node in nodes], streams)
        return follow(forest, perturbed.argmax(-1).tolist(), log_p)


def perturb(log_p: Tensor, positions: Sequence[int], streams: Streams) -> Tensor:
    """log p [n, V] plus the Gumbel noise of each row's position; impossible tokens stay at -inf."""
    noise = [streams.gumbel(position, log_p.shape[-1], log_p.device) for position in positions]
    return log_p + torch.stack(noise)
