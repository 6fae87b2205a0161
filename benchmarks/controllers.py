"""Depth controllers on synthetic acceptance: a simulation, without models and without a clock.

Speed is tokens per time of a target forward, which a draft costs c of: plain decoding is 1. Acceptance is the same for
every token, drifts, or is that of each token, which the draft's confidence tells. Beside the controllers stand the two
updates of EESD as they are printed, Eq. 3-4 and Eq. 8, which fail by design. --micro times single decisions instead.

python benchmarks/controllers.py [--tokens 40000] [--name controllers] [--micro]
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import record
import torch

from draftwood.depth import (
    Acceptance,
    AdaptiveConfidence,
    BetaThompson,
    CalibratedThompson,
    Confidence,
    DepthController,
    DraftCost,
    Entropy,
    Fixed,
    Growth,
    OptimalStopping,
    SpeedupThompson,
)
from draftwood.depth.calibrated import PLACES, Calibration, Seen
from draftwood.results import Round
from draftwood.sampling import Streams

MOST = 24  # layers of a round
SEEDS = 3
PREDICTOR_NOISE = 0.15  # standard deviation of what a predictor predicts around the chance it could know


# -- the updates as printed (spec §9.4, §9.5) --------------------------------------------------------------------------


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

    def observe(self, round_: Round) -> None:
        super().observe(round_)
        self.seen.tried += round_.depth_accepted - round_.attempted  # what super() counted, put back to the successes


# -- what is simulated -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """Places that accept drafts with chances of their own; `confident`: the draft's confidence is that chance."""

    chance: Callable[[int], float]
    confident: bool = False
    known: Callable[[int], float] | None = None  # what a predictor could know; default: the chance


def drifting(place: int) -> float:
    return 0.3 if place // 200 % 2 else 0.9


def hard_places(seed: int, length: int = 400_000) -> list[float]:
    """0.97 or 0.2 for each place; hard ones come in runs."""
    rng, chances = random.Random(seed), [0.97]
    while len(chances) < length:
        chances.append(0.97 if rng.random() < (0.9 if chances[-1] > 0.5 else 0.3) else 0.2)
    return chances


HARD = hard_places(3)
SCENARIOS: dict[str, tuple[float, Text]] = {
    "fixed 0.8, c 0.05": (0.05, Text(lambda place: 0.8)),
    "fixed 0.6, c 0.15": (0.15, Text(lambda place: 0.6)),
    "drifting 0.9/0.3, c 0.05": (0.05, Text(drifting, known=lambda place: 0.6)),
    "fixed 0.9, c 0.4": (0.40, Text(lambda place: 0.9)),
    "per token, c 0.1": (0.10, Text(lambda place: HARD[place % len(HARD)], confident=True)),
}
SPEC: dict[str, dict[str, float]] = {  # spec §7
    "fixed 0.8, c 0.05": {"best fixed": 3.10, "beta-ts": 2.56, "speedup-ts:1.0": 3.10, "speedup-ts:0.9": 3.03},
    "fixed 0.6, c 0.15": {"best fixed": 1.51, "beta-ts": 1.42, "speedup-ts:1.0": 1.51, "speedup-ts:0.9": 1.48},
    "drifting 0.9/0.3, c 0.05": {"best fixed": 1.76, "beta-ts": 1.66, "speedup-ts:1.0": 1.76, "speedup-ts:0.9": 1.88},
    "fixed 0.9, c 0.4": {"best fixed": 1.59, "beta-ts": 1.22, "speedup-ts:1.0": 1.58, "speedup-ts:0.9": 1.54},
}


