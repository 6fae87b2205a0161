"""One request of an engine: what was asked for, checked, and what has been collected of it.

Refuses to know models and how they are shared (engine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from draftwood.core.records import Round
from draftwood.decode import Request, rounds
from draftwood.methods import Method
from draftwood.metrics import Metrics
from draftwood.results import GenerationResult
from draftwood.runtime.executor import Decoding
from draftwood.sampling import SamplingParams
from draftwood.text import Ending


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request."""

    prompt: list[int]
    method: Method
    params: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...]
    top_logprobs: int
    end_tokens: frozenset[int]
    cancelled: Callable[[], bool] | None


@dataclass(slots=True)
class Work:
    """One request under way and what has been collected of it."""

    request: Request
    plan: Plan
    ending: Callable[[Plan], Ending]
    round_: list[Round] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    began: float = 0.0

    def start(self) -> Decoding[Round]:
        """The decoding of this request; its clock starts here."""
        self.began = perf_counter()
        return rounds(self.request)

    def note(self, round_: Round) -> None:
        self.round_.append(round_)
        self.metrics.add(round_)

    def result(self) -> GenerationResult:
        self.metrics.seconds = perf_counter() - self.began
        self.metrics.peak_slots = self.request.target.peak
        round_, ending = self.round_, self.request.ending
        beams = round_[-1].beams if round_ else []
        for beam in beams:
            one = self.ending(self.plan)
            one.feed(beam.tokens)
            cut = ending.reason if beam is beams[0] else None  # of the best only: others need not end as it does
            beam.text, beam.finish_reason = one.text, one.reason or cut or "cancelled"
        return GenerationResult(
            text=ending.text,
            tokens=[token for r in round_ for token in r.tokens],
            logprobs=[value for r in round_ for value in r.logprobs],
            warped_logprobs=[value for r in round_ for value in r.warped_logprobs],
            top_logprobs=[value for r in round_ for value in r.top_logprobs],
            warped_top_logprobs=[value for r in round_ for value in r.warped_top_logprobs],
            kinds=[kind for r in round_ for kind in r.kinds],
            finish_reason=ending.reason or "cancelled",
            metrics=self.metrics,
            rounds=round_,
            prompt_tokens=self.request.prompt,
            seed=self.plan.seed,
            method=self.plan.method.as_dict(),
            sampling=self.request.params.model_dump(mode="json"),
            lossless=self.plan.method.lossless,
            beams=beams,
        )
