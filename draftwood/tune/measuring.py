"""Measures methods on an engine, for tuning: forwards of K rows, and runs interleaved with plain decoding."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.shape import Shape
from draftwood.core.topology import trunk_node
from draftwood.engine.engine import Engine
from draftwood.engine.results import GenerationResult
from draftwood.errors import ConfigurationError, RequestError
from draftwood.methods import Method
from draftwood.methods.base import without_heads
from draftwood.models.base import CausalModel
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.sampling.params import SamplingParams
from draftwood.tune.observation import Observation, total
from draftwood.tune.search import Guided
from draftwood.tune.shapes import Cost, rising
from draftwood.tune.spaces import GridSearch, TPESearch

QUALITY_PENALTY = 20.0  # speed-up that a nat per token is worth, beyond the tolerated loss of quality
EXPLORATION_BONUS = 0.1  # of methods that ran seldom, as in search.Guided

log = logging.getLogger(__name__)


def row_counts(limit: int) -> list[int]:
    """1, 2, 4, 8, ... and the limit itself."""
    counts = [1]
    while counts[-1] * 2 < limit:
        counts.append(counts[-1] * 2)
    return counts if limit == 1 else [*counts, limit]


def forward_seconds(
    model: CausalModel, counts: Sequence[int], context: int, repeats: int = 21, patience: float = 5.0
) -> dict[int, float]:
    """Median seconds of a forward of so many rows behind `context` cached tokens.

    Counts are interleaved; a first pass does not count, and `repeats` become fewer, but 3, where they take more than
    `patience` seconds. On CUDA the clock waits for the device.
    """
    context = max(1, min(context, model.context - 2 - max(counts) // model.vocab_size))
    cache = model.new_cache(context + max(counts) + 8)
    session = Session(model, cache)
    forest = Forest(trunk=[0] * context, prompt=context)
    for node in range(max(counts)):  # siblings, and children where tokens run out
        forest.add(node // model.vocab_size + TRUNK, node % model.vocab_size)
    times: dict[int, list[float]] = {count: [] for count in counts}
    try:
        execute([Run(session, forest, [trunk_node(context - 1)])])  # brings all of the trunk into the cache
        spent = 0.0
        for repeat in range(repeats + 1):
            if repeat > 3 and spent > patience:
                break
            for count in counts:
                (answer,) = execute([Run(session, forest, range(count))])
                session.commit([], [], forest)
                spent += answer.seconds
                if repeat:
                    times[count].append(answer.seconds)
    finally:
        session.close()
    return {count: median(each) for count, each in times.items()}


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts and sampling settings that methods are measured on."""

    prompts: Sequence[Sequence[int]]  # token ids
    sampling: SamplingParams
    max_new_tokens: int = 64
    seed: int = 0


@dataclass(slots=True)
class Trial:
    """A measured run: one method on all prompts, in turns with plain decoding on the same prompts and seeds."""

    method: dict[str, Any]
    own: Observation = field(default_factory=Observation)
    plain: Observation = field(default_factory=Observation)
    gains: list[float] = field(default_factory=list)  # per prompt: log-likelihood per token above plain decoding's
    predicted: float | None = None  # the speed-up that was expected before the run

    @property
    def speed_up(self) -> float:
        """Tokens per second over those of plain decoding: a slow moment of the machine hits both."""
        return (self.own.tokens / self.own.seconds) / (self.plain.tokens / self.plain.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "method": self.method,
            "speed_up": self.speed_up,
            "tokens_per_second": self.own.tokens / self.own.seconds,
            "plain_tokens_per_second": self.plain.tokens / self.plain.seconds,
            "tau": self.own.tokens / self.own.verifications,
            "gain_in_log_likelihood_per_token": fmean(self.gains),
            "predicted": self.predicted,
            "own": asdict(self.own),
            "plain": asdict(self.plain),
        }


