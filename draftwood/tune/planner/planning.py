"""Pilot runs, predictions and their check on an engine, within a given time; formulas are in prediction.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, DraftwoodError, RequestError
from draftwood.methods import METHODS, Method
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.artifact import companion
from draftwood.sampling.params import SamplingParams
from draftwood.tune.measuring import forward_seconds
from draftwood.tune.observation import Observation, rate, total
from draftwood.tune.planner.prediction import Prediction, Predictor, by_depth, interval
from draftwood.tune.shapes import Cost, rising

COSTS_UNTIL, PILOTS_UNTIL = 0.12, 0.6  # shares of the time after which costs and pilots are over
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 48)
MAX_DEPTH, MAX_ROWS = 8, 48  # of the settings that are considered
MIN_SPEED_UP = 1.05  # less is not worth a draft model
CHECK_SEED_OFFSET = 1_000_000
MIN_PROMPTS = 2  # prompts, whatever the time says

PLAIN = Method.parse("autoregressive")
CHAIN = Method.parse({"name": "speculative", "gamma": 5})
TREE = Method.parse({"name": "mcsd", "tree": [4, 2, 1, 1]})
BEAMS = Method.parse({"name": "dsbd", "gamma": 3})
EXIT = "eesd"
NOTHING = "there is nothing to plan: name a draft model with --draft, or train an exit layer"

OnProgress = Callable[[str, float], None]  # (current step, share of the time that has passed)


@dataclass(slots=True)
class Choice:
    """The best settings of one kind of method: predicted and measured speed over decoding without drafts."""

    method: Method
    reference: Method
    predicted: Prediction
    interval: tuple[float, float]
    measured: float | None = None
    measured_interval: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """The relative error of the prediction."""
        return None if self.measured is None else self.predicted.speed_up / self.measured - 1

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "method": self.method.as_dict(),
            "reference": self.reference.as_dict(),
            "predicted": self.predicted.speed_up,
            "predicted_interval": list(self.interval),
            "steps_per_round": self.predicted.steps,
            "round_seconds": self.predicted.round_seconds,
            "measured": self.measured,
            "measured_interval": None if self.measured_interval is None else list(self.measured_interval),
            "error": self.error,
        }


@dataclass(slots=True)
class MethodPlan:
    """The best methods on a pair and prompts, with the measurements behind them."""

    choices: list[Choice]
    c: float | None  # cost of a draft forward in target forwards, in the chain's pilot
    acceptance_by_depth: list[float]  # acceptance of the chain by depth
    target_seconds_by_rows: dict[int, float]  # by rows
    draft_seconds_by_rows: dict[int, float]
    plain_tokens_per_second: float
    prompts: int
    checked_prompts: int
    seconds: float
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def best(self) -> Choice | None:
        """The fastest method with one hypothesis, as checked; None: do not speculate."""
        single = [one for one in self.choices if one.reference.name == PLAIN.name]
        worth = [one for one in single if (one.measured or one.predicted.speed_up) >= MIN_SPEED_UP]
        return max(worth, key=lambda one: one.measured or one.predicted.speed_up, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        best = self.best
        return {
            **{key.name: getattr(self, key.name) for key in fields(self)},
            "recommended": None if best is None else best.method.as_dict(),
            "choices": [one.as_dict() for one in self.choices],
        }


@dataclass(slots=True)
class _Runs:
    """Runs of methods in turns, so that a slow moment of the machine affects all alike."""

    engine: Engine
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    max_new_tokens: int
    seed: int
    began: float
    seconds: float
    on_progress: OnProgress
    interrupted: bool = False

    @property
    def elapsed(self) -> float:
        return (perf_counter() - self.began) / self.seconds

    def one(self, method: Method, number: int, limit: int | None = None, again: bool = False) -> Observation:
        """One generation; `again` with another seed than the first time."""
        result = self.engine.generate(
            self.prompts[number % len(self.prompts)],
            method,
            self.params,
            limit or self.max_new_tokens,
            self.seed + number + CHECK_SEED_OFFSET * again,
        )
        return Observation.of(result)

    def interleaved(
        self, methods: Sequence[Method], until: float, max_prompts: int, what: str, again: bool = False
    ) -> list[list[Observation]]:
        """Observations of each method on as many prompts as there is time for, MIN_PROMPTS at least.

        Ctrl-C ends them: prompts that every method has seen are kept, if there is one.
        """
        result: list[list[Observation]] = [[] for _ in methods]
        try:
            for method in methods:  # compiled kernels, templates and caches of new shapes
                self.one(method, 0, 12)
            for number in range(max_prompts):
                start = self.elapsed
                for place in range(len(methods)):
                    at = (place + number) % len(methods)
                    self.on_progress(f"{what}, prompt {number + 1}: {methods[at].name}", min(1.0, self.elapsed))
                    result[at].append(self.one(methods[at], number, again=again))
                if number + 1 >= MIN_PROMPTS and self.elapsed + 0.5 * (self.elapsed - start) > until:
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        complete = min(map(len, result))
        return [each[:complete] for each in result]


def check(target: str | Path | None, drafts: int) -> None:
    """Raise ConfigurationError where a target that is not loaded yet has neither drafts nor an exit layer.

    None is the embedded target.
    """
    if target is None or drafts:
        return
    if not str(target).startswith("hf:"):
        place = checkpoint.locate(target)
        if companion(place if place.is_dir() else place.parent, "exit").is_file():
            return
    raise ConfigurationError(NOTHING)


def plan(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | None = None,
    seconds: float = 60.0,
    max_new_tokens: int = 64,
    seed: int = 0,
    on_progress: OnProgress = lambda what, share: None,
) -> MethodPlan:
    """Measure for about `seconds` which method and settings are fastest on these prompts (token ids).

    An eighth of the time goes to forwards of K rows, a half to pilots of each kind of method, the rest to runs of the
    best predicted settings, in turns with decoding without drafts, on the same prompts with other seeds. Two prompts
    of each are run however long they take. Ctrl-C keeps the results, once every pilot has run a prompt. `on_progress`
    is called with the current step and the share of the time that has passed.
    """
    params = params or SamplingParams()
    if not prompts:
        raise RequestError("there are no prompts to plan for; give at least one")
    runs = _Runs(engine, prompts, params, max_new_tokens, seed, perf_counter(), seconds, on_progress)
    notes: list[str] = []
    exits = _exit(runs, notes)
    if not engine.drafts and exits is None:
        raise ConfigurationError(NOTHING)
    target, draft = _costs(runs)
    pilots = [PLAIN]
    if engine.drafts:
        pilots += [CHAIN, TREE]
    if exits is not None:
        pilots.append(exits)
    beams = None
    if engine.drafts and not params.greedy:
        width = max(1, round(runs.one(BEAMS, 0, 24).width))
        beams = Method.parse({"name": "beam-sampling", "width": width})
        pilots += [beams, BEAMS]
    max_prompts = max(MIN_PROMPTS, 4 * len(prompts))
    result = dict(zip(pilots, runs.interleaved(pilots, PILOTS_UNTIL, max_prompts, "pilot"), strict=True))
    if not result[PLAIN]:
        raise KeyboardInterrupt
    predictor = Predictor(target, draft, result[PLAIN])
    if engine.drafts:
        predictor.chain, predictor.tree = result[CHAIN], result[TREE]
    if beams is not None:
        predictor.beams, predictor.drafted_beams = result[beams], result[BEAMS]
    choices = _choices(predictor, exits, None if exits is None else result[exits], beams, seed)
    checked = 0 if runs.interrupted else _check(runs, choices, max_prompts)
    chains = result.get(CHAIN) or (result[exits] if exits is not None else [])
    return MethodPlan(
        choices,
        c=_c(chains),
        acceptance_by_depth=by_depth(chains),
        target_seconds_by_rows=target.as_dict(),
        draft_seconds_by_rows=draft.as_dict() if engine.drafts else {},
        plain_tokens_per_second=rate(result[PLAIN]),
        prompts=len(result[PLAIN]),
        checked_prompts=checked,
        seconds=perf_counter() - runs.began,
        notes=notes,
        interrupted=runs.interrupted,
    )


def _exit(runs: _Runs, notes: list[str]) -> Method | None:
    """The early exit's pilot, if the target has an exit."""
    if EXIT not in METHODS:
        return None
    method = Method.parse({"name": EXIT, "gamma": 4})
    try:
        runs.engine.method(method)
        runs.one(method, 0, 4)
    except DraftwoodError as error:
        notes.append(f"{EXIT} is left out: {error}")
        return None
    return method