class Predictor:
    """theta_M of the last draft: the chance of its place, predicted with noise that depends on the place."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.seed, self.place = text, seed, 0

    def __call__(self, growth: Growth, target: object) -> float:
        place = self.place + growth.depth - 1
        known = (self.text.known or self.text.chance)(place)
        noise = random.Random(self.seed * 1_000_003 + place).gauss(0, PREDICTOR_NOISE)
        return min(1.0, max(0.0, known + noise))


Make = Callable[[float, Predictor], DepthController]
CONTROLLERS: dict[str, Make] = {
    "confidence": lambda c, predict: Confidence(MOST),
    "adaptive-confidence": lambda c, predict: AdaptiveConfidence(MOST),
    "beta-ts": lambda c, predict: BetaThompson(MOST),
    "beta-ts, zero": lambda c, predict: BetaThompson(MOST, zero=True),
    "beta-ts as printed": lambda c, predict: BetaThompson(MOST, PrintedAcceptance()),
    "cali-ts": lambda c, predict: CalibratedThompson(MOST, predict),
    "cali-ts as printed": lambda c, predict: PrintedCalibrated(MOST, predict, seen=PrintedSeen()),
    "speedup-ts:1.0": lambda c, predict: SpeedupThompson(MOST, Acceptance()),
    "speedup-ts": lambda c, predict: SpeedupThompson(MOST),
    "speedup-ts:0.9": lambda c, predict: SpeedupThompson(MOST, Acceptance(discount=0.9)),
    "optimal-stopping": lambda c, predict: OptimalStopping(MOST),
    "optimal-stopping:0.9": lambda c, predict: OptimalStopping(MOST, 0.9),
}
READS_CONFIDENCE = ("confidence", "adaptive-confidence")  # and nothing else: idle where it tells nothing
FAILING = ("beta-ts as printed", "cali-ts as printed")


def a_round(accepted: int, drafted: int, c: float) -> Round:
    """The record of a round of a chain, a target forward taking one second."""
    attempted = min(accepted + 1, drafted)
    numbers = (drafted, drafted, accepted, accepted, attempted, c * drafted, 1.0, 0.0, 0.0, drafted + 1.0, drafted)
    return Round(0, [], [], [], [], [], [], *numbers, drafted, [], [], [], [], [])


def sure(chance: float, depth: int) -> Growth:
    """A layer whose draft was as probable as it says."""
    return Growth(depth, [0], torch.tensor([[math.log(chance), math.log(1 - chance)]]), [(0, 0)])


def simulate(controller: DepthController, predict: Predictor, text: Text, c: float, tokens: int, seed: int) -> Any:
    """(speed, drafts per round)."""
    rng, streams = random.Random(seed), Streams(seed)
    made = rounds = drafts = 0
    while made < tokens:
        streams.at(made)
        predict.place = made
        controller.start(streams)
        growth, depth = Growth(0), 0
        while controller.deeper(growth):
            depth += 1
            growth = sure(text.chance(made + depth - 1), depth) if text.confident else Growth(depth)
        accepted = 0
        while accepted < depth and rng.random() < text.chance(made + accepted):
            accepted += 1
        controller.observe(a_round(accepted, depth, c))
        made, rounds, drafts = made + accepted + 1, rounds + 1, drafts + depth
    return made / (rounds + c * drafts), drafts / rounds


def speeds(make: Make, text: Text, c: float, tokens: int) -> dict[str, float]:
    """Mean and standard deviation over the seeds."""
    found = []
    for seed in range(SEEDS):
        predict = Predictor(text, seed)
        found.append(simulate(make(c, predict), predict, text, c, tokens, seed))
    rates = [speed for speed, _ in found]
    return {
        "speed": statistics.mean(rates),
        "deviation": statistics.pstdev(rates),
        "drafts_per_round": statistics.mean(depth for _, depth in found),
    }


def table(tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(scenario, what each controller reaches in it)."""
    for name, (c, text) in SCENARIOS.items():
        sweep = {k: speeds(lambda c, predict, k=k: Fixed(k), text, c, tokens) for k in range(13)}
        best = max(sweep, key=lambda k: sweep[k]["speed"])
        row: dict[str, Any] = {
            "c": c,
            "best_k": best,
            "fixed": {k: entry["speed"] for k, entry in sweep.items()},
            "spec": SPEC.get(name, {}),
            "controllers": {"best fixed": sweep[best]},
        }
        for controller, make in CONTROLLERS.items():
            if text.confident or controller not in READS_CONFIDENCE:
                row["controllers"][controller] = speeds(make, text, c, tokens)
        yield name, row


