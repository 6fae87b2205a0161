"""Depth controllers in simulation, without models and without a clock; and what single decisions cost.

Speed is tokens per time of a target forward, of which a draft costs c; plain decoding is 1. The two updates of EESD as
they are printed, Eq. 3-4 and Eq. 8, are compared, too; they fail by design (spec §9.4, §9.5).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from draftwood.core.records import Round
from draftwood.depth import Acceptance, BetaThompson, CalibratedThompson, DepthController, DraftState, Fixed, Load
from draftwood.depth.calibrated import PLACES, Calibration, Seen
from draftwood.depth.settings import parse_depth
from draftwood.sampling.distributions import Streams

MOST = 24  # layers of a round
PREDICTOR_NOISE = 0.15  # standard deviation of what a predictor predicts around the chance it could know


@dataclass(slots=True)
class PrintedAcceptance(Acceptance):
    """EESD Eq. 3-4: r = |Q_v| - 1 successes, n - r failures of n = min(|Q_v| + 1, |Q_d|). With a <= 0 its mean is 0."""

    @property
    def mean(self) -> float:
        return max(0.0, self.a) / (max(0.0, self.a) + max(1e-9, self.b))

    def add(self, round_: Round) -> None:
        r = round_.depth_accepted - 1
        self.accepted += r
        self.rejected += round_.attempted - r


@dataclass(slots=True)
class PrintedSeen(Seen):
    """EESD Eq. 8: as many trials as there are successes."""

    tried: int = field(init=False, default=0)


class PrintedCalibrated(CalibratedThompson):
    """Cali-TS whose running mean is that of Eq. 8, which can only rise to 1."""

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        super().observe(round_, state)
        self.seen.tried += round_.depth_accepted - round_.attempted  # what super() counted, put back to the successes


@dataclass(slots=True)
class Text:
    """Places that accept drafts with chances of their own; `confident`: the draft's confidence is that chance."""

    chance: Callable[[int], float]
    confident: bool = False
    known: Callable[[int], float] | None = None  # what a predictor could know; the chance unless told


def hard_places(seed: int, length: int = 400_000) -> list[float]:
    """0.97 or 0.2 for each place; hard ones come in runs."""
    rng, chances = random.Random(seed), [0.97]
    while len(chances) < length:
        chances.append(0.97 if rng.random() < (0.9 if chances[-1] > 0.5 else 0.3) else 0.2)
    return chances


