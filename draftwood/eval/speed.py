"""Tokens per second of a model on this machine: of prompts, of plain decoding and of methods with drafts, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import mean, stdev
from typing import Any

from draftwood.engine.engine import Engine
from draftwood.engine.metrics import Metrics
from draftwood.errors import RequestError
from draftwood.eval.interleaved import BASELINE
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams

QUESTIONS = (  # to models that are no demonstration
    "Explain in a few sentences how a bicycle stays upright.",
    "Write a Python function that merges two sorted lists, with a docstring.",
    "List five capitals of Europe with their rivers, one a line.",
)


@dataclass(slots=True)
class SpeedTest:
    """One line of the table: tokens and seconds of each run over all prompts, and sums of the rounds."""

    name: str  # such as pp512, tg128
    method: Method
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    emitted: int = 0  # tokens of all runs,
    rounds: int = 0  # rounds that they took,
    drafted: int = 0
    accepted: int = 0

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each run."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def rate(self) -> float:
        return mean(self.rates)

    @property
    def deviation(self) -> float:
        """Standard deviation of the rate over the runs; 0 of one."""
        return stdev(self.rates) if len(self.rates) > 1 else 0.0

    def add(self, metrics: Metrics) -> None:
        """Count the rounds of a request."""
        self.emitted += metrics.emitted
        self.rounds += metrics.rounds
        self.drafted += metrics.drafted
        self.accepted += metrics.accepted

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "test": self.name,
            "method": self.method.as_dict(),
            "tokens_per_second": self.rate,
            "deviation": self.deviation,
            "runs": self.rates,
            "tau": self.emitted / self.rounds,
            "acceptance_rate": self.accepted / self.drafted if self.drafted else None,
        }


def speed_tests(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    methods: Sequence[Method],
    sampling: SamplingParams,
    prompt_tokens: int,
    max_new_tokens: int,
    repeat: int = 3,
    seed: int = 0,
    advance: Callable[[str], None] = lambda name: None,
) -> list[SpeedTest]:
    """A test of `prompt_tokens` of prompt, and one of each method on the prompts' answers; each runs once untimed.

    Tokens of an answer count behind its first round, which has the prompt in it. RequestError where no answer has more.
    """
    plain = Method.parse(BASELINE)
    long = list(islice(cycle(token for prompt in prompts for token in prompt), prompt_tokens))
    reading = SpeedTest(f"pp{prompt_tokens}", plain)
    writing = [SpeedTest(f"tg{max_new_tokens}", method) for method in methods]
    with engine.scheduler.prefixes.off():
        for turn in range(repeat + 1):
            advance("prompt")
            first = engine.generate(long, plain, sampling, 1, seed).metrics
            if turn:
                reading.tokens.append(prompt_tokens)
                reading.seconds.append(first.first_round_seconds)
                reading.add(first)
            for test in writing:
                advance(test.method.name)
                results = [engine.generate(prompt, test.method, sampling, max_new_tokens, seed) for prompt in prompts]
                tokens = sum(len(one.tokens) - len(one.rounds[0].tokens) for one in results)
                if not tokens:
                    raise RequestError("every answer ends with its first round; give other --prompts")
                if turn:
                    test.tokens.append(tokens)
                    test.seconds.append(sum(one.metrics.seconds - one.metrics.first_round_seconds for one in results))
                    for one in results:
                        test.add(one.metrics)
    return [reading, *writing]
