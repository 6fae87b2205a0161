"""Many requests at once, method by method: tokens per second, time between tokens, memory, beside Hugging Face."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Literal

import numpy as np

from draftwood.corpus import DOMAINS, documents
from draftwood.engine import Engine
from draftwood.eval.experiments.bench import Bench
from draftwood.eval.experiments.experiment import Kind, Rows
from draftwood.eval.experiments.requests import hugging_face
from draftwood.eval.intervals import median
from draftwood.runtime.task import Task

PEER = "Hugging Face, batched"


class Serving(Kind):
    """So many requests at once, for each load; prompts of all lengths. All methods in turn, in one process."""

    methods: dict[str, dict[str, Any]]
    loads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    tokens: int = 48
    lengths: tuple[int, ...] = (8, 40, 120, 240)  # tokens of prompts, at most
    repeats: int = 3
    temperature: float = 0.0
    arrivals: Literal["at once", "poisson"] = "at once"
    peer: bool = True  # Hugging Face's batched greedy generate
    baseline: str = "plain"  # the method that others are compared with

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = bench.engine
        engine.scheduler.prefixes.enabled = False  # the same prompts come again in each repeat
        prompts = list(islice(self.prompts(engine), max(self.loads)))
        names = [*self.methods, *([PEER] if self.peer else [])]
        peer = hugging_face(str(bench.pair.target), bench.run.dtype, [prompts[0]], 1) if self.peer else None
        if peer is not None:
            peer(1)
        list(self.run(engine, next(iter(self.methods.values())), prompts[:2]))
        samples: dict[tuple[int, int, str], dict[str, Any]] = {}
        for repeat in range(self.repeats):
            for load in bench.track(self.loads, f"repeat {repeat + 1}"):
                for name in [*names[repeat % len(names) :], *names[: repeat % len(names)]]:
                    make = partial(self.sample, bench, name, prompts[:load], repeat)
                    samples[repeat, load, name] = bench.once([repeat, load, name], make)
        rows: Rows = []
        for load in self.loads:
            for name in names:
                mine = [samples[repeat, load, name] for repeat in range(self.repeats)]
                base = [samples[repeat, load, self.baseline] for repeat in range(self.repeats)]
                row = {
                    "load": load,
                    "method": name,
                    "tokens_per_second": median([s["tokens"] / s["seconds"] for s in mine]),
                    "to_baseline": median(
                        [
                            s["tokens"] / s["seconds"] * b["seconds"] / b["tokens"]
                            for s, b in zip(mine, base, strict=True)
                        ]
                    ),
                }
                if name != PEER:
                    alone = [samples[repeat, self.loads[0], name] for repeat in range(self.repeats)]
                    row |= {
                        "to_alone": median(
                            [
                                s["tokens"] / s["seconds"] * a["seconds"] / a["tokens"]
                                for s, a in zip(mine, alone, strict=True)
                            ]
                        ),
                        "gap_ms": median([1000 * s["gap"] for s in mine]),
                        "slow_gap_ms": median([1000 * s["slow_gap"] for s in mine]),
                        "target_forwards": median([s["forwards"] for s in mine]),
                        "memory": median([s["peak_bytes"] / s["needed_bytes"] for s in mine]),
                    }
                rows.append(row)
        return {"serving": rows}

    def prompts(self, engine: Engine) -> Iterator[list[int]]:
        """Held-out prompts of all kinds of text and lengths, in turn."""
        held_out = [documents(domain, "held-out", seed=3) for domain in DOMAINS]
        place = 0
        while True:
            tokens = engine.tokens(next(held_out[place % len(held_out)]).text)
            yield tokens[: self.lengths[place % len(self.lengths)]]
            place += 1

    def sample(self, bench: Bench, name: str, prompts: list[list[int]], repeat: int) -> dict[str, Any]:
        """One load of one method."""
        if name == PEER:
            run = hugging_face(str(bench.pair.target), bench.run.dtype, prompts, self.tokens)
            began = perf_counter()
            run(len(prompts))
            return {"seconds": perf_counter() - began, "tokens": len(prompts) * self.tokens}
        began, gaps = perf_counter(), []
        engine = bench.engine
        peak, needed = 0, 1
        forwards = engine.scheduler.passes
        for seconds, count in self.run(engine, self.methods[name], prompts, repeat):
            gaps += [seconds / count] * count
            caches = list(engine._caches.values())
            held = sum(cache.bytes for cache in caches)
            if held > peak:
                peak, needed = held, sum(cache.used * cache.slot_bytes for cache in caches)
        return {
            "seconds": perf_counter() - began,
            "tokens": len(gaps),
            "gap": float(np.median(gaps)),
            "slow_gap": float(np.quantile(gaps, 0.95)),
            "forwards": engine.scheduler.passes - forwards,
            "peak_bytes": peak,
            "needed_bytes": max(needed, 1),
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
                request = engine.request(
                    prompts[place],
                    method=method,
                    sampling={"temperature": self.temperature},
                    seed=place,
                    max_new_tokens=self.tokens,
                    ignore_eos=True,
                )
                tasks[place] = engine.submit(engine._generation(request))
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
