"""What one forward of the target costs for each number of rows, beside what the machine's memory and arithmetic allow.

All types and backends are loaded at once and take turns. The machine's limits are measured in every turn, so that each
share of them, and each ratio, is of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench, turned
from benchmarks.engines import Cell, loading, runner
from benchmarks.engines.cell import reason
from benchmarks.experiment import Kind, Rows
from benchmarks.machine import bandwidth, product_rates
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.eval.energy import operations
from draftwood.eval.interleaved import compare
from draftwood.eval.intervals import median
from draftwood.methods import Method
from draftwood.models.base import Batch, Segment

Key = tuple[str, str]  # type and backend
Calls = dict[int | str, Callable[[], object]]  # number of rows, or PROMPT -> the forward
PROMPT = "prompt"
BASE = "pytorch"


class Forwards(Kind):
    """Forwards of `rows` rows behind `context` tokens, and of a prompt; then whole requests by some methods."""

    methods: dict[str, dict[str, Any]]
    types: tuple[str, ...] = ("float32", "bfloat16", "int8", "int4")  # from the longest to the shortest
    backends: tuple[str, ...] = ("native", BASE)
    peers: tuple[str, ...] = ("Hugging Face",)  # whose forward of the prompt is timed, too
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 45, 82, 128)
    context: int = 200
    prompt: int = 512
    tokens: int = 64
    repeats: int = 9
    seconds: float = 0.05  # of a sample, which is one forward at least

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engines, failures = self.engines(bench)
        texts = held_out(next(iter(engines.values())), max(self.prompt, self.context + max(self.rows)))
        tokens = next(texts)
        calls = {key: self.calls(engine, tokens) for key, engine in engines.items()}
        calls |= self.peers_calls(bench, tokens[: self.prompt], failures)
        turns: list[dict[Any, Any]] = []
        for turn in range(self.repeats):
            found: dict[Any, Any] = {"limits": bench.once([turn, "limits"], partial(limits, self.types))}
            keys = turned([*calls], turn)
            for rows in bench.track([*self.rows, PROMPT], f"turn {turn + 1}, forwards"):
                for key in keys:
                    if rows in calls[key]:
                        sample = partial(self.sample, calls[key][rows])
                        found[rows, key] = bench.once([turn, rows, *key], sample)
            prompt = next(texts)[: self.context]
            for key in bench.track(filter(engines.get, keys), f"turn {turn + 1}, requests"):
                speeds = bench.once([turn, "requests", *key], partial(self.speeds, engines[key], prompt))
                found |= {(name, key): value for name, value in speeds.items()}
            turns.append(found)
        return {
            "forwards": [self.forward_row(turns, key, rows, engines) for key, each in calls.items() for rows in each],
            "requests": [request_row(turns, key, name) for key in engines for name in self.methods],
            "limits": [
                {"limit": name, "per_second": median([found["limits"][name] for found in turns])}
                for name in turns[0]["limits"]
            ],
            "failures": [{"type": kind, "backend": who, "failure": why} for (kind, who), why in failures.items()],
        }

    def engines(self, bench: Bench) -> tuple[dict[Key, Engine], dict[Key, str]]:
        """The pair in all types and backends, and why it is not there in others."""
        engines: dict[Key, Engine] = {}
        failures: dict[Key, str] = {}
        for key in product(self.types, self.backends):
            try:
                engines[key] = bench.engine_of(bench.pair, **loading(key[0]), backend=key[1])
            except ConfigurationError as error:
                failures[key] = str(error)
        if not engines:
            raise ConfigurationError("; ".join(failures.values()))
        return engines, failures

    def calls(self, engine: Engine, tokens: list[int]) -> Calls:
        """The forwards of a target, in a cache that holds what is before them."""
        model: Any = engine.target
        cache = model.new_cache()
        extent = cache.lend(len(tokens))

        def forward(first: int, count: int, wanted: Any) -> Callable[[], object]:
            segments = [Segment.causal(extent, first, count)]
            batch = Batch.of(model, tokens[first : first + count], range(first, first + count), segments, wanted)
            return partial(model, batch, cache)

        with torch.inference_mode():
            forward(0, self.context, [self.context - 1])()
        behind: Calls = {rows: forward(self.context, rows, slice(None)) for rows in self.rows}
        return behind | {PROMPT: forward(0, self.prompt, [self.prompt - 1])}

    def peers_calls(self, bench: Bench, prompt: list[int], failures: dict[Key, str]) -> dict[Key, Calls]:
        """The forwards of the prompt by other engines; `failures` are told why one is not there."""
        pair = bench.pair
        found: dict[Key, Calls] = {}
        for kind, peer in product(self.types, self.peers):
            if kind in runner(peer).MODES["plain"]:
                cell = Cell(peer, "plain", kind, str(pair.target), str(pair.draft), str(pair.made), bench.run.threads)
                try:
                    found[kind, peer] = {PROMPT: partial(runner(peer).forward(cell), prompt)}
                except Exception as error:  # foreign code fails in many ways; the row says which
                    failures[kind, peer] = reason(error)
        return found

    def sample(self, call: Callable[[], object]) -> float:
        """Seconds of a forward: the mean of as many as fill a sample. A short one is warmed up first."""
        with torch.inference_mode():
            first = timed(call, 1)
            return first if first >= self.seconds else timed(call, round(self.seconds / first))

    def speeds(self, engine: Engine, prompt: list[int]) -> dict[str, dict[str, Any]]:
        """Each method's tokens per second, greedily, the prompt's forward included; whether the text is plain's."""
        methods = [Method.parse(method) for method in self.methods.values()]
        done = compare(engine, prompt, methods, repeat=1, warmup=0, max_new_tokens=self.tokens, ignore_eos=True)
        entries = {entry.method: entry for entry in done.entries}
        found = {name: entries[method] for name, method in zip(self.methods, methods, strict=True)}
        return {name: {"speed": entry.rate, "same_text": entry.same_text} for name, entry in found.items()}

    def forward_row(self, turns: list[Any], key: Key, rows: int | str, engines: dict[Key, Engine]) -> dict[str, Any]:
        """Milliseconds, and the share of the limit: the time in which memory and arithmetic can do it at best."""
        kind, backend = key
        target: Any = next(engine for (each, _), engine in engines.items() if each == kind).target
        place = (0, self.prompt, 1) if isinstance(rows, str) else (self.context, rows, rows)
        size, work = target.weight_bytes, operations(target.config, *place)
        mine = [found[rows, key] for found in turns]
        least = [max(size / found["limits"]["read"], work / found["limits"][kind]) for found in turns]
        row: dict[str, Any] = {
            "type": kind,
            "backend": backend,
            "rows": rows,
            "ms": median([1000 * each for each in mine]),
        }
        row["limit_ms"] = median([1000 * each for each in least])
        row["of_limit"] = median([limit / each for limit, each in zip(least, mine, strict=True)])
        if (rows, (kind, BASE)) in turns[0]:
            row["to_pytorch"] = median([found[rows, (kind, BASE)] / found[rows, key] for found in turns])
        return row