def draw(results: dict[str, dict[str, Any]], path: str) -> None:
    """Bars: speed over the best fixed K's, scenario by scenario; hatched where the update is the printed one."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "controllers", "svg.fonttype": "none"}
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(results), 1, figsize=(9, 2.2 * len(results)), sharex=True)
    names = ["best fixed", *CONTROLLERS]
    for ax, (scenario, row) in zip(axes, results.items(), strict=True):
        best = row["controllers"]["best fixed"]["speed"]
        for i, name in enumerate(names):
            entry = row["controllers"].get(name)
            if entry is None:
                ax.annotate("n/a", (i, 0.03), ha="center", fontsize=7, color="#718096")
                continue
            wrong, fixed = name in FAILING, name == "best fixed"
            colour = "#c53030" if wrong else "#4a5568" if fixed else "#2b6cb0"
            ax.bar(i, entry["speed"] / best, color=colour, alpha=0.8, hatch="//" if wrong else None, width=0.7)
            ax.annotate(f"{entry['speed']:.2f}", (i, entry["speed"] / best), ha="center", va="bottom", fontsize=7)
        ax.axhline(1, color="#4a5568", linewidth=0.7)
        ax.set_ylim(0, 1.45)
        ax.set_title(f"{scenario}: best fixed K = {row['best_k']}", fontsize=9, loc="left")
        ax.set_ylabel("of best fixed", fontsize=8)
    axes[-1].set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
    figure.suptitle(
        "Depth controllers in simulation: tokens per time of a target forward (red: as printed)", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


# -- what a decision costs ---------------------------------------------------------------------------------------------


def decisions(vocabulary: int, width: int, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of a controller's own work: per decision, and per round of start and observe."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, vocabulary, generator=generator) * 3
    state = torch.randn(1, width, generator=generator)
    of_target = torch.randn(width, generator=generator)
    model = Calibration(torch.zeros(PLACES, width), torch.zeros(width), torch.full((PLACES,), 9.0), torch.zeros(width))
    made: dict[str, DepthController] = {
        "fixed": Fixed(MOST),
        "confidence": Confidence(MOST, 0.0),
        "adaptive-confidence": AdaptiveConfidence(MOST, 0.0),
        "entropy": Entropy(MOST, 99.0),
        "beta-ts": BetaThompson(MOST, Acceptance(1e6, 1.0)),
        "cali-ts": CalibratedThompson(MOST, model.chance, 0.05),
        "speedup-ts": SpeedupThompson(MOST, Acceptance(200.0, 2.0), DraftCost(0.02)),
        "optimal-stopping": OptimalStopping(MOST, cost=DraftCost(0.0)),
    }
    found = {}
    round_ = a_round(3, 4, 0.05)
    with torch.inference_mode():
        for name, controller in made.items():
            layers = [Growth(0)] + [Growth(i, [i], logits, [(0, 7)], state) for i in range(1, 5)]
            streams = Streams(1)
            decided, round_ = [], []
            for number in range(repeats):
                streams.at(number)
                round_.target_state = of_target
                began = perf_counter()
                controller.start(streams)
                started = perf_counter()
                for growth in layers:
                    controller.deeper(growth)
                asked = perf_counter()
                controller.observe(round_)
                decided.append((asked - started) / len(layers))
                round_.append(perf_counter() - asked + started - began)
            found[name] = {
                "decision_us": statistics.median(decided) * 1e6,
                "round_us": statistics.median(round_) * 1e6,
                "five_layers_us": (5 * statistics.median(decided) + statistics.median(round_)) * 1e6,
            }
    return found


def main() -> None:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=40_000, help="of each simulation")
    parser.add_argument("--micro", action="store_true", help="time decisions")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--width", type=int, default=2048, help="of both models, for cali-ts")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.micro:
        times = decisions(args.vocabulary, args.width, 2000)
        for name, entry in times.items():
            print(
                f"{name:20} {entry['decision_us']:7.1f} µs per decision {entry['round_us']:7.1f} µs per round "
                f"{entry['five_layers_us']:7.1f} µs with five layers"
            )
        if args.name:
            about = {"vocabulary": args.vocabulary, "width": args.width}
            print(record.write(args.name, {"environment": record.environment("float32"), **about, "decisions": times}))
        return
    results: dict[str, dict[str, Any]] = {}
    for name, row in table(args.tokens):
        results[name] = row
        print(f"{name} (best fixed K {row['best_k']})")
        for controller, entry in row["controllers"].items():
            spec = row["spec"].get(controller)
            print(
                f"  {controller:22} {entry['speed']:5.2f} ± {entry['deviation']:.2f}, "
                f"{entry['drafts_per_round']:4.1f} drafts per round" + (f"  (spec {spec:.2f})" if spec else "")
            )
    if args.name:
        about = {"simulation": True, "tokens": args.tokens, "seeds": SEEDS, "most": MOST}
        print(record.write(args.name, {"environment": record.environment("none"), **about, "scenarios": results}))
        figure = record.RESULTS / "figures" / f"{args.name}.svg"
        figure.parent.mkdir(parents=True, exist_ok=True)
        draw(results, str(figure))
        print(figure)


if __name__ == "__main__":
    main()
