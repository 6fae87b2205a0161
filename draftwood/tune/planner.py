"""Finds which method is fastest on a pair and prompts: a race of settings of each kind, and a check of its winners."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, zip_longest
from time import perf_counter
from typing import Any

import torch

from draftwood.engine.engine import Engine
from draftwood.errors import DraftwoodError, RequestError
from draftwood.methods import Method
from draftwood.methods.base import trained_head
from draftwood.methods.default import comes_with
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints.artifact import KINDS
from draftwood.runtime.cost import share_read
from draftwood.sampling.params import SamplingParams
from draftwood.tune.measuring import forward_seconds
from draftwood.tune.observation import Observation, rate, total
from draftwood.tune.shapes import rising

COSTS_UNTIL, RACE_UNTIL = 0.12, 0.6  # shares of the time after which costs and the race are over
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 48)
MIN_SPEED_UP = 1.05  # less is not worth a draft model
MIN_PROMPTS = 2  # prompts, whatever the time says
CHECK_SEED_OFFSET = 1_000_000
RESAMPLES, CONFIDENCE = 200, 0.95  # of intervals

PLAIN = Method.parse("autoregressive")
CHAINS = [Method.parse({"name": "speculative", "gamma": gamma}) for gamma in (4, 2, 6, 3, 8, 1)]  # likely ones first
TREE_SHAPES = ([4, 2, 1, 1], [2, 1, 1], [4, 2, 2, 1, 1], [2, 2, 1, 1, 1], [3, 2, 1], [6, 3, 2, 1])
TREES = [Method.parse({"name": "mcsd", "tree": tree}) for tree in TREE_SHAPES]
EXITS = [Method.parse({"name": "eesd", "gamma": gamma}) for gamma in (4, 2, 6, 1)]
BEAMS = [Method.parse({"name": "dsbd", "gamma": gamma}) for gamma in (3, 2, 1, 4)]
LOOKUPS = [Method.parse({"name": "lookup", "drafts": drafts}) for drafts in ("copied", "drawn")]
OWN = {  # what may come with a target's weights -> settings that draft with it
    "mtp": [Method.parse({"name": "mtp", "gamma": gamma}) for gamma in (2, 4, 1)],
    "exit": EXITS,
    "eagle": [Method.parse({"name": "eagle", "gamma": gamma}) for gamma in (4, 2, 6)],
    "dflash": [Method.parse("dflash"), Method.parse({"name": "dflash", "gamma": 4})],
    "heads": [Method.parse("medusa")],
    "skip": [Method.parse({"name": "self-spec", "gamma": gamma}) for gamma in (8, 4)],
}

OnPlanProgress = Callable[[str, float], None]  # (current step, share of the time that has passed)
MethodObservations = dict[Method, list[Observation]]  # one observation per prompt


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed over that of decoding without drafts as raced, the prompt included, with tokens and seconds per round."""

    speed_up: float
    steps: float  # per round: tokens, of beams layers
    round_seconds: float


@dataclass(slots=True)
class Choice:
    """The winner of one kind of method: speed over decoding without drafts in the race, and in the check."""

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
            "predicted_interval": self.interval,
            "steps_per_round": self.predicted.steps,
            "round_seconds": self.predicted.round_seconds,
            "measured": self.measured,
            "measured_interval": self.measured_interval,
            "error": self.error,
        }


