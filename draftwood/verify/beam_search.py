"""Deterministic beam search as pure selection: continuations, the pool of finished hypotheses, when to stop.

Definitions are those of Hugging Face's `generate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
from torch import Tensor

from draftwood.core.records import Outcome
from draftwood.errors import ConfigurationError
from draftwood.sampling.truncation import leading

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class Step:
    """Continuations best first: `live` (row, token) with joint log-likelihoods, and those `ended` among the best W."""

    live: list[Outcome]
    live_scores: list[float]
    ended: list[Outcome]
    ended_scores: list[float]


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Settings of beam search; a score is log-likelihood / length^length_penalty, the end token counted in length.

    early_stopping True stops with `width` hypotheses; False when the best live beam at its present length cannot beat
    the worst of them; "never" assumes for a positive penalty that it still grows to `max_length`.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    n_best: int = 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigurationError(f"a beam width must be at least 1, not {self.width}")
        if not 1 <= self.n_best <= self.width:
            raise ConfigurationError(f"n_best must lie between 1 and the width {self.width}, not {self.n_best}")

    def step(self, scores: Tensor, log_probs: Tensor, ends: Callable[[int, int], bool] | None = None) -> Step:
        """The best continuations of live beams: scores [A] and log-probabilities [A, V] give the top `width` live.

        Ties go to the lowest beam, then the lowest token. `ends` tells whether a token ends a beam's sequence; such a
        continuation counts if it is among the best `width`.
        """
        vocab = log_probs.shape[-1]
        count, total = self.width if ends is None else 2 * self.width, log_probs.numel()
        while True:  # until there are enough that do not end
            count = min(count, total)
            places, values = _best(scores, log_probs, count)
            step = Step([], [], [], [])
            for rank, (place, score) in enumerate(zip(places, values, strict=True)):
                outcome = divmod(place, vocab)
                if score == -math.inf or len(step.live) == self.width:
                    return step
                if ends is None or not ends(*outcome):
                    step.live.append(outcome)
                    step.live_scores.append(score)
                elif rank < self.width:
                    step.ended.append(outcome)
                    step.ended_scores.append(score)
            if len(step.live) == self.width or count == total:
                return step
            count *= 4

    def score(self, log_likelihood: float, length: int) -> float:
        """Length-penalised score."""
        return float(log_likelihood / length**self.length_penalty)


def _best(scores: Tensor, log_probs: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The places of the `count` best continuations in scores[:, None] + log_probs [A, V], best first.

    All that tie with the last one are among them; of equals the first comes first. Their scores are float64. Each row
    gives its own best, with all that tie with the last of these.
    """
    vocab, start = log_probs.shape[-1], scores.double().tolist()
    chosen, reached = [], []
    for row, logs in enumerate(log_probs.cpu().numpy()):
        places = leading(logs, count)
        chosen.append(places + row * vocab)
        reached.append(logs[places].astype(np.float64) + start[row])
    where, values = np.concatenate(chosen), np.concatenate(reached)
    values[np.isnan(values)] = -np.inf
    order = np.argsort(-values, kind="stable")
    last = values[order[:count]][-1:]
    order = order[values[order] >= last]  # behind these a row may have better ones that it left out
    return where[order].tolist(), values[order].tolist()


def layer_stands(live: Collection[Outcome], drafted: Collection[Outcome]) -> bool:
    """Speculative acceptance: all live continuations of the target are drafted; else the round ends with them."""
    return bool(live) and set(live) <= set(drafted)


@dataclass(slots=True)
class Pool(Generic[Handle]):
    """The best `width` finished hypotheses as (score, log-likelihood, handle), best first; the earlier among ties."""

    search: BeamSearch
    finished: list[tuple[float, float, Handle]] = field(default_factory=list)

    def add(self, log_likelihood: float, length: int, handle: Handle) -> None:
        """Offer a hypothesis of `length` generated tokens; the worst falls out when there are more than `width`."""
        self.finished.append((self.search.score(log_likelihood, length), log_likelihood, handle))
        self.finished.sort(key=lambda entry: -entry[0])
        del self.finished[self.search.width :]

    def done(self, live_scores: Sequence[float], length: int, max_length: int) -> bool:
        """Whether no live beam of `length` generated tokens can still matter."""
        if not live_scores:
            return True
        if len(self.finished) < self.search.width:
            return False
        if self.search.early_stopping is True:
            return True
        grows = self.search.early_stopping == "never" and self.search.length_penalty > 0
        best = self.search.score(max(live_scores), max_length if grows else length)
        return best <= self.finished[-1][0]

    def best(self) -> list[tuple[float, float, Handle]]:
        """The n best hypotheses."""
        return self.finished[: self.search.n_best]
