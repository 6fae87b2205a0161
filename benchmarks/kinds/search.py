"""The guided search for a tree against the exhaustive grid: how good is what it finds, in how many runs?

Both search the same trees with measured runs of the same prompts, each in turns with plain decoding. A single run is
noisy, so the grid's best few and the search's answers take turns again, many times, on prompts of their own.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from benchmarks import bench as benches
from benchmarks.experiment import Kind, Rows
from draftwood.core.shape import Shape
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.engine import Engine
from draftwood.eval.intervals import Interval, bootstrap, median
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams
from draftwood.tune.measuring import Bench, Workload, tree_method
from draftwood.tune.search import Guided, Measured, Seconds, pilot_shape
from draftwood.tune.shapes import Cost, shapes

STOPS = (3, 5, 8, 12, 16, 20, 24, 32, 40)  # runs after which the guided search is asked for its answer
SEARCH_SEED, FINAL_SEED = 11, 12  # of documents
REACHED = 0.97


class Search(Kind):
    """Trees of at most so many rows and layers."""

    rows: int = 20
    depth: int = 4
    documents: int = 3
    tokens: int = 64
    temperature: float = 1.0
    finalists: int = 6
    repeats: int = 20
    runs: int | None = None  # of the guided search; a fifth of the grid's unless told
    tasks: tuple[str, ...] = DOMAINS

    def measure(self, bench: benches.Bench) -> dict[str, Rows]:
        engine = bench.engine
        search, final = (self._lab(engine, seed) for seed in (SEARCH_SEED, FINAL_SEED))
        grid = [shape for shape in shapes(self.rows, self.depth) if shape.tree]
        runs = self.runs or max(2, len(grid) // 5)
        guided, answers = self._guided(bench, search, runs)
        order = random.Random(0).sample(grid, len(grid))  # so that drift of the machine is no trend of the grid
        found = {
            shape: bench.once(["grid", shape.tree], partial(_go, search, shape, 0))["speed_up"]
            for shape in bench.track(order, "grid")
        }
        best = sorted(grid, key=lambda shape: -found[shape])[: self.finalists]
        finalists = list(dict.fromkeys([*best, *answers.values()]))
        speeds: dict[Shape, list[float]] = {shape: [] for shape in finalists}
        for turn in bench.track(range(self.repeats), "finalists in turns"):
            for shape in random.Random(turn).sample(finalists, len(finalists)):
                run = bench.once(["final", turn, shape.tree], partial(_go, final, shape, turn))
                speeds[shape].append(run["speed_up"])
        top = max(finalists, key=lambda shape: statistics.fmean(map(math.log, speeds[shape])))
        error = statistics.median(abs(math.log(guided.predicted(shape) / found[shape])) for shape in grid)
        rows: Rows = []
        for count, shape in answers.items():
            to_best = _paired(speeds[shape], speeds[top])
            reached = "yes" if (to_best["value"] or 0) >= REACHED else "no"
            row = {"runs": count, "tree": _text(shape), "to_best": to_best, "grid": len(grid)}
            rows.append({**row, "error": error, "reached": reached})
        return {
            "guided": rows,
            "finalists": [
                {"tree": _text(shape), "speed_up": median(speeds[shape]), "best": "yes" if shape == top else ""}
                for shape in finalists
            ],
            "grid": [{"tree": _text(shape), "speed_up": found[shape]} for shape in grid],
        }

    def _lab(self, engine: Engine, seed: int) -> Bench:
        prompts = [
            engine.tokens(document.prompt)
            for task in self.tasks
            for document in islice(documents(task, "held-out", seed), self.documents)
        ]
        workload = Workload(prompts, SamplingParams(temperature=self.temperature), self.tokens)
        return Bench(engine, workload, Method.parse("autoregressive"))

    def _guided(self, bench: benches.Bench, lab: Bench, runs: int) -> tuple[Guided, dict[int, Shape]]:
        """The guided search; its answers after so many runs."""
        costs = bench.once(["costs"], lambda: [list(zip(c.rows, c.seconds, strict=True)) for c in lab.costs(self.rows)])
        target, draft = (Cost(dict(each)) for each in costs)
        search = Guided(pilot_shape(self.rows, self.depth), target, draft, self.rows, self.depth)
        answers: dict[int, Shape] = {}
        for number in bench.track(range(runs), "guided search"):
            shape = search.ask()
            repeat = len(search.runs.get(shape, ()))
            run = bench.once(["guided", number, shape.tree], partial(_go, lab, shape, repeat))
            times = [None if run[key] is None else Seconds(*run[key]) for key in ("seconds", "plain")]
            search.tell(shape, Measured(run["speed_up"], run["met"], run["accepted"], *times))
            if number + 1 in STOPS or number + 1 == runs:
                answers[number + 1] = search.ranked()[0][1]
        return search, answers


def _go(lab: Bench, shape: Shape, repeat: int) -> dict[str, Any]:
    """Run a tree; plain data."""
    run = lab.run(tree_method(shape), None, repeat).measured
    return {"speed_up": run.speed, "met": run.met, "accepted": run.accepted, "seconds": run.seconds, "plain": run.plain}


def _text(shape: Shape) -> str:
    return ",".join(map(str, shape.tree))


def _paired(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Ratio of the geometric means of runs in turns."""
    import numpy as np

    logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
    return bootstrap([logs, [1.0] * len(logs)], lambda sums: np.exp(sums[0] / sums[1]))
