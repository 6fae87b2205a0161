"""Rules of verification on the same drafts, in expectation over every outcome of their coins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from expected_tokens import expected_tokens

from draftwood import SamplingParams
from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions, Streams, draw_distinct
from draftwood.verify import Rejection, Traversal


def test_mean_tokens_of_a_round_are_those_of_all_outcomes() -> None:
    forest, generator = Forest.from_prompt([0]), torch.Generator().manual_seed(2)
    p, q = (torch.rand(8, 3, generator=generator, dtype=torch.float64).softmax(-1) ** 4 for _ in range(2))
    p, q = (rows / rows.sum(-1, keepdim=True) for rows in (p, q))
    a, b = forest.propose(0, [1, 2], q[0], False)
    forest.propose(a, [0], q[1])
    forest.propose(b, [0], q[2])
    target = Distributions(forest, p.log(), SamplingParams())
    for verify in (Rejection(), Traversal()):
        tokens = [verify(forest, target, Streams(seed)).accepted + 1 for seed in range(4000)]
        mean = sum(tokens) / len(tokens)
        deviation = (sum((each - mean) ** 2 for each in tokens) / len(tokens) ** 2) ** 0.5
        assert abs(expected_tokens(verify, forest, target) - mean) < 4 * deviation


def drawn_tree(widths: Sequence[int], seed: int, sharp: float, apart: float) -> tuple[Forest, Distributions]:
    """A tree drawn without replacement from a draft whose logits are the target's, `sharp` wide, and noise."""
    generator, streams = torch.Generator().manual_seed(seed), Streams(seed)
    forest, logits, frontier = Forest.from_prompt([0]), [], [0]

    def row() -> torch.Tensor:
        return torch.randn(24, generator=generator, dtype=torch.float64)

    for width in (*widths, 0):
        grown = []
        for node in frontier:
            logits.append(sharp * row())
            if width:
                q = (logits[-1] + apart * row()).softmax(-1)
                ((*tokens,),) = draw_distinct(q[None], width, streams)
                grown += forest.propose(node, tokens, q, width == 1)
        frontier = grown
    return forest, Distributions(forest, torch.stack(logits), SamplingParams())


@pytest.mark.parametrize(
    ("widths", "count"),
    [
        ((1,) * 8, 60),
        ((2, 2, 1), 60),
        *(pytest.param(w, 600, marks=pytest.mark.slow) for w in ((2, 2, 1), (4, 2, 2, 1))),
    ],
    ids=str,
)
def test_traversal_brings_more_than_rejection_on_the_same_trees(widths: tuple[int, ...], count: int) -> None:
    """Whatever the draft is like; sums over drafts, since of a single one it may bring less."""
    for sharp, apart in ((1.0, 0.5), (2.0, 1.0), (4.0, 1.0), (2.0, 2.5)):
        sums = [0.0, 0.0]
        for seed in range(count):
            forest, target = drawn_tree(widths, seed, sharp, apart)
            for i, verify in enumerate((Rejection(), Traversal())):
                sums[i] += expected_tokens(verify, forest, target)
        assert sums[1] > sums[0], (sharp, apart, sums[1] / sums[0])