def _costs(runs: _Runs) -> tuple[Cost, Cost]:
    """Seconds of forwards of K rows of target and draft, the first draft where there are several."""
    engine = runs.engine
    lengths = sorted(len(prompt) for prompt in runs.prompts)
    context = lengths[len(lengths) // 2] + runs.max_new_tokens // 2
    costs: list[Cost] = []
    models = [engine.target, *engine.drafts[:1]]
    for number, model in enumerate(models):
        runs.on_progress("cost of K rows", min(1.0, runs.elapsed))
        with torch.inference_mode():
            began = perf_counter()
            forward_seconds(model, MEASURED_ROWS, context, 1)
            once = (perf_counter() - began) / 2
            left = (COSTS_UNTIL * (number + 1) / len(models) - runs.elapsed) * runs.seconds
            repeats = max(2, min(15, int(left / once) - 1))
            costs.append(Cost(rising(forward_seconds(model, MEASURED_ROWS, context, repeats))))
    return costs[0], costs[-1]


def _choices(
    predictor: Predictor,
    exits: Method | None,
    exit_pilot: Sequence[Observation] | None,
    beams: Method | None,
    seed: int,
) -> list[Choice]:
    """The best settings of each kind, with intervals over prompts."""
    count = len(predictor.plain)
    choices: list[Choice] = []

    def choose(method: Method, reference: Method, predict: Callable[[Predictor, Sequence[int]], Prediction]) -> None:
        everyone = range(count)
        value = interval(count, lambda some: predict(predictor.resampled(some), some).speed_up, seed)
        choices.append(Choice(method, reference, predict(predictor, everyone), value))

    if predictor.chain:
        gamma = predictor.best_depth(MAX_DEPTH, predictor.chain, predictor.plain)
        choose(
            Method.parse({"name": "speculative", "gamma": gamma}),
            PLAIN,
            lambda each, some: each.line(gamma, each.chain, each.plain),
        )
        shape = predictor.best_shape(MAX_ROWS, MAX_DEPTH)
        choose(Method.parse({"name": "mcsd", "tree": shape.tree}), PLAIN, lambda each, some: each.shape(shape))
    if exits is not None and exit_pilot is not None:
        pilot = exit_pilot
        depth = predictor.best_depth(MAX_DEPTH, pilot, predictor.plain, True)
        choose(
            Method.parse({"name": EXIT, "gamma": depth}),
            PLAIN,
            lambda each, some: each.line(depth, [pilot[i] for i in some], each.plain, True),
        )
    if beams is not None:
        layers = predictor.best_depth(4, predictor.drafted_beams, predictor.beams)
        choose(
            Method.parse({"name": "dsbd", "gamma": layers}),
            beams,
            lambda each, some: each.line(layers, each.drafted_beams, each.beams),
        )
    return choices


def _check(runs: _Runs, choices: Sequence[Choice], max_prompts: int) -> int:
    """Run the chosen methods in turns with their references; returns the number of prompts."""
    methods = list(dict.fromkeys(each for one in choices for each in (one.reference, one.method)))
    result = dict(zip(methods, runs.interleaved(methods, 1.0, max_prompts, "check", True), strict=True))
    count = len(next(iter(result.values())))
    for one in choices if count else ():
        own, without = result[one.method], result[one.reference]
        one.measured = rate(own) / rate(without)
        one.measured_interval = interval(count, partial(_ratio, own, without), runs.seed)
    return count


def _ratio(own: Sequence[Observation], without: Sequence[Observation], prompts: Sequence[int]) -> float:
    """Measured speed over that without drafts, on some prompts."""
    return rate([own[i] for i in prompts]) / rate([without[i] for i in prompts])


def _c(pilot: Sequence[Observation]) -> float | None:
    sums = total(pilot)
    if not sums.forwards or not sums.verify:
        return None
    return (sums.draft / sums.forwards) / (sums.verify / sums.rounds)
