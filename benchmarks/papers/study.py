"""Methods measured in turns on the same items, and what a paper says beside what was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.papers.energy import ESTIMATE, estimated
from draftwood.engine.engine import Engine
from draftwood.eval.evaluation import evaluate
from draftwood.eval.intervals import Interval
from draftwood.eval.running import Plan
from draftwood.eval.store import records_of
from draftwood.eval.summary import SECONDS, TOKENS, over, paired, versus
from draftwood.eval.tasks import parse
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams
from draftwood.util.jsonl import Record

PLAIN = "plain decoding"
Methods = dict[str, dict[str, Any]]  # options of methods by their labels; plain decoding comes first
Paper = tuple[float | None, float | None]  # the ends of what a paper gives; None where it gives no such end
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured; `tokens` limits each answer, None leaves it to the task."""

    items: int
    seeds: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs of a sweep, by the labels of its methods."""

    labels: list[str]
    summary: Row
    records: Sequence[Record]

    @property
    def tasks(self) -> list[str]:
        return [task["name"] for task in self.summary["configuration"]["tasks"]]

    def row(self, task: str, label: str) -> Row:
        """The summary of a method on a task."""
        number = self.tasks.index(task) * len(self.labels) + self.labels.index(label)
        result: Row = self.summary["rows"][number]
        return result

    def measure(self, name: str, task: str, label: str) -> Interval | None:
        """One of MEASURES, or J/token; None where the method does not have it."""
        if name == "J/token":
            known = [record for record in self.of(label, [task]) if record.get("joules")]
            return over(known, joules, TOKENS) if known else None
        return MEASURES[name](self.row(task, label))

    def of(self, label: str, tasks: Sequence[str]) -> list[Record]:
        """The runs of a method on tasks; items of different tasks are different items."""
        return [
            {**record, "place": (record["task"], record["place"])}
            for record in self.records
            if record["method"] == self.labels.index(label) and record["task"] in tasks
        ]

    def value(self, name: str, task: str, label: str) -> float:
        """The value of a measure alone; NaN where there is none."""
        result = self.measure(name, task, label)
        return math.nan if result is None or result["value"] is None else result["value"]

    def starting(self, prefix: str) -> list[str]:
        """The labels that begin so."""
        return [label for label in self.labels if label.startswith(prefix)]

    def fastest(self, labels: Sequence[str], task: str) -> str:
        """The label with most tokens per second on a task."""
        return max(labels, key=lambda label: self.value("tokens/s", task, label))

    def faster(
        self, of: str, other: str, tasks: Sequence[str] | None = None, below: Callable[[Record], float] = SECONDS
    ) -> Interval:
        """Tokens per second of a method over another's on the same items and seeds, tasks together.

        `below` is what tokens are divided by instead of seconds.
        """
        wanted = tasks or self.tasks
        return versus(paired(self.of(of, wanted), self.of(other, wanted)), TOKENS, below)


def joules(record: Record) -> float:
    """Energy of a run, read from counters or estimated."""
    return math.fsum(record["joules"].values())


def _decoding(name: str, needs: str, factor: float = 1.0) -> Callable[[Row], Interval | None]:
    return lambda row: scaled(row["decoding"][name], factor) if row["decoding"][needs] else None


def _paired(name: str, factor: float = 1.0) -> Callable[[Row], Interval | None]:
    return lambda row: None if row["paired"] is None else scaled(row["paired"][name], factor)


MEASURES: dict[str, Callable[[Row], Interval | None]] = {
    "score": lambda row: row["quality"].get(row["quality"]["metric"]),
    "perplexity": lambda row: row["quality"]["perplexity"],
    "points": _paired("score_difference", 100),  # hundredths of the score above plain decoding's
    "tokens/s": lambda row: row["timing"]["tokens_per_second"],
    "speed-up": _paired("speed_up"),
    "tau": lambda row: row["decoding"]["tau"],
    "alpha": _decoding("alpha", "drafted"),
    "HM": _decoding("harmonic_mean", "drafted"),
    "width": _decoding("mean_width", "layers"),
    "layers/predicted": _decoding("layers_to_predicted", "layers"),
}


def scaled(interval: Interval, factor: float) -> Interval:
    """An interval in another unit."""
    numbers = interval["value"], interval["low"], interval["high"]
    value, low, high = (None if each is None else each * factor for each in numbers)
    return Interval(value=value, low=low, high=high, n=interval["n"])


@dataclass(slots=True)
class Study:
    """The measurements of a paper on a pair of models, in a directory that can be resumed."""

    engine: Engine
    size: Size
    out: Path
    told: Callable[[str], None] = lambda what: None
    findings: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of every method on every task of every sweep
    learned: list[dict[str, Any]] = field(default_factory=list)  # of what was trained
    notes: list[str] = field(default_factory=list)
    session: Row = field(default_factory=dict)

    def run(
        self, name: str, methods: Methods, tasks: Sequence[str], sampling: Mapping[str, Any], times: int = 1
    ) -> Sweep:
        """Make the runs that are missing, on `times` as many items as usual. Ctrl-C keeps what is finished."""
        options = {} if self.size.tokens is None else {"max_new_tokens": self.size.tokens}
        asked = [(task, task.instances(self.size.items * times)) for task in (parse(each, options) for each in tasks)]
        parsed = [Method.parse(method) for method in methods.values()]
        plan = Plan(parsed, asked, SamplingParams(**sampling), range(self.size.seeds))
        told = lambda job: self.told(f"{name}: item {job.place + 1}, {job.task.name}, {job.method.name}")  # noqa: E731
        summary = evaluate(self.engine, plan, self.out / name, on_job=told)
        self.session = summary["sessions"][-1]
        records = [self._with_energy(record, parsed) for record in records_of(self.out / name).values()]
        result = Sweep(list(methods), summary, records)
        for task in result.tasks:
            for label in methods:
                measures = (*MEASURES, "J/token")
                known = {key: interval for key in measures if (interval := result.measure(key, task, label))}
                lossy = {} if result.row(task, label)["lossless"] else {"lossy": True}
                self.rows.append({"sweep": name, "task": task, "method": label, **lossy, **known})
        return result

    def _with_energy(self, record: Record, methods: Sequence[Method]) -> Record:
        """A run with an estimate of its energy where no counter was read."""
        if record.get("joules") != {}:
            return record
        value = estimated(record, self.engine.target, self.engine.builder.models_of(methods[record["method"]]))
        return record if value is None else {**record, "joules": {ESTIMATE: value}}

    def compare(
        self, exhibit: str, what: str, paper: Paper, here: Interval | None, unit: str = "x", even: float | None = 1.0
    ) -> None:
        """Note what the paper gives beside what was found. `even` separates better from worse, where something does."""
        result = {"exhibit": exhibit, "what": what, "paper": list(paper), "unit": unit, "even": even, "here": here}
        self.findings.append(result)

    def document(self, paper: str, pair: str, command: str) -> dict[str, Any]:
        """All of it as plain data, with where it comes from."""
        return {
            "paper": paper,
            "pair": pair,
            "made_by": command,
            "environment": dict(self.session),
            "size": {"items": self.size.items, "seeds": self.size.seeds, "tokens": self.size.tokens},
            "notes": self.notes,
            "tables": {"findings": self.findings, "learned": self.learned, "rows": self.rows},
        }