def held_out(engine: Engine, length: int) -> Iterator[list[int]]:
    """Token ids of held-out text, `length` of all kinds in turn."""
    found: list[int] = []
    for document in mixed("held-out"):
        found += engine.tokens(document.text)
        if len(found) >= length:
            yield found[:length]
            found = []


def timed(call: Callable[[], object], times: int) -> float:
    """Seconds of a call."""
    began = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - began) / times


def limits(types: tuple[str, ...]) -> dict[str, float]:
    """Of the machine, now: bytes per second that are read, and operations per second in each type."""
    return {"read": bandwidth()["read"], **product_rates(types)}


def request_row(turns: list[Any], key: Key, name: str) -> dict[str, Any]:
    """A method's tokens per second, and how many times PyTorch's."""
    mine = [found[name, key] for found in turns]
    row: dict[str, Any] = {
        "type": key[0],
        "backend": key[1],
        "method": name,
        "tokens_per_second": median([s["speed"] for s in mine]),
    }
    row["same_text"] = sum(each["same_text"] is not False for each in mine) / len(mine)
    if (name, (key[0], BASE)) in turns[0]:
        base = [found[name, (key[0], BASE)]["speed"] for found in turns]
        row["to_pytorch"] = median([each["speed"] / other for each, other in zip(mine, base, strict=True)])
    return row
