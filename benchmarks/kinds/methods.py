"""Methods on tasks, part by part: speed beside plain decoding in the same turns, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

from pydantic import Field

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows, Strict, placed
from draftwood.engine.metrics import PARTS
from draftwood.eval.evaluation import evaluate
from draftwood.eval.running import EvalJob, EvalPlan
from draftwood.eval.store import records_of
from draftwood.eval.summary import (
    RATIOS,
    SECONDS,
    TOKENS,
    decoding,
    field,
    mean,
    over,
    paired,
    versus,
)
from draftwood.eval.tasks import Instance, Task, parse
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams
from draftwood.util.jsonl import Record

ALL = "all"


class MethodEntry(Strict, extra="allow"):
    """A method with its options: `sweep` has lists of values, all combinations of which are run.

    `label` may name options in braces; `over` is the label of the method that its speed is compared with, the part's
    first one unless it is given.
    """

    label: str
    over: str = ""
    sweep: dict[str, list[Any]] = Field(default_factory=dict)


class MethodPart(Strict):
    """Methods that run in the same turns, the first of them the baseline."""

    methods: list[MethodEntry]
    sampling: list[dict[str, Any]] = Field(default=[{}])
    tasks: list[str] | None = None  # the experiment's unless given


class MethodSetting(Strict):
    """One method of a part as it is run; `base` is the number of the one that it is compared with."""

    label: str
    method: dict[str, Any]
    swept: dict[str, Any]
    base: int


def expanded(entries: Sequence[MethodEntry]) -> list[MethodSetting]:
    """Every combination of each entry's sweeps."""
    found: list[MethodSetting] = []
    for entry in entries:
        options = entry.model_extra or {}
        for values in product(*entry.sweep.values()):
            swept = dict(zip(entry.sweep, values, strict=True))
            label = entry.label.format(**options, **swept)
            labels = [*(one.label for one in found), label]
            base = labels.index(entry.over.format(**swept)) if entry.over else 0
            found.append(MethodSetting(label=label, method={**options, **swept}, swept=swept, base=base))
    return found


class Methods(Kind):
    """Parts of methods on `limit` items of each of the `tasks`, `seeds` times, answers of at most `tokens`."""

    parts: dict[str, MethodPart]
    tasks: list[str]
    limit: int = 8
    tokens: int = 64
    seeds: int = 1

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """A table for each part: a row for each method and task."""
        found: dict[str, Rows] = {}
        for name, part in self.parts.items():
            settings = expanded(part.methods)
            for number, sampling in enumerate(part.sampling):
                groups = self.groups(bench, f"{name}-{number}", part, settings, sampling)
                rows = [row for i in range(len(settings)) for row in rows_of(settings, groups, i)]
                found.setdefault(name, []).extend({"temperature": sampling.get("temperature", 0), **r} for r in rows)
        return found

    def groups(
        self, bench: Bench, place: str, part: MethodPart, settings: Sequence[MethodSetting], sampling: Mapping[str, Any]
    ) -> dict[str, list[list[Record]]]:
        """Records by task and method, of the items that all methods have run on."""
        plan = self.plan(part, settings, sampling)
        records = self.records(bench, plan, place)
        groups: dict[str, list[list[Record]]] = {}
        for task, _ in plan.tasks:
            name = task.name
            made = [
                {(r["place"], r["seed"]): r for r in records if (r["task"], r["method"]) == (name, i)}
                for i in range(len(settings))
            ]
            shared = sorted(set.intersection(*(set(each) for each in made)))
            groups[name] = [with_usual_rounds([each[key] for key in shared]) for each in made]
        return groups

    def plan(self, part: MethodPart, settings: Sequence[MethodSetting], sampling: Mapping[str, Any]) -> EvalPlan:
        """The plan of a part: each method on each item, with each seed."""
        methods = [Method.parse({name: placed(value) for name, value in one.method.items()}) for one in settings]
        return EvalPlan(
            methods, self.items(part.tasks or self.tasks), SamplingParams(**sampling), range(self.seeds), warmup=1
        )

    def items(self, names: Sequence[str]) -> list[tuple[Task, list[Instance]]]:
        """Tasks by name, each with its first items; answers have the task's usual length, at most `tokens`."""
        chosen = [parse(name, {"max_new_tokens": min(self.tokens, parse(name).usual_tokens)}) for name in names]
        return [(task, task.instances(self.limit)) for task in chosen]

    def records(self, bench: Bench, plan: EvalPlan, place: str) -> list[Record]:
        """The runs of a plan, as they are made or were made before; after Ctrl-C those that there are."""
        out, counts = bench.work / place, [0, 0]

        def on_job(job: EvalJob) -> None:
            bench.on_progress(f"{place}: {job.task.name}, {job.method.name}", *counts)
            counts[0] += 1

        def begun(made: int, expected: int) -> None:
            counts[:] = [made, expected]

        if not bench.stopped:
            try:
                evaluate(bench.engine, plan, out, begun, on_job)
            except KeyboardInterrupt:
                bench.stopped = True
        return list(records_of(out).values())


