"""Methods measured in turns on the same items, and what a paper says beside what was found."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import Choose, judged_apart, of_tasks
from benchmarks.pages.tables import short
from benchmarks.papers.models import Models
from benchmarks.papers.settings import PLAIN, PaperMethod, PaperSettings, files
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.eval.evaluation import evaluate
from draftwood.eval.intervals import Array, Interval
from draftwood.eval.running import EvalJob, EvalPlan
from draftwood.eval.store import records_of
from draftwood.eval.summary import NATS, SECONDS, TOKENS, clusters, over, paired, per_item, scored, summary_of
from draftwood.eval.summary import field as number
from draftwood.eval.tasks import Instance, Task, parse
from draftwood.sampling.params import SamplingParams
from draftwood.util.jsonl import Record

Paper = tuple[float | None, float | None]  # the ends of what a paper gives; None where it gives no such end
Row = Mapping[str, Any]
LEAST_SCORE = 0.05  # where no method scores more, the perplexity of answers stands for their quality
COLUMNS = ("tokens", "seconds", "quality", "judged", "joules")  # of `Sweep.table`


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured; `tokens` limits each answer, None leaves it to the task."""

    items: int | Mapping[str, int]  # of each task, or by its name
    seeds: int
    tokens: int | None = None

    def of(self, task: str) -> int:
        """The number of items of a task; ConfigurationError where it has none."""
        count = self.items if isinstance(self.items, int) else self.items.get(task)
        if count is None:
            raise ConfigurationError(
                f"--items says nothing of {task}; say --items {task}=30, too, or --items 30 for all"
            )
        return count


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs of a sweep, by the paper's names of data sets and the labels of methods."""

    entries: Mapping[str, PaperMethod]
    tasks: Sequence[str]
    summary: Row
    records: Sequence[Record]

    @property
    def labels(self) -> list[str]:
        return list(self.entries)

    def row(self, task: str, label: str) -> Row:
        """The summary of a method on a task."""
        result: Row = self.summary["rows"][self.tasks.index(task) * len(self.labels) + self.labels.index(label)]
        return result

    def of(self, label: str, task: str) -> list[Record]:
        """The runs of a method on a task."""
        name, method = self._name(task), self.labels.index(label)
        return [each for each in self.records if (each["task"], each["method"]) == (name, method)]

    def _name(self, task: str) -> str:
        name: str = self.summary["configuration"]["tasks"][self.tasks.index(task)]["name"]
        return name

    def measure(self, name: str, task: str, label: str) -> Interval | None:
        """One of MEASURES or PREDICTED; None where the method does not have it, or was left out."""
        if label not in self.entries or task not in self.tasks:
            return None
        if name in PREDICTED:
            return None if label == PLAIN else predicted(self.of(label, task), self.of(PLAIN, task), name)
        if name == "J/token":
            known = [record for record in self.of(label, task) if record.get("joules")]
            return over(known, joules, TOKENS) if known else None
        return MEASURES[name](self.row(task, label))

    def value(self, name: str, task: str, label: str) -> float:
        """The value of a measure alone; NaN where there is none."""
        result = self.measure(name, task, label)
        return math.nan if result is None or result["value"] is None else result["value"]

    def starting(self, prefix: str) -> list[str]:
        """The labels that begin so."""
        return [label for label in self.labels if label.startswith(prefix)]

    def faster(self, of: str, other: str, tasks: Sequence[str] | None = None) -> Interval | None:
        """Tokens per second of whole requests, their prompts included, over another method's on the same items.

        Of several tasks the geometric mean: each weighs alike. None where a method was left out.
        """
        return self._compared(of, other, tasks, SECONDS, lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]))

    def perplexity(self, of: str, other: str, tasks: Sequence[str] | None = None) -> Interval | None:
        """The perplexity of answers under the target over that of another method's on the same items; as `faster`."""
        return self._compared(of, other, tasks, NATS, lambda sums: np.exp(sums[1] / sums[0] - sums[3] / sums[2]))

    def _compared(
        self,
        of: str,
        other: str,
        tasks: Sequence[str] | None,
        figure: Callable[[Record], float],
        ratio: Callable[[Array], Array],
    ) -> Interval | None:
        """A ratio of sums over items: tokens and a figure of one method, then of the other."""
        if not {of, other} <= self.entries.keys() or not {*(tasks or ())} <= {*self.tasks}:
            return None
        tables, drawn_with = [], []
        for task in tasks or self.tasks:
            sides = list(zip(*paired(self.of(of, task), self.of(other, task)), strict=True))
            tables.append([per_item(side, each) for side in sides for each in (TOKENS, figure)])
            drawn_with.append(clusters(sides[0]) if sides else [])
        return of_tasks(tables, ratio, drawn_with) if all(tables) else None  # never of fewer tasks than it says

    def apart(
        self, task: str, labels: Sequence[str], choose: Choose, of: Callable[[Array, Array], Array]
    ) -> tuple[Interval, str]:
        """Two of `labels` chosen on half of a task's items and judged on the other, and which they are."""
        drawn_with = clusters([*self._shared(task, labels)[0].values()])
        interval, chosen = judged_apart(self.table(task, labels), choose, of, drawn_with)
        names = [f"{labels[first]} against {labels[second]}" for first, second in chosen]
        return interval, " and ".join(dict.fromkeys(names)) or "nothing"

    def by_score(self, task: str, labels: Sequence[str]) -> bool:
        """Whether scores stand for quality; else the perplexity of answers does, where nothing is scored, or hardly."""
        metric = self.row(task, labels[0])["quality"]["metric"]
        return metric != "perplexity" and any(self.value("score", task, label) > LEAST_SCORE for label in labels)

    def table(self, task: str, labels: Sequence[str]) -> Array:
        """COLUMNS of each method on each item, [label, column, item]: sums over seeds, of items that all have run."""
        runs = self._shared(task, labels)
        metric, by_score = self.row(task, labels[0])["quality"]["metric"], self.by_score(task, labels)
        places = {place: i for i, place in enumerate(dict.fromkeys(place for place, _ in runs[0]))}
        result = np.zeros((len(labels), len(COLUMNS), len(places)))
        for i, each in enumerate(runs):
            for key, record in each.items():
                score = scored(record, metric) if by_score else None
                quality = (score or 0.0, float(score is not None)) if by_score else (-NATS(record), TOKENS(record))
                column = (TOKENS(record), SECONDS(record), *quality, joules(record))
                result[i, :, places[key[0]]] += column
        return result

    def _shared(self, task: str, labels: Sequence[str]) -> list[dict[tuple[int, int], Record]]:
        """Each method's runs by place and seed, of items that all have run, in order."""
        runs = [{(each["place"], each["seed"]): each for each in self.of(label, task)} for label in labels]
        shared = sorted(set.intersection(*(set(each) for each in runs)))
        return [{key: each[key] for key in shared} for each in runs]


