"""Tabular models as parts of a target, and how far samples are from the exact law of plain decoding on them."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwood import TabularModel
from draftwood.certify.distances import total_variation
from draftwood.certify.references import Output, exact_law, step_law
from draftwood.certify.tables import StandInBlock
from draftwood.models.base import Batch
from draftwood.models.heads.medusa import Heads

__all__ = [
    "Output",
    "ParallelHead",
    "SequentialBlock",
    "TabularAssistant",
    "TabularExit",
    "TabularHead",
    "exact_law",
    "follows",
    "frequencies",
    "noise_level",
    "random_heads",
    "sampled",
    "step_law",
    "surplus",
    "total_variation",
]


class TabularExit(TabularModel):
    """Reads hidden states, which carry the token through."""

    layers = 2

    def forward(self, batch: Batch, cache: Any) -> Tensor:
        assert batch.hidden is not None
        batch.tokens.fill_(-1)  # nothing but hidden states may be read
        return super().forward(batch, cache)


class TabularHead(TabularModel):
    """Sees all tokens but the first, and has a law of its own."""

    reads, first, carried = (1,), 1, 1

    def forward(self, batch: Batch, cache: Any) -> Tensor:
        assert batch.hidden is not None
        batch.hidden = None
        return super().forward(batch, cache)


class SequentialBlock(StandInBlock):
    """As DSpark: a place's distribution depends on the token before it, too."""

    markov = True

    def follow(self, logits: Tensor, states: Tensor, tokens: list[int]) -> Tensor:
        places = range(logits.shape[-1])
        return logits + torch.tensor([[0.7 * (token - 1) * place for place in places] for token in tokens])


class ParallelHead(StandInBlock):
    """As P-EAGLE: each row reads its own token, and the target's state at the token before it."""

    before, first = 1, 1

    def forward(self, batch: Batch, cache: Any) -> Tensor:
        assert batch.hidden is not None
        own = batch.tokens[:, None].to(batch.hidden.dtype)
        return super().forward(replace(batch, hidden=own), cache)


class TabularAssistant(TabularModel):
    """Reads the target's cache, and a state: the target's at the token before, or its own, a number of the drafts."""

    reads, carried, before = (1,), 1, 1

    def __init__(self, target: TabularModel, seed: int = 12) -> None:
        law = TabularModel.random(target.vocab_size, seed).law
        super().__init__(law, target.vocab_size, n_layers=2)
        self.full_model = target

    def forward(self, batch: Batch, cache: Any) -> Tensor:
        assert batch.hidden is not None
        table, own, logits = cache.planes[0].numpy(), list[float](), list[Tensor]()
        rows = [(segment, place) for segment in batch.segments for place in range(len(segment))]
        numbers = zip(batch.tokens.tolist(), batch.positions.tolist(), batch.hidden[:, 0].tolist(), strict=True)
        for (segment, place), (token, position, state) in zip(rows, numbers, strict=True):
            prefix, places = table[[segment.extent.base + slot for slot in segment.visible(place)]].T.tolist()
            assert places == list(range(position))  # all before it that is verified, and it lies right behind
            assert state < 0 or state == prefix[-1]
            own.append(min(state, 0.0) * self.vocab_size - token - 1)
            logits.append(self._log_law((*prefix, int(own[-1]))))
        batch.kept.update(dict.fromkeys(batch.states, torch.tensor(own, dtype=self.dtype)[batch.wanted, None]))
        return torch.stack(logits)[batch.wanted]


def random_heads(width: int, vocabulary: int, count: int, seed: int = 0, scale: float = 0.5) -> Heads:
    """Heads in float64 with random weights."""
    torch.manual_seed(seed)
    made = Heads(width, vocabulary, count, "").double().requires_grad_(False)
    for part in made.parameters():
        part.normal_(std=scale)
    return made


def frequencies(samples: Iterable[Output]) -> dict[Output, float]:
    """Relative frequencies of samples."""
    counts = Counter(samples)
    return {x: n / counts.total() for x, n in counts.items()}


def sampled(law: dict[Output, float], count: int, seed: int) -> dict[Output, float]:
    """Relative frequencies of `count` ideal samples: what noise alone looks like."""
    outputs = list(law)
    return frequencies(random.Random(seed).choices(outputs, [law[x] for x in outputs], k=count))


def surplus(samples: Sequence[Output], law: dict[Output, float]) -> float:
    """Pearson's chi-square of samples against a law, in standard deviations above its mean.

    Outputs expected fewer than 5 times are pooled. An output of probability zero makes it infinite.
    """
    counts = Counter(samples)
    if any(output not in law for output in counts):
        return math.inf
    cells: list[tuple[float, int]] = []
    rare_expected, rare_count = 0.0, 0
    for output, chance in law.items():
        expected = chance * len(samples)
        if expected < 5:
            rare_expected, rare_count = rare_expected + expected, rare_count + counts[output]
        else:
            cells.append((expected, counts[output]))
    if rare_expected >= 5:
        cells.append((rare_expected, rare_count))
    freedom = len(cells) - 1
    statistic = sum((n - expected) ** 2 / expected for expected, n in cells)
    return (statistic - freedom) / math.sqrt(2 * freedom)


def noise_level(law: dict[Output, float], count: int) -> float:
    """A bound on the total variation between two runs of `count` samples of one law: its mean and four deviations.

    The difference of an output's two frequencies is nearly normal with variance 2 p (1 - p) / count.
    """
    deviations = [math.sqrt(2 * p * (1 - p) / count) for p in law.values()]
    mean = 0.5 * math.sqrt(2 / math.pi) * math.fsum(deviations)
    variance = 0.25 * (1 - 2 / math.pi) * math.fsum(d * d for d in deviations)
    return mean + 4 * math.sqrt(variance)


def follows(samples: Sequence[Any], law: dict[Any, float], plain: Sequence[dict[Any, float]] = ()) -> bool:
    """Whether samples follow a law: chi-square within 5 deviations, no further from plain runs than these may be.

    Without plain runs: two of ideal samples.
    """
    plain, bound = plain or [sampled(law, len(samples), seed) for seed in (1, 2)], noise_level(law, len(samples))
    assert all(total_variation(a, b) <= bound for a, b in itertools.combinations(plain, 2))
    seen = frequencies(samples)
    return surplus(samples, law) < 5 and all(total_variation(seen, run) <= bound for run in plain)