@dataclass(slots=True)
class TuningBench:
    """Runs methods on a workload, in turns with plain decoding, and keeps every finished run."""

    engine: Engine
    workload: Workload
    plain: Method
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.workload.prompts:
            raise RequestError("there are no prompts to measure on; give at least one")

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain decoding over all runs."""
        plain = total(one.plain for one in self.trials)
        return plain.tokens / plain.seconds

    def run(self, method: Method, predicted: float | None = None, repeat: int | None = None) -> Trial:
        """Measure a method. Its `repeat`-th run (by default counted here) has seeds of its own, plain decoding too."""
        if repeat is None:
            repeat = sum(trial.method == method.as_dict() for trial in self.trials)
        seed = self.workload.seed + repeat
        if repeat == 0:  # of new shapes: compiled kernels, templates, caches
            for each in (self.plain, method):
                self._decode(self.workload.prompts[0], each, seed, 8)
        trial = Trial(method.as_dict(), predicted=predicted)
        seen: dict[Method, list[Observation]] = {method: [], self.plain: []}
        for i, prompt in enumerate(self.workload.prompts):
            quality: dict[Method, float] = {}
            for each in (self.plain, method) if i % 2 else (method, self.plain):
                result = self._decode(prompt, each, seed, self.workload.max_new_tokens)
                seen[each].append(Observation.of(result))
                quality[each] = fmean(result.logprobs)
            trial.gains.append(quality[method] - quality[self.plain])
        trial.own, trial.plain = total(seen[method]), total(seen[self.plain])
        self.trials.append(trial)
        log.info("run %d: %s, speed-up %.3f", len(self.trials), trial.method, trial.speed_up)
        return trial

    def _decode(self, prompt: Sequence[int], method: Method, seed: int, limit: int) -> GenerationResult:
        with self.engine.scheduler.prefixes.off():
            return self.engine.generate(prompt, method, self.workload.sampling, limit, seed)

    def costs(self, rows: int) -> tuple[Cost, Cost]:
        """Seconds of forwards of up to `rows` rows of the target and of its (first) draft, behind a usual context."""
        usual = int(median(len(prompt) for prompt in self.workload.prompts)) + self.workload.max_new_tokens // 2
        target, draft = (
            Cost(rising(forward_seconds(model, row_counts(rows), usual)))
            for model in (self.engine.target, without_heads(self.engine.drafts)[0])
        )
        return target, draft


def tree_method(shape: Shape, options: dict[str, Any] | None = None) -> Method:
    """The mcsd method of a shape, with further options."""
    return Method.parse({**(options or {}), "name": "mcsd", "tree": shape.tree, "initial": shape.initial})


def guide(
    bench: TuningBench,
    search: Guided,
    budget: int,
    options: dict[str, Any] | None = None,
    on_progress: Callable[[int, Method], None] = lambda run, method: None,
) -> None:
    """Measure `budget` runs of the shapes that a search asks for; `search.ranked()` has the results."""
    for number in range(budget):
        shape = search.ask()
        method = tree_method(shape, options)
        on_progress(number, method)
        trial = bench.run(method, search.predicted(shape) if search.runs else None)
        search.tell(shape, trial.own, trial.plain)


@dataclass(slots=True)
class Standing:
    """All runs of one method."""

    method: Method
    trials: list[Trial] = field(default_factory=list)

    @property
    def speed_up(self) -> float:
        """Geometric mean over runs."""
        return math.exp(fmean(math.log(trial.speed_up) for trial in self.trials))

    @property
    def gain(self) -> float:
        """Mean over prompts and runs of the log-likelihood per token under the target, above that of plain decoding."""
        return fmean(gain for trial in self.trials for gain in trial.gains)

    @property
    def gain_error(self) -> float:
        """Standard error of `gain`; 0 where there is a single text."""
        gains = [gain for trial in self.trials for gain in trial.gains]
        return stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0

    @property
    def tau(self) -> float:
        """Tokens per target forward."""
        own = total(trial.own for trial in self.trials)
        return own.tokens / own.verifications

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "method": self.method.as_dict(),
            "lossless": self.method.lossless,
            "runs": len(self.trials),
            "speed_up": self.speed_up,
            "predicted": self.trials[0].predicted,
            "tau": self.tau,
            "gain_in_log_likelihood_per_token": self.gain,
            "gain_error": self.gain_error,
        }


def standings(trials: Sequence[Trial], tolerance: float = math.inf) -> list[Standing]:
    """Methods, best first: the fastest of those that lose at most `tolerance` of likelihood, then the least bad."""
    by_method: dict[Method, Standing] = {}
    for trial in trials:
        method = Method.parse(trial.method)
        by_method.setdefault(method, Standing(method)).trials.append(trial)

    def order(one: Standing) -> tuple[float, float]:
        short = max(0.0, -one.gain - tolerance)
        return short, -one.speed_up

    return sorted(by_method.values(), key=order)


def explore(
    bench: TuningBench,
    name: str,
    search: GridSearch | TPESearch,
    budget: int,
    options: Mapping[str, Any] | None = None,
    tolerance: float = math.inf,
    fits: Callable[[Method], bool] = lambda method: True,
    on_progress: Callable[[int, Method], None] = lambda run, method: None,
) -> None:
    """Measure `budget` runs of a method with the options that a search asks for, then the best ones again.

    A search without an end of its own gets three quarters of the runs. The score of a run is its speed-up, less a
    penalty where the mean log-likelihood per token is more than `tolerance` below that of plain decoding.
    `bench.trials` has the results.
    """
    for number in range(budget if isinstance(search, GridSearch) else budget - budget // 4):
        method = _next(name, search, options or {}, fits)
        if method is None:
            break
        on_progress(number, method)
        trial = bench.run(method)
        short = max(0.0, -fmean(trial.gains) - tolerance)
        search.tell(trial.speed_up - QUALITY_PENALTY * short)
    while len(bench.trials) < budget:
        ranked = standings(bench.trials, tolerance)
        worst = max(0.0, -ranked[0].gain - tolerance)  # 0 as soon as one is good enough
        good = [one for one in ranked if max(0.0, -one.gain - tolerance) <= worst]
        # credit for few runs, as in search.Guided
        again = max(good, key=lambda one: one.speed_up * math.exp(EXPLORATION_BONUS / math.sqrt(len(one.trials))))
        on_progress(len(bench.trials), again.method)
        bench.run(again.method)


def _next(
    name: str, search: GridSearch | TPESearch, options: Mapping[str, Any], fits: Callable[[Method], bool]
) -> Method | None:
    """The next valid method that a search asks for; None at its end. Values that do not go together are skipped."""
    for _ in range(300):
        values = search.ask()
        if values is None:
            return None
        try:
            method = Method.parse({**options, **values, "name": name})
        except ConfigurationError as error:
            refused: ConfigurationError | None = error
        else:
            if fits(method):
                return method
            refused = None
        search.tell(None)
    raise refused or ConfigurationError(f"no options of {name} fit the rows that are allowed; allow more")