def rate(sums: Array) -> Array:
    """Tokens per second of sums [..., column, sample]."""
    result: Array = sums[..., 0, :] / sums[..., 1, :]
    return result


def quality(sums: Array) -> Array:
    """The mean score, or minus the answers' nats per token, of sums [..., column, sample]."""
    result: Array = sums[..., 2, :] / sums[..., 3, :]
    return result


def per_joule(sums: Array) -> Array:
    """Tokens per joule of sums [..., column, sample]; NaN where no counter was read."""
    with np.errstate(divide="ignore"):
        result: Array = np.where(sums[..., 4, :] > 0, sums[..., 0, :] / sums[..., 4, :], np.nan)
    return result


def joules(record: Record) -> float:
    """Energy of a run, of all counters; 0 where none is read."""
    return math.fsum((record.get("joules") or {}).values())


def predicted(group: Sequence[Record], plain: Sequence[Record], name: str) -> Interval | None:
    """The speed-up that EESD's Eq. 14 predicts, or the measured one over it.

    alpha is seconds of drafting a token over seconds of a token of plain decoding on the same items. As in Eq. 13
    nothing but drafting and the target's forwards takes time. Sums: tokens, seconds of drafting, forwards that gave a
    token of the target, seconds, and plain decoding's tokens and seconds.
    """
    pairs = paired(group, plain)
    if not sum(record["rounds"]["drafted"] for record, _ in pairs):
        return None

    def forwards(record: Record) -> float:
        rounds = record["rounds"]
        return float(max(rounds["emitted"] - rounds["accepted"] - rounds.get("forced", 0), 1))

    sides = list(zip(*pairs, strict=True))
    mine = [per_item(sides[0], each) for each in (TOKENS, number("rounds", "draft_seconds"), forwards, SECONDS)]
    theirs = [per_item(sides[1], each) for each in (TOKENS, SECONDS)]

    def value(sums: Array) -> Array:
        token = sums[5] / sums[4]
        guess: Array = sums[0] / (sums[1] / token + sums[2])
        return guess if name == "Eq. 14" else sums[0] / sums[3] * token / guess

    return of_tasks([[*mine, *theirs]], value, [clusters(sides[0])])