def scenarios() -> dict[str, tuple[float, Text]]:
    """Name -> (c, text)."""
    hard = hard_places(3)
    drifting = Text(lambda place: 0.3 if place // 200 % 2 else 0.9, known=lambda place: 0.6)
    return {
        "fixed 0.8, c 0.05": (0.05, Text(lambda place: 0.8)),
        "fixed 0.6, c 0.15": (0.15, Text(lambda place: 0.6)),
        "drifting 0.9/0.3, c 0.05": (0.05, drifting),
        "fixed 0.9, c 0.4": (0.40, Text(lambda place: 0.9)),
        "per token, c 0.1": (0.10, Text(lambda place: hard[place % len(hard)], confident=True)),
    }


class Predictor:
    """theta_M of the last draft: the chance of its place, predicted with noise that depends on the place."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.seed, self.place = text, seed, 0

    def __call__(self, state: DraftState, target: object) -> float:
        place = self.place + state.depth - 1
        known = (self.text.known or self.text.chance)(place)
        noise = random.Random(self.seed * 1_000_003 + place).gauss(0, PREDICTOR_NOISE)
        return min(1.0, max(0.0, known + noise))


Make = Callable[[Predictor], DepthController]


def built(setting: str) -> Make:
    """A controller as `depth=` names it."""
    return lambda predict: parse_depth(setting).build(MOST)


def fixed_at(k: int) -> Make:
    """A controller that always drafts k tokens."""
    return lambda predict: Fixed(k)


CONTROLLERS: dict[str, Make] = {
    **{name: built(name) for name in ("confidence", "adaptive-confidence", "beta-ts")},
    "beta-ts, zero": built("beta-ts:zero=true"),
    "beta-ts as printed": lambda predict: BetaThompson(MOST, PrintedAcceptance()),
    "cali-ts": lambda predict: CalibratedThompson(MOST, predict),
    "cali-ts as printed": lambda predict: PrintedCalibrated(MOST, predict, seen=PrintedSeen()),
    **{name: built(name) for name in ("speedup-ts:1.0", "speedup-ts", "speedup-ts:0.9")},
    **{name: built(name) for name in ("optimal-stopping", "optimal-stopping:0.9")},
}
READS_CONFIDENCE = ("confidence", "adaptive-confidence")  # and nothing else: idle where it tells nothing
FAILING = ("beta-ts as printed", "cali-ts as printed")


def a_round(accepted: int, drafted: int, c: float) -> Round:
    """The record of a round of a chain, a target forward taking one second."""
    attempted = min(accepted + 1, drafted)
    numbers = (drafted, drafted, accepted, accepted, attempted, c * drafted, 1.0, 0.0, 0.0, drafted + 1.0, drafted)
    return Round(0, [], [], [], [], [], [], *numbers, drafted, [], [], [], [], [])


def sure(chance: float, depth: int) -> DraftState:
    """A layer whose draft was as probable as it says."""
    return DraftState(depth, [0], torch.tensor([[math.log(chance), math.log(1 - chance)]]), [(0, 0)])


def simulate(make: Make, text: Text, c: float, tokens: int, seed: int) -> tuple[float, float]:
    """(speed, drafts per round)."""
    rng, streams, predict = random.Random(seed), Streams(seed), Predictor(text, seed)
    controller = make(predict)
    made = rounds = drafts = 0
    while made < tokens:
        streams.at(made)
        predict.place = made
        controller.start(streams, Load(lambda rows: c, lambda rows: 1.0))
        state, depth = DraftState(0), 0
        while controller.deeper(state):
            depth += 1
            state = sure(text.chance(made + depth - 1), depth) if text.confident else DraftState(depth)
        accepted = 0
        while accepted < depth and rng.random() < text.chance(made + accepted):
            accepted += 1
        controller.observe(a_round(accepted, depth, c))
        made, rounds, drafts = made + accepted + 1, rounds + 1, drafts + depth
    return made / (rounds + c * drafts), drafts / rounds


class Controllers(Kind):
    """So many simulated tokens with each seed, and so many timed decisions of models `width` wide."""

    tokens: int = 40_000
    seeds: int = 3
    decisions: int = 2000
    vocabulary: int = 2048
    width: int = 2048

    def measure(self, bench: Bench) -> dict[str, Rows]:
        rows, fixed = [], []
        for name, (c, text) in bench.track(scenarios().items(), "controllers"):
            ks = {k: self.speeds(fixed_at(k), text, c) for k in range(13)}
            best = max(ks, key=lambda k: ks[k]["speed"])
            found = {"best fixed": {**ks[best], "best_k": best}}
            for controller, make in CONTROLLERS.items():
                if text.confident or controller not in READS_CONFIDENCE:
                    found[controller] = self.speeds(make, text, c)
            fixed += [{"scenario": name, "k": k, "speed": each["speed"]} for k, each in ks.items()]
            rows += [
                {"scenario": name, "c": c, "controller": each, **row, "to_best": row["speed"] / ks[best]["speed"]}
                for each, row in found.items()
            ]
        return {"speeds": rows, "fixed": fixed, "decisions": self.times()}

    def speeds(self, make: Make, text: Text, c: float) -> dict[str, float]:
        """Mean and standard deviation over the seeds."""
        found = [simulate(make, text, c, self.tokens, seed) for seed in range(self.seeds)]
        rates = [speed for speed, _ in found]
        return {
            "speed": statistics.mean(rates),
            "deviation": statistics.pstdev(rates),
            "drafts_per_round": statistics.mean(depth for _, depth in found),
        }

    def times(self) -> Rows:
        """Microseconds of a controller's own work: per decision, and per round of start and observe."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(1, self.vocabulary, generator=generator) * 3
        state = torch.randn(1, self.width, generator=generator)
        of_target, zeros = torch.randn(self.width, generator=generator), torch.zeros(self.width)
        model = Calibration(torch.zeros(PLACES, self.width), zeros, torch.full((PLACES,), 9.0), zeros)
        settings = ["fixed", "confidence:0", "adaptive-confidence:0", "entropy:99", "beta-ts:a=1e6,b=1"]
        settings += ["speedup-ts:a=200,b=2,cost=0.02", "optimal-stopping:cost=0"]  # none of them stops
        made = {name.partition(":")[0]: parse_depth(name).build(MOST) for name in settings}
        made["cali-ts"] = CalibratedThompson(MOST, model.chance, 0.05)
        rows: Rows = []
        with torch.inference_mode():
            for name, controller in made.items():
                layers = [DraftState(0)] + [DraftState(i, [i], logits, [(0, 7)], state) for i in range(1, 5)]
                streams, deciding, around = Streams(1), [], []
                round_ = a_round(3, 4, 0.05)
                for number in range(self.decisions):
                    streams.at(number)
                    began = perf_counter()
                    controller.start(streams)
                    started = perf_counter()
                    for layer in layers:
                        controller.deeper(layer)
                    asked = perf_counter()
                    controller.observe(round_, of_target)
                    deciding.append(1e6 * (asked - started) / len(layers))
                    around.append(1e6 * (perf_counter() - asked + started - began))
                one, rest = statistics.median(deciding), statistics.median(around)
                rows.append(
                    {"controller": name, "decision_us": one, "round_us": rest, "five_layers_us": 5 * one + rest}
                )
        return rows
