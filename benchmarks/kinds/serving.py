"""Many requests at once, method by method: tokens per second, beside other engines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from pydantic import Field

from benchmarks.bench import Bench, rotated
from benchmarks.engines import Batched, Cell, runner
from benchmarks.engines.cell import reason
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import median
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.eval.intervals import Interval

BASELINE = "plain"  # the method that others are compared with


class Serving(Kind):
    """So many requests at once, for each load; prompts of all lengths. All methods in turn, in one process."""

    methods: dict[str, dict[str, Any]]
    loads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    requests: int = 1  # of a sample at least: small loads come several times in a row, each with other prompts
    tokens: int = 48
    lengths: tuple[int, ...] = (8, 40, 120, 240)  # tokens of prompts, at most
    repeats: int = 3
    peers: dict[str, list[str]] = Field(default_factory=dict)  # engines that decode all prompts at once, and modes
    gamma: int = 4  # of peers that draft
    fixed: tuple[str, ...] = ()  # methods with the fastest of which, load by load, others are compared too

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = bench.engine
        prompts = list(islice(self.prompts(engine), max(self.loads)))
        others, failures = self.others(bench, prompts)
        for method in self.methods.values():
            self.decode(engine, method, prompts[:2])
        names = [*self.methods, *others]
        samples: dict[tuple[int, int, str], dict[str, Any]] = {}
        for repeat in range(self.repeats):
            for load in bench.track(self.loads, f"repeat {repeat + 1}"):
                for name in rotated(names, repeat):
                    make = partial(self.sample, engine, name, others.get(name), self.batches(prompts, load))
                    samples[repeat, load, name] = bench.once([repeat, load, name], make)
        rows = [row for load in self.loads for row in self.rows(samples, names, load)]
        return {
            "serving": rows,
            "failures": [{"method": name, "failure": reason} for name, reason in failures.items()],
        }

    def rows(self, samples: dict[tuple[int, int, str], dict[str, Any]], names: list[str], load: int) -> Rows:
        """The rows of a load; ratios are of the same repeat."""
        result = {name: [samples[repeat, load, name] for repeat in range(self.repeats)] for name in names}
        rates = {name: [each["tokens"] / each["seconds"] for each in some] for name, some in result.items()}
        fastest = max(self.fixed or (BASELINE,), key=lambda name: median(rates[name])["value"] or 0.0)

        def over(name: str, other: str) -> Interval:
            return median([mine / base for mine, base in zip(rates[name], rates[other], strict=True)])

        rows: Rows = []
        for name in rates:
            row = {"fastest": fastest, "load": load, "method": name, "tokens_per_second": median(rates[name])}
            rows.append({**row, "to_baseline": over(name, BASELINE), "to_fastest": over(name, fastest)})
        return rows

    def others(self, bench: Bench, prompts: list[list[int]]) -> tuple[dict[str, Batched], dict[str, str]]:
        """The peers that are here, warmed up, and why the others are not."""
        result: dict[str, Batched] = {}
        failures: dict[str, str] = {}
        pair, dtype, threads = bench.pair, bench.run.dtype, bench.run.threads
        places = str(pair.target), str(pair.draft), str(pair.made)
        context = -(-(max(self.lengths) + 2 * self.tokens) // 64) * 64
        for engine, modes in self.peers.items():
            for mode in modes:
                cell = Cell(engine, mode, dtype, *places, threads, self.gamma, context)
                try:
                    run = runner(engine).batched(cell)
                    run(prompts[:2], 4)
                except Exception as error:  # foreign code fails in many ways; the row says which
                    failures[f"{engine}, {mode}"] = reason(error)
                else:
                    result[f"{engine}, {mode}"] = run
        return result, failures

    def prompts(self, engine: Engine) -> Iterator[list[int]]:
        """Held-out prompts of all kinds of text and lengths, in turn."""
        for document, length in zip(mixed("held-out", seed=3), cycle(self.lengths), strict=False):
            yield engine.tokens(document.text)[:length]

    def batches(self, prompts: list[list[int]], load: int) -> list[list[list[int]]]:
        """The prompts of a sample: of as many loads as it takes."""
        turn = cycle(prompts)
        return [list(islice(turn, load)) for _ in range(-(-self.requests // load))]

    def sample(
        self, engine: Engine, name: str, other: Batched | None, batches: list[list[list[int]]]
    ) -> dict[str, Any]:
        """Seconds and tokens of some loads of one method, or of a peer, one after the other."""
        began = perf_counter()
        for prompts in batches:
            if other is not None:
                other(prompts, self.tokens)
            else:
                self.decode(engine, self.methods[name], prompts)
        return {"seconds": perf_counter() - began, "tokens": sum(map(len, batches)) * self.tokens}

    def decode(self, engine: Engine, method: dict[str, Any], prompts: list[list[int]]) -> None:
        """Decode all prompts at once, greedily."""
        options: dict[str, Any] = {"method": method, "sampling": {"temperature": 0}, "ignore_eos": True}
        engine.batch(prompts, len(prompts), max_new_tokens=self.tokens, **options)
