"""How far to draft: fixed depths, a confidence threshold, a switch by the number of requests, and `auto`, in turns.

Tokens per second of whole requests, prompts included, over those of plain decoding in the same turn. With one thread
seconds are those of this process's processor time, as are those that rules measure costs by: other programs on the
machine slow all down, but take no turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from time import process_time
from typing import Any
from unittest.mock import patch

from pydantic import Field

from benchmarks.bench import Bench, rotated
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import median
from draftwood.corpus import mixed
from draftwood.depth.confidence import Confidence
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.depth.settings import CONTROLLERS, DepthSettings, Draft
from draftwood.engine.engine import Engine
from draftwood.sampling.distributions import Streams

PLAIN = "plain"
LOAD_AWARE = ", load-aware"  # ends the name of a rule that follows the load where texts depend on it


@dataclass(slots=True)
class SwitchedConfidence(Confidence):
    """`Confidence` that drafts nothing while more than `max_requests` requests run."""

    needs: frozenset[str] = LOGITS | LOAD
    max_requests: int = 2
    rests: bool = field(init=False, default=False)

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.rests = load.drafting + load.others > self.max_requests

    def deeper(self, state: DraftState) -> bool:
        return not self.rests and Confidence.deeper(self, state)


class SwitchedDepth(DepthSettings):
    """The settings of `SwitchedConfidence`, which no method has: the simplest rule that follows the load."""

    name = "switched"

    threshold: float = 0.4
    max_requests: int = 2

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        return SwitchedConfidence(most, self.threshold, max_requests=self.max_requests)


class DraftPrice(Kind):
    """`sources`: methods by name; `rules`: options of each by which it decides how far to draft."""

    sources: dict[str, dict[str, Any]]
    rules: dict[str, dict[str, Any] | None]  # None: a run leaves one out
    temperatures: tuple[float, ...] = (0.0, 1.0)
    loads: tuple[int, ...] = (1, 4, 16)
    requests: int = 4  # of a sample at least: small loads come several times in a row, each with other prompts
    lengths: tuple[int, ...] = Field(default=(8, 40, 120, 240))  # tokens of prompts, at most
    tokens: int = 48
    repeats: int = 5  # after one that is not counted: rules have learned, and costs are known

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """`price`: a row for each source, temperature, number of requests and rule."""
        with (
            patch("draftwood.runtime.executor.perf_counter", process_time),
            patch("draftwood.runtime.scheduler.perf_counter", process_time),
            patch.dict(CONTROLLERS, {SwitchedDepth.name: SwitchedDepth}),
        ):
            return {"price": self.measured(bench)}

    def measured(self, bench: Bench) -> Rows:
        """The rows of `price`; intervals are over repeats, ratios are within one."""
        engine = bench.engine
        documents = mixed("held-out", seed=3)
        prompts = [
            engine.tokens(document.text)[:length]
            for document, length in islice(zip(documents, cycle(self.lengths), strict=False), max(self.loads))
        ]
        arms = {PLAIN: {"name": "autoregressive"}} | {
            f"{source}: {rule}": {**method, **options}
            for source, method in self.sources.items()
            for rule, options in self.rules.items()
            if options is not None
        }
        for method in arms.values():
            if method.get("exit") == "made":
                method["exit"] = str(bench.pair.made / "exit")
            for temperature in self.temperatures:
                self.rate(engine, method, prompts[:2], 2, temperature, 0, False)
        bench.settle()
        rates: dict[tuple[float, int, str], list[float]] = {}
        for repeat in range(self.repeats + 1):
            for temperature in self.temperatures:
                for load in bench.track(self.loads, f"repeat {repeat}, T = {temperature:g}"):
                    for name in rotated(list(arms), repeat):
                        aware = name.endswith(LOAD_AWARE)
                        if aware and not temperature:
                            continue  # greedy requests follow the load anyway
                        make = partial(self.rate, engine, arms[name], prompts, load, temperature, repeat, aware)
                        rate = bench.once([repeat, temperature, load, name], make)
                        if repeat:
                            rates.setdefault((temperature, load, name), []).append(rate)
        rows: Rows = []
        for temperature in self.temperatures:
            for load in self.loads:
                plain = rates[temperature, load, PLAIN]
                for source in self.sources:
                    result = {
                        rule: rates[temperature, load, f"{source}: {rule}"]
                        for rule in self.rules
                        if (temperature, load, f"{source}: {rule}") in rates
                    }
                    best = max(result, key=lambda rule: median(result[rule])["value"] or 0.0)
                    for rule, mine in {PLAIN: plain, **result}.items():
                        rows.append(
                            {
                                "source": source,
                                "temperature": temperature,
                                "requests": load,
                                "rule": rule,
                                "tokens_per_second": median(mine),
                                "to_plain": median([a / b for a, b in zip(mine, plain, strict=True)]),
                                "to_auto": median([a / b for a, b in zip(mine, result["auto"], strict=True)]),
                                "best": best,
                            }
                        )
        return rows

    def rate(
        self,
        engine: Engine,
        method: dict[str, Any],
        prompts: list[list[int]],
        load: int,
        temperature: float,
        seed: int,
        aware: bool,
    ) -> float:
        """Tokens per second of some loads of requests, one after the other."""
        turn, seconds, tokens = cycle(prompts), 0.0, 0
        engine.builder.load_aware = aware
        options: dict[str, Any] = {"method": method, "sampling": {"temperature": temperature}, "ignore_eos": True}
        for _ in range(-(-self.requests // load)):
            seeded = [
                {"prompt": prompt, "seed": seed * load + number} for number, prompt in enumerate(islice(turn, load))
            ]
            began = process_time()
            results = engine.batch(seeded, load, max_new_tokens=self.tokens, **options)
            seconds += process_time() - began
            tokens += sum(len(result.tokens) for result in results)
        return tokens / seconds
