"""Many requests at once, method by method: tokens per second, time between tokens, memory, beside other engines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any, Literal

import numpy as np
from pydantic import Field

from benchmarks.bench import Bench, turned
from benchmarks.engines import Batched, Cell, runner
from benchmarks.engines.cell import reason
from benchmarks.experiment import Kind, Rows
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.eval.intervals import Interval, median
from draftwood.runtime.task import Task


class Serving(Kind):
    """So many requests at once, for each load; prompts of all lengths. All methods in turn, in one process."""

    methods: dict[str, dict[str, Any]]
    loads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    requests: int = 1  # of a sample at least: small loads come several times in a row, each with other prompts
    tokens: int = 48
    lengths: tuple[int, ...] = (8, 40, 120, 240)  # tokens of prompts, at most
    repeats: int = 3
    temperature: float = 0.0
    arrivals: Literal["at once", "poisson"] = "at once"
    peers: dict[str, list[str]] = Field(default_factory=dict)  # engines that decode all prompts at once, and modes
    gamma: int = 4  # of peers that draft
    neighbours: dict[str, dict[str, Any]] = Field(default_factory=dict)  # beside which a plain request is timed
    queued: tuple[int, ...] = ()  # requests that wait while others run
    baseline: str = "plain"  # the method that others are compared with
    fixed: tuple[str, ...] = ()  # methods with the fastest of which, load by load, others are compared too

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = bench.engine
        prompts = list(islice(self.prompts(engine), max(self.loads)))
        others, failures = self.others(bench, prompts)
        for method in self.methods.values():
            list(self.run(engine, method, prompts[:2]))
        names = [*self.methods, *others]
        samples: dict[tuple[int, int, str], dict[str, Any]] = {}
        for repeat in range(self.repeats):
            for load in bench.track(self.loads, f"repeat {repeat + 1}"):
                for name in turned(names, repeat):
                    make = partial(self.sample, bench, name, others.get(name), self.batches(prompts, load), repeat)
                    samples[repeat, load, name] = bench.once([repeat, load, name], make)

        def ratio(mine: tuple[int, str], base: tuple[int, str]) -> Interval:
            """How many times as many tokens a second, of the same repeat."""
            pairs = [(samples[repeat, *mine], samples[repeat, *base]) for repeat in range(self.repeats)]
            return median([s["tokens"] / s["seconds"] * b["seconds"] / b["tokens"] for s, b in pairs])

        rows: Rows = [{"load": None, "method": name, "failure": reason} for name, reason in failures.items()]
        for load in self.loads:
            rates = {
                name: median(
                    [s["tokens"] / s["seconds"] for s in (samples[r, load, name] for r in range(self.repeats))]
                )
                for name in names
            }
            fastest = max(self.fixed or (self.baseline,), key=lambda name: rates[name]["value"] or 0.0)
            for name in names:
                mine = [samples[repeat, load, name] for repeat in range(self.repeats)]
                row = {
                    "load": load,
                    "method": name,
                    "tokens_per_second": rates[name],
                    "to_baseline": ratio((load, name), (load, self.baseline)),
                    "to_alone": ratio((load, name), (self.loads[0], name)),
                    "fastest": fastest,
                    "to_fastest": ratio((load, name), (load, fastest)),
                }
                for measure in ("gap_ms", "slow_gap_ms", "target_passes", "memory"):
                    if measure in mine[0]:
                        row[measure] = median([s[measure] for s in mine])
                rows.append(row)
        beside: dict[str, list[float]] = {}
        for repeat in range(self.repeats):
            for name, method in self.neighbours.items():
                rate = partial(self.beside, engine, prompts[:2], method)
                beside.setdefault(name, []).append(bench.once(["beside", repeat, name], rate))
        base = beside.get(self.baseline, [])
        neighbours: Rows = [
            {
                "neighbour": name,
                "tokens_per_second": median(found),
                "to_baseline": median([mine / other for mine, other in zip(found, base, strict=True)]),
            }
            for name, found in beside.items()
        ]
        queue: Rows = []
        for waiting in self.queued:
            found = [
                bench.once(["queue", r, waiting], partial(self.step_ms, engine, prompts, waiting)) for r in range(3)
            ]
            queue.append({"waiting": waiting, "step_ms": median(found)})
        return {"serving": rows, "neighbours": neighbours, "queue": queue}

    def beside(self, engine: Engine, prompts: list[list[int]], method: dict[str, Any]) -> float:
        """Tokens per second of a plain request while another one runs by some method."""
        other = engine.submit(self.generation(engine, prompts[1], method, 20 * self.tokens))
        plain = engine.submit(self.generation(engine, prompts[0], "autoregressive", 3 * self.tokens))
        while not (plain.events and other.events):  # their prompts are read
            engine.scheduler.step()
        began, first = perf_counter(), len(plain.events)
        while not plain.done:
            engine.scheduler.step()
        seconds = perf_counter() - began
        engine.scheduler.cancel(other)
        return (sum(len(round_.tokens) for round_ in plain.events) - first) / seconds

    def step_ms(self, engine: Engine, prompts: list[list[int]], waiting: int) -> float:
        """Median milliseconds of a step of eight plain requests while others wait."""
        scheduler, running = engine.scheduler, engine.scheduler.calls.running
        scheduler.calls.running = 8
        tasks = [
            engine.submit(self.generation(engine, prompts[i % len(prompts)], "autoregressive", 64))
            for i in range(8 + waiting)
        ]
        taken = []
        for _ in range(24):
            began = perf_counter()
            scheduler.step()
            taken.append(perf_counter() - began)
        for task in tasks:
            scheduler.cancel(task)
        scheduler.calls.running = running
        return 1000 * float(np.median(taken[4:]))

    def generation(self, engine: Engine, prompt: list[int], method: Any, tokens: int, seed: int = 0) -> Generation:
        """One of the requests that are measured."""
        sampling = {"temperature": self.temperature}
        return engine.generation(
            prompt, method=method, sampling=sampling, seed=seed, max_new_tokens=tokens, ignore_eos=True
        )

    def others(self, bench: Bench, prompts: list[list[int]]) -> tuple[dict[str, Batched], dict[str, str]]:
        """The peers that are here, warmed up, and why the others are not."""
        found: dict[str, Batched] = {}
        failures: dict[str, str] = {}
        pair, dtype, threads = bench.pair, bench.run.dtype, bench.run.threads
        for engine, modes in self.peers.items():
            for mode in modes:
                places = str(pair.target), str(pair.draft), str(pair.made)
                context = -(-(max(self.lengths) + 2 * self.tokens) // 64) * 64
                cell = Cell(engine, mode, dtype, *places, threads, self.gamma, context, requests=max(self.loads))
                try:
                    run = runner(engine).batched(cell)
                    run(prompts[:2], 4)
                except Exception as error:  # foreign code fails in many ways; the row says which
                    failures[f"{engine}, {mode}"] = reason(error)
                else:
                    found[f"{engine}, {mode}"] = run
        return found, failures

    def prompts(self, engine: Engine) -> Iterator[list[int]]:
        """Held-out prompts of all kinds of text and lengths, in turn."""
        for document, length in zip(mixed("held-out", seed=3), cycle(self.lengths), strict=False):
            yield engine.tokens(document.text)[:length]

    def batches(self, prompts: list[list[int]], load: int) -> list[list[list[int]]]:
        """The prompts of a sample: of as many loads as it takes."""
        turn = cycle(prompts)
        return [list(islice(turn, load)) for _ in range(-(-self.requests // load))]

    def sample(
        self, bench: Bench, name: str, other: Batched | None, batches: list[list[list[int]]], repeat: int
    ) -> dict[str, Any]:
        """Some loads of one method, or of a peer, one after the other."""
        began = perf_counter()
        if other is not None:
            for prompts in batches:
                other(prompts, self.tokens)
            return {"seconds": perf_counter() - began, "tokens": sum(map(len, batches)) * self.tokens}
        engine, gaps, peak, needed = bench.engine, [], 0, 1
        passes = engine.scheduler.passes
        for prompts in batches:
            for seconds, count in self.run(engine, self.methods[name], prompts, repeat):
                gaps += [seconds / count] * count
                memory = engine.memory
                peak, needed = max(peak, memory["held"]), max(needed, memory["used"])
        return {
            "seconds": perf_counter() - began,
            "tokens": len(gaps),
            "gap_ms": 1000 * float(np.median(gaps)),
            "slow_gap_ms": 1000 * float(np.quantile(gaps, 0.95)),
            "target_passes": (engine.scheduler.passes - passes) / len(batches),
            "memory": peak / needed,
        }

    def run(
        self, engine: Engine, method: dict[str, Any], prompts: list[list[int]], seed: int = 0
    ) -> Iterator[tuple[float, int]]:
        """Decode all prompts: (seconds since the request's last round, its tokens) of each round."""
        rng, clock = random.Random(seed), perf_counter()
        arrivals, at = [], clock
        for _ in prompts:
            arrivals.append(at)
            at += rng.expovariate(1.0) * 0.05 if self.arrivals == "poisson" else 0
        last: dict[int, float] = {}
        tasks: dict[int, Task[Any]] = {}
        place = 0
        while place < len(prompts) or tasks:
            while place < len(prompts) and (arrivals[place] <= perf_counter() or not tasks):
                tasks[place] = engine.submit(self.generation(engine, prompts[place], method, self.tokens, place))
                last[place] = perf_counter()
                place += 1
            engine.scheduler.wait(tasks.values())
            now = perf_counter()
            for number, task in list(tasks.items()):
                while task.events:
                    round_ = task.events.popleft()
                    if round_.tokens:
                        yield now - last[number], len(round_.tokens)
                    last[number] = now
                if task.done:
                    if task.error is not None:
                        raise task.error
                    del tasks[number]