@dataclass(slots=True)
class MethodPlan:
    """The best methods on a pair and prompts, with the measurements behind them."""

    choices: list[Choice]
    c: float | None  # cost of a draft forward in target forwards, in the best chain
    acceptance_by_depth: list[float]  # of the best chain
    target_seconds_by_rows: dict[int, float]
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
    seconds: float
    on_progress: OnPlanProgress
    began: float = field(default_factory=lambda: perf_counter())
    interrupted: bool = False

    @property
    def elapsed(self) -> float:
        return (perf_counter() - self.began) / self.seconds

    def one(self, method: Method, number: int, limit: int | None = None, again: bool = False) -> Observation:
        """One generation; `again` with another seed than the first time."""
        prompt = self.prompts[number % len(self.prompts)]
        seed = self.seed + number + CHECK_SEED_OFFSET * again
        return Observation.of(self.engine.generate(prompt, method, self.params, limit or self.max_new_tokens, seed))

    def race(
        self, kinds: Sequence[Sequence[Method]], until: float, what: str, again: bool = False
    ) -> MethodObservations:
        """Observations of the fastest method of each kind, on as many prompts as there is time for.

        All run the first prompt; the slower half of each kind is left out after every prompt. Where half of the time is
        gone before, later ones of a kind are not begun. Ctrl-C ends the race: prompts that every kind has seen are
        kept.
        """
        left, seen = [list(kind) for kind in kinds], MethodObservations()
        try:
            for number in range(max(MIN_PROMPTS, 4 * len(self.prompts))):
                start = self.elapsed
                turn = [method for method in chain(*zip_longest(*left)) if method is not None]
                for method in turn if number % 2 == 0 else turn[::-1]:
                    if number == 0:
                        if self.elapsed > until / 2 and all(method != kind[0] for kind in left):
                            continue
                        self.one(method, 0, 12)  # compiled kernels, templates and caches of new shapes
                    self.on_progress(f"{what}, prompt {number + 1}: {method.name}", min(1.0, self.elapsed))
                    seen.setdefault(method, []).append(self.one(method, number, again=again))
                for kind in left:
                    kind[:] = sorted((one for one in kind if one in seen), key=lambda one: -rate(seen[one]))
                    del kind[(len(kind) + 1) // 2 :]
                if number + 1 >= MIN_PROMPTS and self.elapsed + 0.5 * (self.elapsed - start) > until:
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        winners = [max(kind, key=lambda one: (len(seen.get(one, ())), _speed(seen.get(one)))) for kind in left]
        complete = min(len(seen.get(method, ())) for method in winners)
        return {method: seen.get(method, [])[:complete] for method in winners}


def _speed(observations: Sequence[Observation] | None) -> float:
    return rate(observations) if observations else 0.0


def plan(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | None = None,
    seconds: float = 60.0,
    max_new_tokens: int = 64,
    seed: int = 0,
    on_progress: OnPlanProgress = lambda what, share: None,
) -> MethodPlan:
    """Measure for about `seconds` which method and settings are fastest on these prompts (token ids).

    An eighth of the time goes to forwards of K rows, a half to a race of settings of each kind of method, the rest to
    runs of the winners, in turns with decoding without drafts, on the same prompts with other seeds: who wins a race
    was lucky, too. Two prompts of each are run however long they take. Ctrl-C keeps the results, once every kind has
    run a prompt. `on_progress` is called with the current step and the share of the time that has passed.
    """
    params = params or SamplingParams()
    if not prompts:
        raise RequestError("there are no prompts to plan for; give at least one")
    runs, notes = _Runs(engine, prompts, params, max_new_tokens, seed, seconds, on_progress), list[str]()
    models = [model for model in engine.drafts if trained_head(model) is None]
    kinds: list[tuple[Method, Sequence[Method]]] = [(PLAIN, CHAINS), (PLAIN, TREES)] if models else []
    kinds += [(PLAIN, settings) for settings in _own(runs, notes)]
    kinds.append((PLAIN, LOOKUPS[: 1 if params.greedy else 2]))
    notes += read_by_rows(engine.target)
    costs = _costs(runs)
    if models and not params.greedy:
        width = max(1, round(runs.one(BEAMS[0], 0, 24).width))
        kinds.append((Method.parse({"name": "beam-sampling", "width": width}), BEAMS))
    references = list(dict.fromkeys(reference for reference, _ in kinds))
    raced = runs.race([*([one] for one in references), *(settings for _, settings in kinds)], RACE_UNTIL, "race")
    if not raced[PLAIN]:
        raise KeyboardInterrupt
    winners = [next(one for one in settings if one in raced) for _, settings in kinds]
    choices = [_choice(raced, method, kind[0], seed) for method, kind in zip(winners, kinds, strict=True)]
    checked = 0 if runs.interrupted else _check(runs, choices)
    line = total(raced[winners[0]])
    return MethodPlan(
        choices,
        c=(line.draft / line.forwards) / (line.verify / line.rounds) if line.forwards and line.verify else None,
        acceptance_by_depth=[a / n if n else 0.0 for a, n in zip(line.accepted, line.attempted, strict=True)],
        target_seconds_by_rows=costs[0],
        draft_seconds_by_rows=costs[1] if models else {},
        plain_tokens_per_second=rate(raced[PLAIN]),
        prompts=len(raced[PLAIN]),
        checked_prompts=checked,
        seconds=perf_counter() - runs.began,
        notes=notes,
        interrupted=runs.interrupted,
    )


def _own(runs: _Runs, notes: list[str]) -> list[list[Method]]:
    """Settings for what was trained for the target, where it is there: next to its weights, or given as a draft."""
    drafting = []
    if not runs.engine.drafts:
        notes.append("there is no draft model: name one with --draft, or make one with `draftwood train draft`")
    given = [trained_head(model) for model in runs.engine.drafts]
    for kind, settings in OWN.items():
        if kind in given or comes_with(runs.engine.target, kind):
            try:
                runs.one(settings[0], 0, 4)
            except DraftwoodError as error:
                notes.append(f"{settings[0].name} is left out: {error}")
            else:
                drafting.append(settings)
        elif kind in KINDS:
            notes.append(f"{settings[0].name} is left out: `{KINDS[kind][1]}` makes what it drafts with")
    return drafting


def read_by_rows(model: CausalModel) -> list[str]:
    """A note on what rows read of a mixture of experts; none for other models."""
    experts, share = getattr(model, "routed", (0, 0.0))
    if not experts:
        return []
    whole = model.weight_bytes  # type: ignore[attr-defined]  # which such models have
    rows = ", ".join(f"{count}: {1 - experts / whole * (1 - share_read(share, count)):.0%}" for count in (1, 4, 8, 16))
    return [f"a mixture of experts: share of the weights that K tokens at once read, expected: {rows}"]


def _costs(runs: _Runs) -> list[dict[int, float]]:
    """Seconds of forwards of K rows of the target and of the first draft, if there is one, by K."""
    lengths = sorted(len(prompt) for prompt in runs.prompts)
    context = lengths[len(lengths) // 2] + runs.max_new_tokens // 2
    costs: list[dict[int, float]] = []
    drafts = [model for model in runs.engine.drafts if trained_head(model) is None]
    models = [runs.engine.target, *drafts[:1]]
    for number, model in enumerate(models, 1):
        runs.on_progress("cost of K rows", min(1.0, runs.elapsed))
        with torch.inference_mode():
            began = perf_counter()
            forward_seconds(model, MEASURED_ROWS, context, 1)
            once = (perf_counter() - began) / 2
            left = (COSTS_UNTIL * number / len(models) - runs.elapsed) * runs.seconds
            repeats = max(2, min(15, int(left / once) - 1))
            costs.append(rising(forward_seconds(model, MEASURED_ROWS, context, repeats)))
    return costs


def _choice(seen: MethodObservations, method: Method, reference: Method, seed: int) -> Choice:
    """The winner of a race beside its reference."""
    own, without = seen[method], seen[reference]
    sums = total(own)
    rounds = max(1, sums.rounds)
    predicted = Prediction(
        rate(own) / rate(without),
        sums.steps / max(1, sums.verifications),
        (sums.draft + sums.verify + sums.overhead) / rounds,
    )
    return Choice(method, reference, predicted, interval(len(own), partial(_ratio, own, without), seed))


def _check(runs: _Runs, choices: Sequence[Choice]) -> int:
    """Run the winners in turns with their references; returns the number of prompts."""
    methods = dict.fromkeys(each for one in choices for each in (one.reference, one.method))
    seen = runs.race([[method] for method in methods], 1.0, "check", again=True)
    count = len(next(iter(seen.values())))
    for one in choices if count else ():
        own, without = seen[one.method], seen[one.reference]
        one.measured = rate(own) / rate(without)
        one.measured_interval = interval(count, partial(_ratio, own, without), runs.seed)
    return count


def _ratio(own: Sequence[Observation], without: Sequence[Observation], prompts: Sequence[int]) -> float:
    """Speed over that without drafts, on some prompts."""
    return rate([own[i] for i in prompts]) / rate([without[i] for i in prompts])


def interval(count: int, value: Callable[[Sequence[int]], float], seed: int = 0) -> tuple[float, float]:
    """The middle of a value's bootstrap distribution over `count` prompts: percentiles of resamples."""
    rng = random.Random(seed)
    values = sorted(value([rng.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    cut = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return values[cut], values[-1 - cut]