def rows_of(settings: Sequence[MethodSetting], groups: Mapping[str, Sequence[Sequence[Record]]], i: int) -> Rows:
    """The rows of method `i`: over all tasks and of each; of one that failed, the reasons."""
    setting = settings[i]
    lossy = not Method.parse(dict(setting.method)).lossless
    head = {"method": setting.label, **{key: short(value) for key, value in setting.swept.items()}, "lossy": lossy}
    failed = {each["error"] for group in groups.values() for each in group[i] if each["status"] == "failed"}
    rows: Rows = [{**head, "task": "failed", "failure": error} for error in sorted(failed)]
    of_tasks = {task: found for task, group in groups.items() if (found := speed(group[i], group[setting.base]))}
    if of_tasks:
        mine, base = (together([group[k] for group in groups.values()]) for k in (i, setting.base))
        rows.append({**head, "task": ALL, **speed(mine, base)})
    return [*rows, *({**head, "task": task, **found} for task, found in of_tasks.items())]


def short(value: Any) -> Any:
    """An option as rows have it."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def together(groups: Sequence[Sequence[Record]]) -> list[Record]:
    """Records of several tasks as of one: items of different tasks are different items."""
    return [{**record, "place": (task, record["place"])} for task, group in enumerate(groups) for record in group]


def decode_seconds(record: Record) -> float:
    """Seconds as if the prompt had been in the cache: the first round counts as the mean of the others.

    Where it is the only one, as the mean that `with_usual_rounds` has added to the record, if it has.
    """
    seconds, later = _later(record)
    first = record["rounds"]["first_round_seconds"]
    usual = seconds / later if later else record.get("usual_round_seconds", first)
    return float(record["seconds"] - first + usual)


def _later(record: Record) -> tuple[float, int]:
    """Seconds and number of the rounds behind the first."""
    rounds = record["rounds"]
    return sum(rounds[f"{part}_seconds"] for part in PARTS) - rounds["first_round_seconds"], rounds["rounds"] - 1


def with_usual_rounds(group: Sequence[Record]) -> list[Record]:
    """Runs of one method and task, each with the mean seconds of a round behind the first, over all of them, added."""
    later = [_later(record) for record in group if record["status"] != "failed"]
    seconds, rounds = (math.fsum(column) for column in zip(*later, strict=True)) if later else (0.0, 0.0)
    return [{**record, "usual_round_seconds": seconds / rounds} for record in group] if rounds else list(group)


def speed(group: Sequence[Record], base: Sequence[Record]) -> dict[str, Any]:
    """Speed over the baseline in the same turns, the rounds' counts and where their time went.

    Ratios are of sums over runs; `speed_up` leaves the prompt's forward out, `speed_up_with_prompt` does not.
    `tau_ratio` compares tokens per round. Empty where no item was decoded by both.
    """
    pairs = paired(group, base)
    if not pairs:
        return {}
    mine = [record for record, _ in pairs]
    counts = decoding(mine)
    spent = {part: sum(record["rounds"][f"{part}_seconds"] for record in mine) for part in PARTS}
    slots = [median(record["rounds"]["peak_slots"] for record in side) for side in zip(*pairs, strict=True)]
    total, rounds = sum(spent.values()) or 1.0, counts["rounds"] or 1
    return {
        "runs": len(mine),
        "speed_up": versus(pairs, TOKENS, decode_seconds),
        "speed_up_with_prompt": versus(pairs, TOKENS, SECONDS),
        "tau_ratio": versus(pairs, TOKENS, field("rounds", "rounds")),
        "tokens_per_second": over(mine, TOKENS, decode_seconds),
        **{name: counts[name]["value"] for name in RATIOS},
        "slots_ratio": slots[0] / (slots[1] or 1),
        **{f"{part}_ms": 1000 * value / rounds for part, value in spent.items()},
        "not_a_forward": (spent["sampling"] + spent["other"]) / total,
        "same_text": mean([(a, float(a["token_hash"] == b["token_hash"])) for a, b in pairs])["value"],
    }
