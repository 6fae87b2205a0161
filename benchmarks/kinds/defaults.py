"""What decodes where no method is named, beside the fastest that `draftwood tune` finds for each kind of text."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.kinds.methods import Made, Setting, speed
from draftwood.corpus import DOMAINS
from draftwood.eval.tasks import parse
from draftwood.explain.terminal import method_label
from draftwood.sampling.params import SamplingParams
from draftwood.tune.measuring import Workload
from draftwood.tune.settings import TuneSettings
from draftwood.tune.tuning import Tuning

SEARCH_SEED = 11  # of documents that are searched with; others are measured on
PLAIN = {"name": "autoregressive"}
WHOLE = "speed_up_with_prompt"  # of whole requests, as searches judge


class Defaults(Kind):
    """Every search looks for a kind of text's own method; then that, the default and plain decoding take turns."""

    searches: list[TuneSettings]
    sampling: list[dict[str, Any]] = Field(default=[{}])
    tasks: tuple[str, ...] = DOMAINS
    documents: int = 3
    limit: int = 12
    tokens: int = 96
    wanted: float = 0.95

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """`defaults`: a row for each temperature and kind of text; `searches`: what each search found."""
        found: dict[str, Rows] = {"defaults": [], "searches": []}
        for sampling in self.sampling:
            for task in self.tasks:
                about = {"temperature": sampling.get("temperature", 0), "task": task}
                tuned = [
                    bench.once(["tuned", about, number], partial(self._tuned, bench, task, search, sampling))
                    for number, search in enumerate(self.searches)
                ]
                found["searches"] += [{**about, **one, "method": method_label(one["method"])} for one in tuned]
                best = max([{"method": PLAIN, "speed_up": 1.0}, *tuned], key=lambda one: one["speed_up"])
                found["defaults"] += [{**about, **row} for row in self._beside(bench, task, best["method"], sampling)]
        return found

    def _tuned(self, bench: Bench, task: str, search: TuneSettings, sampling: dict[str, Any]) -> dict[str, Any]:
        """What a search finds, and how fast it is over plain decoding on the prompts that it was found with."""
        bench.told(f"{task}: tuning {search.method}", 0, None)
        engine, found = bench.engine, Tuning(search)
        asked = parse(task, {"seed": SEARCH_SEED}).instances(self.documents)
        prompts = [engine.tokens(one.prompt()) for one in asked]
        found.run(engine, Workload(prompts, SamplingParams(**sampling), self.tokens))
        return {"method": found.best.method.as_dict(), "speed_up": found.best.speed_up}

    def _beside(self, bench: Bench, task: str, best: dict[str, Any], sampling: dict[str, Any]) -> Rows:
        usual = bench.engine.usual.as_dict()
        methods = {"plain": PLAIN, "default": usual} | ({} if best == PLAIN else {"tuned": best})
        settings = [Setting(label=name, method=method, about={}, trains=[], base=0) for name, method in methods.items()]
        place = f"{task}-{sampling.get('temperature', 0):g}"
        runs = Made(bench, settings, sampling, None, self.tokens).runs(place, bench.engine, [task], self.limit, 1)[task]
        plain, default, tuned = runs[0], runs[1], runs[-1] if best != PLAIN else runs[0]
        if not (over := speed(default, tuned)):
            return []
        return [
            {
                "default": method_label(usual),
                "tuned": method_label(best),
                "default_speed": speed(default, plain)[WHOLE],
                "tuned_speed": speed(tuned, plain)[WHOLE],
                "ratio": over[WHOLE],
                "ratio_of_decoding": over["speed_up"],
                "reached": "yes" if over[WHOLE]["value"] >= self.wanted else "no",
            }
        ]