PREDICTED = ("Eq. 14", "measured/Eq. 14")


def _decoding(name: str, needs: str, factor: float = 1.0) -> Callable[[Row], Interval | None]:
    return lambda row: scaled(row["decoding"][name], factor) if row["decoding"][needs] else None


def _paired(name: str, factor: float = 1.0) -> Callable[[Row], Interval | None]:
    return lambda row: None if row["paired"] is None else scaled(row["paired"][name], factor)


MEASURES: dict[str, Callable[[Row], Interval | None]] = {
    "score": lambda row: (
        None if row["quality"]["metric"] == "perplexity" else row["quality"].get(row["quality"]["metric"])
    ),
    "perplexity": lambda row: row["quality"]["perplexity"],
    "points": _paired("score_difference", 100),  # hundredths of the score above plain decoding's
    "tokens/s": lambda row: row["timing"]["tokens_per_second"],
    "speed-up": _paired("speed_up"),  # of whole requests, their prompts included
    "tau": lambda row: row["decoding"]["tau"],
    "alpha": _decoding("alpha", "drafting_rounds"),
    "v_d": _decoding("acceptance_rate", "drafted"),
    "r_d": _decoding("draft_share", "drafted"),
    "HM": _decoding("harmonic_mean", "drafted"),
    "width": _decoding("mean_width", "layers"),
    "layers/predicted": _decoding("layers_to_predicted", "layers"),
}


def seen(items: Sequence[Instance], texts: str) -> int:
    """How many items stand in texts: the longest line of what is asked does, but for the word in front of it."""
    lines = [max(each.turns[0].splitlines(), key=len) for each in items] if texts else []
    return sum(re.sub(r"^(Question|Article|Passage|Summarize): ", "", line).strip() in texts for line in lines)


def scaled(interval: Interval, factor: float) -> Interval:
    """An interval in another unit."""
    numbers = interval["value"], interval["low"], interval["high"]
    value, low, high = (None if each is None else each * factor for each in numbers)
    return Interval(value=value, low=low, high=high, n=interval["n"])


def _named(value: Any) -> Any:
    """A value whose paths, if it is a text, are cut to their last names."""
    return re.sub(r"(?<![\w.])[/~][^\s,;']*/", "", value) if isinstance(value, str) else value


