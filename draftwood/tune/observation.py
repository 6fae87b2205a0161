"""Figures of one generation: tokens, seconds, and how often drafts were judged and accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from draftwood.engine.results import GenerationResult


@dataclass(slots=True)
class Observation:
    """One generation, or the sums of several. Figures of rounds leave out the first, which contains the prompt."""

    seconds: float = 0.0  # wall time, the prompt included
    tokens: int = 0
    steps: int = 0  # tokens; of beams layers
    verifications: int = 0  # rounds, the first one included
    rounds: int = 0
    draft: float = 0.0  # seconds in forwards of the draft
    forwards: int = 0  # of the draft
    verify: float = 0.0  # seconds in forwards of the target
    overhead: float = 0.0  # all other seconds: sampling, bookkeeping, the interpreter
    met: list[list[int]] = field(default_factory=list)  # [layer][place], see `Metrics`
    taken: list[list[int]] = field(default_factory=list)
    attempted: list[int] = field(default_factory=list)  # by layer
    accepted: list[int] = field(default_factory=list)
    width: float = 0.0  # of beams, the mean

    @classmethod
    def of(cls, result: GenerationResult) -> Observation:
        """The figures of a result."""
        metrics, later = result.metrics, result.rounds[1:]
        draft = math.fsum(round_.draft_seconds for round_ in later)
        verify = math.fsum(round_.verify_seconds for round_ in later)
        return cls(
            seconds=metrics.seconds,
            tokens=len(result.tokens),
            steps=metrics.layers or metrics.emitted,
            verifications=metrics.rounds,
            rounds=len(later),
            draft=draft,
            forwards=sum(round_.draft_forwards for round_ in later),
            verify=verify,
            overhead=math.fsum(round_.seconds for round_ in later) - draft - verify,
            met=metrics.met_at,
            taken=metrics.taken_at,
            attempted=metrics.attempted_at,
            accepted=metrics.accepted_at,
            width=metrics.mean_width,
        )


def added(values: Sequence[Any]) -> Any:
    """The sum of numbers, or of lists place by place; lists may differ in length and hold lists."""
    if values and isinstance(values[0], list):
        return [added([each for each in column if each is not None]) for column in zip_longest(*values)]
    return sum(values)


def total(observations: Iterable[Observation]) -> Observation:
    """The sums of all figures."""
    each = list(observations) or [Observation()]
    return Observation(**{key.name: added([getattr(one, key.name) for one in each]) for key in fields(Observation)})


def rate(observations: Iterable[Observation]) -> float:
    """Steps per second of wall time."""
    sums = total(observations)
    return sums.steps / sums.seconds
