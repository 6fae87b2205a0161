"""Deterministic beam search as pure selection: continuations, the pool of finished hypotheses, when to stop.

Definitions are those of Hugging Face's `generate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from draftwood.core.records import Outcome
from draftwood.errors import ConfigurationError
from draftwood.sampling.rows import Leading

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

    def step(
        self,
        scores: Sequence[float],
        leading: Callable[[int], Sequence[Leading]],
        ends: Callable[[int, int], bool] | None = None,
    ) -> Step:
        """The best continuations of live beams with joint log-likelihoods `scores`: the top `width` live ones.

        `leading(n)` has the n most probable tokens after each beam, or all. Ties go to the lowest beam, then the lowest
        token. `ends` tells whether a token ends a beam's sequence; such a continuation counts if it is among the best
        `width`.
        """
        count = self.width if ends is None else 2 * self.width
        while True:  # until there are enough that do not end
            rows = leading(count)
            step = self._best(scores, rows, count, ends)
            if len(step.live) == self.width or all(len(row.tokens) < count for row in rows):
                return step
            count *= 4

    def _best(
        self,
        scores: Sequence[float],
        rows: Sequence[Leading],
        count: int,
        ends: Callable[[int, int], bool] | None,
    ) -> Step:
        """The step by the best `count` of all; behind these a row may have better ones that it left out."""
        best = [
            (score + log_prob, row, token)
            for row, (score, after) in enumerate(zip(scores, rows, strict=True))
            for token, log_prob in zip(after.tokens, after.log_probs, strict=True)
        ]
        best.sort(key=lambda one: -one[0])
        step = Step([], [], [], [])
        for rank, (score, row, token) in enumerate(best[:count]):
            if score == -math.inf or len(step.live) == self.width:
                break
            if ends is None or not ends(row, token):
                step.live.append((row, token))
                step.live_scores.append(score)
            elif rank < self.width:
                step.ended.append((row, token))
                step.ended_scores.append(score)
        return step

    def score(self, log_likelihood: float, length: int) -> float:
        """Length-penalised score."""
        return float(log_likelihood / length**self.length_penalty)


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