@dataclass(slots=True)
class Study:
    """The measurements of a paper on a pair of models, in a directory that can be resumed."""

    paper: PaperSettings
    models: Models
    size: Size
    out: Path
    full: bool = False
    steps: int = 300  # of training an exit
    batch: int = 16  # rows of a step
    only: Sequence[str] = ()  # patterns of labels; none: all
    told: Callable[[str], None] = lambda what: None
    until: float = math.inf  # of `time.monotonic`: no run begins later
    findings: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of every method on every task of every sweep
    learned: list[dict[str, Any]] = field(default_factory=list)  # of what was trained
    notes: list[str] = field(default_factory=list)
    session: Row = field(default_factory=dict)

    def run(
        self, name: str, learned: Mapping[str, str] | None = None, more: Mapping[str, PaperMethod] | None = None
    ) -> Sweep:
        """Make the runs of a sweep that are missing. Ctrl-C keeps what is finished.

        `learned` is what stands in options for trained files, such as EXIT, and where these are; `more` are methods
        beside those of the paper's settings.
        """
        sweep = self.paper.sweeps[name]
        possible = {**self.paper.methods(name, self.full, self.only), **(more or {})}
        entries, engine = {}, self.models.engine
        for label, entry in possible.items():
            try:
                engine.builder.models_of(parsed := engine.method(self.models.own(entry.options, learned or {})))
            except DraftwoodError as error:
                self.note(f"{label} is left out: {error}.")
                continue
            entries[label] = (entry, parsed)
        asked = self.instances(sweep.tasks or list(self.paper.tasks))
        methods = [parsed for _, parsed in entries.values()]
        plan = EvalPlan(methods, list(asked.values()), SamplingParams(**sweep.sampling), range(self.size.seeds))
        summary = self._evaluated(name, plan)
        self.session = summary["sessions"][-1]
        commits = dict.fromkeys(short(each["git_commit"] or "none") for each in summary["sessions"])
        if len(commits) > 1:
            self.note(f"{name}: {', '.join(commits)} are the commits of its runs.")
        records = list(records_of(self.out / name).values())
        result = Sweep({label: entry for label, (entry, _) in entries.items()}, list(asked), summary, records)
        for task in result.tasks:
            for label, entry in result.entries.items():
                measures = (*MEASURES, *PREDICTED, "J/token")
                known = {key: interval for key in measures if (interval := result.measure(key, task, label))}
                if errors := result.row(task, label)["errors"]:
                    failed, why = sum(errors.values()), next(iter(errors))
                    self.note(f"{name}, {task}: {failed} runs of {label} failed ({why}); the other items are compared.")
                lossy = {} if result.row(task, label)["lossless"] else {"lossy": True}
                options = {key: _named(value) for key, value in entry.options.items()}
                about = {"settings": entry.whose, "options": options}
                self.rows.append({"sweep": name, "task": task, "method": label, **about, **lossy, **known})
        return result

    def _evaluated(self, name: str, plan: EvalPlan) -> dict[str, Any]:
        """The summary of a plan's runs: of all, or of those that could be made in time."""

        def told(job: EvalJob) -> None:
            if self.over:
                raise KeyboardInterrupt
            self.told(f"{name}: item {job.place + 1}, {job.task.name}, {job.method.name}")

        try:
            return evaluate(self.models.engine, plan, self.out / name, on_job=told)
        except KeyboardInterrupt:
            if not self.over:
                raise
            if not records_of(self.out / name):
                raise ConfigurationError(
                    f"no run of {name} was made in time; call again, or with more --minutes"
                ) from None
            summary = summary_of(self.out / name)
            self.note(f"{name}: {summary['runs']['made']} of {summary['runs']['expected']} runs were made in time.")
            return summary

    @property
    def over(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.until

    def check_time(self, what: str) -> None:
        """Raise ConfigurationError where the time is over before something is done."""
        if self.over:
            raise ConfigurationError(f"{what} was not done in time; call again, or with more --minutes")

    def instances(self, names: Sequence[str]) -> dict[str, tuple[Task, list[Instance]]]:
        """The tasks that read the data sets of these names, with their first items."""
        limit = {} if self.size.tokens is None else {"max_new_tokens": self.size.tokens}
        learnt = self.models.learnt_from
        result = {}
        for name in names:
            use, data = self.paper.tasks[name], self.models.data
            if data is None:
                task = parse(use.embedded, limit)
            else:
                task = parse(use.task, {"path": str(files(use.task, data)), **use.options, **limit})
            try:
                result[name] = task, task.instances(self.size.of(name), self.models.chat)
            except ConfigurationError as error:
                if not task.runs_code:
                    raise
                self.note(f"{name} is left out: {error}.")
                continue
            if count := seen(result[name][1], learnt):
                self.note(f"{name}: {count} of {len(result[name][1])} items stand in what drafts learnt from.")
        return result

    def note(self, text: str) -> None:
        """Keep a sentence for the end of the output, once."""
        text = _named(text)
        if text not in self.notes:
            self.notes.append(text)

    def compare(
        self, exhibit: str, what: str, paper: Paper, here: Interval | None, unit: str = "x", even: float | None = 1.0
    ) -> None:
        """Note what the paper gives beside what was found. `even` separates better from worse, where something does."""
        if here is None and self.only:
            return
        result = {"exhibit": exhibit, "what": what, "paper": list(paper), "unit": unit, "even": even, "here": here}
        self.findings.append(result)

    def tables(self) -> dict[str, Any]:
        """The results as plain data."""
        tables = {"findings": self.findings, "learned": self.learned, "rows": self.rows}
        return {"environment": dict(self.session), "notes": self.notes, "tables": tables}
