"""The guided search for a tree against the exhaustive grid: how good is what it finds, in how many runs?

Both search the same trees with measured runs of the same prompts, each in turns with plain decoding. The grid runs
every tree once (MCSD Fig. 4); the guided search has at most a fifth as many runs, repeats included. A single run is a
noisy thing, so what counts is measured afterwards: the grid's best few and what the guided search would have answered
after 3, 5, 8, ... runs take turns, many times, on prompts of their own. The grid's best is the best of all of these.
Runs are kept in a file beside the result as they are made, and a run that was cut goes on where it stopped.

python benchmarks/tuning.py [--target DIR --draft DIR] --name tuning-embedded
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import record
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import draftwood
from draftwood.core.shape import Shape
from draftwood.corpus import DOMAINS, documents
from draftwood.methods import Method
from draftwood.tune.heatmap import Cell, HeatMap, lines, picture
from draftwood.tune.measuring import Bench, Trial, Workload, tree_method
from draftwood.tune.search import Guided, Measured, Seconds, pilot_shape
from draftwood.tune.shapes import Cost, shapes

STOPS = (3, 5, 8, 12, 16, 20, 24, 32, 40)  # runs after which the guided search is asked for its answer
SEARCH_SEED, FINAL_SEED = 11, 12  # of documents


class Kept:
    """Results by key, a line of JSON each, appended as they are made."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.found = path, {}
        if path.exists():
            first, *rest = [line for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
            if json.loads(first) == settings:
                self.found = {tuple(key): value for key, value in map(json.loads, rest)}
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings) + "\n", "utf-8")

    def get(self, key: tuple[Any, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was made for a key, now or before."""
        if key not in self.found:
            self.found[key] = json.loads(json.dumps(make()))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]


def told(trial: Trial) -> dict[str, Any]:
    """What a search is told of a run, and tau."""
    run = trial.measured
    return {
        "speed_up": run.speed,
        "met": run.met,
        "accepted": run.accepted,
        "seconds": run.seconds,
        "plain": run.plain,
        "tau": trial.own.tau,
        "predicted": trial.predicted,
    }


def go(lab: Bench, shape: Shape, repeat: int, predicted: float | None = None) -> dict[str, Any]:
    """Run a tree."""
    return told(lab.run(tree_method(shape), predicted, repeat))


def measured(row: dict[str, Any]) -> Measured:
    """The same for the search."""
    times = [None if row[key] is None else Seconds(*row[key]) for key in ("seconds", "plain")]
    return Measured(row["speed_up"], row["met"], row["accepted"], *times)


def bench(engine: draftwood.Engine, args: Any, seed: int) -> Bench:
    """Prompts of every domain."""
    found = [
        engine.tokens(document.prompt)
        for domain in DOMAINS
        for document in islice(documents(domain, "held-out", seed), args.documents)
    ]
    params = draftwood.SamplingParams(temperature=args.temperature)
    return Bench(engine, Workload(found, params, args.tokens), Method.parse("autoregressive"))


def run_guided(
    lab: Bench, kept: Kept, args: Any, runs: int, step: Callable[[str], None]
) -> tuple[Guided, dict[int, Shape]]:
    """The guided search; its answers after so many runs."""
    costs = kept.get(("costs",), lambda: dict(zip(("target", "draft"), map(_pairs, lab.costs(args.rows)), strict=True)))
    target, draft = (Cost(dict(costs[name])) for name in ("target", "draft"))
    search = Guided(pilot_shape(args.rows, args.depth), target, draft, args.rows, args.depth)
    answers: dict[int, Shape] = {}
    for number in range(runs):
        shape = search.ask()
        predicted = search.predicted(shape) if search.runs else None
        row = kept.get(
            ("guided", number, *shape.tree), partial(go, lab, shape, len(search.runs.get(shape, ())), predicted)
        )
        search.tell(shape, measured(row))
        if number + 1 in STOPS or number + 1 == runs:
            answers[number + 1] = search.ranked()[0][1]
        step("guided search")
    return search, answers


def _pairs(cost: Any) -> list[tuple[int, float]]:
    return list(zip(cost.rows, cost.seconds, strict=True))


def paired(a: Sequence[float], b: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Ratio of the geometric means of runs in turns, with a 95% bootstrap interval over turns."""
    logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(1000))
    return {"ratio": math.exp(statistics.fmean(logs)), "low": math.exp(means[25]), "high": math.exp(means[974])}


def main() -> None:
    parser = record.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20, help="most rows of a tree")
    parser.add_argument("--depth", type=int, default=4, help="most layers of a tree")
    parser.add_argument("--documents", type=int, default=3, help="prompts of each domain")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--finalists", type=int, default=6, help="best trees of the grid that are measured again")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each finalist")
    parser.add_argument("--runs", type=int, default=None, help="of the guided search; default: a fifth of the grid's")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    engine = draftwood.load(args.target, args.draft, dtype=args.dtype)
    grid = [shape for shape in shapes(args.rows, args.depth) if shape.tree]
    runs = args.runs or max(2, len(grid) // 5)
    name = args.name or "tuning-embedded"
    settings = {key: value for key, value in vars(args).items() if key not in ("repeats", "finalists", "name", "runs")}
    kept = Kept(record.RESULTS / f"{name}.items.jsonl", {**settings, "models": engine.names})
    lab, final = bench(engine, args, SEARCH_SEED), bench(engine, args, FINAL_SEED)
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn())
    began = perf_counter()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("guided search", total=runs + len(grid))

        def step(what: str) -> None:
            bar.update(task, advance=1, description=what)

        search, answers = run_guided(lab, kept, args, runs, step)
        order = list(grid)
        random.Random(0).shuffle(order)  # so that drift of the machine is no trend of the grid
        rows: dict[Shape, dict[str, Any]] = {}
        for shape in order:
            rows[shape] = kept.get(("grid", *shape.tree), partial(go, lab, shape, 0))
            step("grid")
        best = sorted(grid, key=lambda shape: -rows[shape]["speed_up"])[: args.finalists]
        finalists = list(dict.fromkeys([*best, *answers.values()]))
        bar.update(task, total=runs + len(grid) + args.repeats * len(finalists))
        finals: dict[Shape, list[float]] = {shape: [] for shape in finalists}
        for turn in range(args.repeats):
            for shape in random.Random(turn).sample(finalists, len(finalists)):
                row = kept.get(("final", turn, *shape.tree), partial(go, final, shape, turn))
                finals[shape].append(row["speed_up"])
                step("finalists in turns")

    top = max(finalists, key=lambda shape: statistics.fmean(map(math.log, finals[shape])))
    after = {count: {"tree": shape.tree, **paired(finals[shape], finals[top])} for count, shape in answers.items()}
    errors = [abs(math.log(search.predicted(shape) / rows[shape]["speed_up"])) for shape in grid]
    last = after[runs]
    result = {
        "environment": record.environment(args.dtype),
        "models": engine.names,
        "settings": {**vars(args), "runs": runs, "grid": len(grid)},
        "forward_seconds": {key: dict(kept.found[("costs",)][key]) for key in ("target", "draft")},
        "acceptance": search.tally.acceptance(),
        "trees_tried": len(search.runs),
        "guided": {str(count): answer for count, answer in after.items()},
        "best": top.tree,
        "reached": last["ratio"] >= 0.97,
        "predicted_error_median": statistics.median(errors),  # of single runs of the grid: noise of those included
        "finalists": {",".join(map(str, shape.tree)): record.spread(speeds) for shape, speeds in finals.items()},
        "grid": {",".join(map(str, shape.tree)): rows[shape]["speed_up"] for shape in grid},
        "seconds": perf_counter() - began,
    }
    cells: dict[tuple[int, int], Cell] = {}
    for shape in sorted(grid, key=lambda shape: -rows[shape]["speed_up"]):
        cells.setdefault((shape.tree[0], len(shape.tree)), Cell(rows[shape]["speed_up"]))
    title = "speed-up by k_1 (down) and layers (across), the best tree of each"
    heat = HeatMap.of(title, "k_1", "layers", cells, (top.tree[0], len(top.tree)))
    print(*lines(heat), sep="\n")
    for shape in finalists:
        spread = record.spread(finals[shape])
        print(
            f"{','.join(map(str, shape.tree)):12} speed-up {spread['median']:.3f} "
            f"[{spread['low']:.3f}, {spread['high']:.3f}]{' best' if shape == top else ''}"
        )
    for count, answer in after.items():
        print(
            f"after {count:3} runs: {','.join(map(str, answer['tree'])):10} {100 * answer['ratio']:.1f}% "
            f"[{100 * answer['low']:.1f}, {100 * answer['high']:.1f}] of the grid's best, {len(grid)} runs"
        )
    print(f"trees are predicted within {100 * result['predicted_error_median']:.0f}% (median) of the grid's runs")
    print(f"target, 97% in at most a fifth of the runs: {'reached' if result['reached'] else 'missed'}")
    if args.name:
        print(path := record.write(args.name, result))
        picture([heat], path.with_suffix(".png"))


if __name__ == "__main__":
    main()
