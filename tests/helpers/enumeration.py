"""Exact laws of verification rules, and the package's own enumeration and slow warper where tests look for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import Engine, GenerationResult, SamplingParams
from draftwood.certify import enumeration
from draftwood.certify.enumeration import Law, ScriptedChoices, law_of, replays, sequences
from draftwood.certify.references import exact_law, slow_penalties, slow_warp
from draftwood.core.forest import Proposal
from draftwood.depth import thompson
from draftwood.verify import tree

__all__ = [
    "EnumeratedRandomness",
    "Law",
    "ScriptedChoices",
    "emitted",
    "law_of",
    "random_law",
    "replays",
    "sequences",
    "slow_penalties",
    "slow_warp",
]

PLAIN = SamplingParams()
Rule = Callable[[Tensor, Sequence[Proposal], Sequence[int], Callable[[float], bool]], tuple[int | None, Tensor]]


def emitted(
    p: Tensor,
    drafts: Sequence[tuple[Tensor | None, int, bool]],
    points: Sequence[Sequence[int]] = (),
    rule: Rule = tree.resolve,
    claimed: Sequence[tuple[Tensor | None, bool]] | None = None,
) -> Tensor:
    """The law [V] of the token that a verification rule emits at one node.

    drafts: (q, count, replacement) per draft model, or (None, i, True) for the deterministic tokens points[i].
    `claimed` overrides what the verifier is told about each: (q, replacement).
    """
    vocab = p.shape[0]

    def experiment(choices: ScriptedChoices) -> int:
        token: list[int] = []
        proposals = []
        for i, (q, count, replacement) in enumerate(drafts):
            drawn = list(points[count]) if q is None else sequences(choices, q, count, replacement)
            told_q, told_replacement = (q, replacement) if claimed is None else claimed[i]
            nodes = []
            for x in drawn:  # equal tokens are one node, as in a forest
                if x not in token:
                    token.append(x)
                nodes.append(token.index(x))
            proposals.append(Proposal(told_q, nodes, told_replacement))
        child, rest = rule(p, proposals, token, lambda p_x, q_x: choices.coin(tree.acceptance(p_x, q_x)))
        return choices.choose(rest.tolist()) if child is None else token[child]

    law = law_of(experiment)
    return torch.tensor([law.get(x, 0.0) for x in range(vocab)], dtype=torch.float64)


class EnumeratedRandomness(enumeration.EnumeratedRandomness):
    """`Choices` in the place of all random streams, depth control's too, until a test ends.

    A Beta draw is one of two values.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch.setattr, ("draft", "accept", "depth"))
        patch.setattr(thompson, "draw_beta", lambda a, b, uniform: 0.9 if uniform() < a / (a + b) else 0.2)

    def law_of_texts(
        self, engine: Engine, prompt: list[int], method: Any, length: int, params: SamplingParams = PLAIN, **limits: Any
    ) -> Law[tuple[int, ...]]:
        """The law of an engine's output."""
        return self.law_of(lambda: self.text(engine.generate(prompt, method, params, length, **limits), length))

    def text(self, result: GenerationResult, length: int) -> tuple[int, ...]:
        """The result of an experiment whose outcome is an output of at most so many tokens."""
        self.choices.closed = len(result.tokens) == length and result.kinds[-1] != "accepted"
        return tuple(result.tokens)

    def assert_plain(
        self, engine: Engine, prompt: list[int], method: Any, length: int, params: SamplingParams = PLAIN
    ) -> None:
        """An engine's output has plain decoding's law, to 1e-12."""
        law = self.law_of_texts(engine, prompt, method, length, params)
        plain = exact_law(engine.target, prompt, params, length, engine.end_tokens)  # type: ignore[arg-type]
        assert law.keys() == plain.keys()
        assert all(abs(law[output] - chance) < 1e-12 for output, chance in plain.items())


def random_law(vocab: int, seed: int, zeros: int = 0) -> Tensor:
    """Probabilities of a vocabulary, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(vocab, dtype=torch.float64).exponential_(generator=generator) ** 1.5
    weights[torch.randperm(vocab, generator=generator)[:zeros]] = 0.0
    return weights / weights.sum()
