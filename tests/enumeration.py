"""Exact laws by enumeration: every random choice of an experiment is replayed once with its probability.

Also holds a slow, independent warper that the package's own is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from draftwood.forest import Proposal
from draftwood.sampling import SamplingParams, Streams
from draftwood.verify import tree

Outcome = TypeVar("Outcome", bound=Hashable)
Law = dict[Outcome, float]


class Choices:
    """Scripted randomness of one replay: `choose` follows the script, then takes the first possible option."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.others: list[list[int]] = []  # per choice beyond the script: the options left for later replays
        self.weight = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """The index of one option of positive weight; weights may have any sum."""
        total = math.fsum(weights)
        place = len(self.taken)
        if place < len(self.script):
            option, rest = self.script[place], []
        else:
            option, *rest = [i for i, weight in enumerate(weights) if weight > 0]
        self.taken.append(option)
        self.others.append(rest)
        self.weight *= weights[option] / total
        return option

    def coin(self, chance: float) -> bool:
        return self.choose((chance, 1.0 - chance)) == 0


def replays(experiment: Callable[[Choices], Outcome]) -> Iterator[tuple[float, Outcome]]:
    """(probability, outcome) of every sequence of choices, depth first."""
    todo: list[list[int]] = [[]]
    while todo:
        choices = Choices(todo.pop())
        outcome = experiment(choices)
        yield choices.weight, outcome
        for place, options in enumerate(choices.others):
            todo += [[*choices.taken[:place], option] for option in options]


def law_of(experiment: Callable[[Choices], Outcome]) -> Law[Outcome]:
    """The exact distribution of an experiment's outcome."""
    law: Law[Outcome] = {}
    for weight, outcome in replays(experiment):
        law[outcome] = law.get(outcome, 0.0) + weight
    return law


def sequences(choices: Choices, q: Tensor, count: int, replacement: bool) -> list[int]:
    """Up to `count` draws from q [V], one after the other; without replacement, drawn tokens are out."""
    weights = q.tolist()
    drawn: list[int] = []
    while len(drawn) < count and any(weight > 0 for weight in weights):
        token = choices.choose(weights)
        drawn.append(token)
        if not replacement:
            weights[token] = 0.0
    return drawn


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

    def experiment(choices: Choices) -> int:
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
        child, rest = rule(p, proposals, token, choices.coin)
        return choices.choose(rest.tolist()) if child is None else token[child]

    law = law_of(experiment)
    return torch.tensor([law.get(x, 0.0) for x in range(vocab)], dtype=torch.float64)


class EnumeratedRandomness:
    """Puts `Choices` in the place of the random streams of drafting and verification, for the code as it runs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.choices = Choices([])
        outer = self

        class Coin:
            """A uniform number that is only ever compared with a chance, or handed to `draw`."""

            def __lt__(self, chance: float) -> bool:
                return outer.choices.coin(chance)

        def draw(probs: Tensor, u: object) -> int:
            return outer.choices.choose(probs.tolist())

        def draw_distinct(probs: Tensor, count: int, streams: Streams) -> list[list[int]]:
            return [sequences(outer.choices, row, count, False) for row in probs]

        patch.setattr(Streams, "uniform", lambda streams, purpose: Coin())
        patch.setattr("draftwood.sampling.draw", draw)
        patch.setattr("draftwood.verify.tree.draw", draw)
        patch.setattr("draftwood.draft.base.draw_distinct", draw_distinct)

    def law_of(self, run: Callable[[], Outcome]) -> Law[Outcome]:
        """The exact distribution of what `run` returns."""

        def experiment(choices: Choices) -> Outcome:
            self.choices = choices
            return run()

        return law_of(experiment)


def slow_warp(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """T∘softmax, written out: temperature, top-k, top-p on the renormalised rest, min-p, renormalise; ties are kept."""
    if params.temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    top = max(logits)
    weights = [math.exp((x - top) / params.temperature) for x in logits]
    probs = [w / math.fsum(weights) for w in weights]
    alive = set(range(len(probs)))
    if 0 < params.top_k < len(probs):
        least = sorted(probs, reverse=True)[params.top_k - 1]
        alive = {i for i in alive if probs[i] >= least}
    if params.top_p < 1:
        # the mass that top-p is a fraction of: the k best, whatever their ties add
        ranked = sorted((probs[i] for i in alive), reverse=True)[: params.top_k or None]
        mass, reached = params.top_p * math.fsum(ranked), 0.0
        for least in ranked:
            reached += least
            if reached >= mass:
                break
        alive = {i for i in alive if probs[i] >= least}
    if params.min_p > 0:
        alive = {i for i in alive if probs[i] >= params.min_p * max(probs)}
    total = math.fsum(probs[i] for i in alive)
    return [probs[i] / total if i in alive else 0.0 for i in range(len(probs))]


def slow_penalties(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """Penalties and bias for one path, counted from scratch."""
    edited = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        times = list(output).count(token)
        logit -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        edited.append(logit + params.logit_bias.get(token, 0.0))
    return edited
