"""Methods on tasks, part by part: speed beside plain decoding in the same turns, quality, where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from statistics import median
from typing import Any

from pydantic import Field

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows, Strict
from benchmarks.kinds.fronts import Front, fronts
from benchmarks.kinds.learned import Learned, Places, learn, resolved, sizes
from benchmarks.kinds.stopwatch import Stopwatch
from benchmarks.pairs import pair
from draftwood.engine.engine import Engine
from draftwood.eval.evaluation import stored
from draftwood.eval.intervals import Interval, perplexity_ratio
from draftwood.eval.running import Plan
from draftwood.eval.summary import (
    NATS,
    PARTS,
    RATIOS,
    SECONDS,
    TOKENS,
    decode_seconds,
    decoding,
    field,
    mean,
    over,
    paired,
    quality,
    scored,
    versus,
    with_usual_rounds,
)
from draftwood.eval.tasks import parse
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams
from draftwood.util.jsonl import Record

ALL = "all"


class Entry(Strict, extra="allow"):
    """A method with its options: `sweep` has lists of values, all combinations of which are run.

    `label` may name options in braces. `about` is kept in the rows; `trains` names what was trained for it, without
    which it is left out; with `exits` the method runs with each exit that was trained.
    """

    label: str
    over: str = ""  # label of the method that its speed is compared with; the part's first one unless told
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    about: dict[str, Any] = Field(default_factory=dict)
    trains: list[str] = Field(default_factory=list)
    exits: bool = False


class Compared(Strict):
    """Speed of `of` over `over` in the same turns. A name with a star means the fastest of those that it matches."""

    of: str
    over: str
    what: str = ""
    wanted: float | None = None
    each_task: bool = False


class Quality(Strict):
    """Scores come from another pair, which gives the same text, and from more items."""

    pair: str = "embedded"
    dtype: str = "float32"
    limit: int = 150
    seeds: int = 1
    tasks: list[str] | None = None


class Part(Strict):
    """Methods that run in the same turns, the first of them the baseline."""

    methods: list[Entry]
    sampling: list[dict[str, Any]] = Field(default=[{}])
    tasks: list[str] | None = None
    tokens: int | None = None
    limit: int | None = None  # items of each task; the experiment's unless told
    compare: list[Compared] = Field(default_factory=list)
    fronts: dict[str, Front] = Field(default_factory=dict)  # by what their settings are called
    quality: Quality | None = None


class Setting(Strict):
    """One method of a part as it is run."""

    label: str
    method: dict[str, Any]
    about: dict[str, Any]
    trains: list[str]
    base: int  # the setting that it is compared with


def expanded(entries: Sequence[Entry], learned: Places) -> list[Setting]:
    """Every combination of each entry's sweeps. What needs something that could not be learned is left out."""
    found: list[Setting] = []
    for entry in entries:
        if any(name in learned.missing for name in entry.trains):
            continue
        of_exits: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})]
        if entry.exits:
            first = min((one.layers for one in learned.exits), default=0)
            of_exits = [
                (
                    {"exit": one.place},
                    {"exit": one.label, "layers": one.layers, "depth": one.depth}
                    | {"first": one.layers == first, "taught": one.taught},
                )
                for one in learned.exits
            ]
        for values, (option, exit) in product(product(*entry.sweep.values()), of_exits):
            swept = dict(zip(entry.sweep, values, strict=True))
            method = resolved({**(entry.model_extra or {}), **swept, **option}, learned.places)
            if method is not None:
                about = {**{name: _short(value) for name, value in swept.items()}, **exit, **entry.about}
                label = entry.label.format(**{**(entry.model_extra or {}), **about})
                labels = [*(one.label for one in found), label]
                base = labels.index(entry.over.format(**about)) if entry.over else 0
                found.append(Setting(label=label, method=method, about=about, trains=entry.trains, base=base))
    return found


def _short(value: Any) -> Any:
    """An option as rows have it."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


class Methods(Kind):
    """Parts of methods on tasks."""

    parts: dict[str, Part]
    tasks: list[str]
    limit: int = 8
    seeds: int = 1
    tokens: int = 64
    learn: Learned = Field(default_factory=Learned)

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """Tables PART, PART.compared and PART.front, and `learned`."""
        found: dict[str, Rows] = {}
        learned = learn(bench, self.learn)
        for name, part in self.parts.items():
            settings = expanded(part.methods, learned)
            for number, sampling in enumerate(part.sampling):
                tables = self._measure(bench, f"{name}-{number}", part, settings, sampling)
                for suffix, rows in tables.items():
                    found.setdefault(name + suffix, []).extend(rows)
        told = [*learned.rows, *({key: row[key] for key in row if key != "histograms"} for row in learned.judged)]
        return found | ({"learned": told} if told else {})

    def _measure(
        self, bench: Bench, place: str, part: Part, settings: Sequence[Setting], sampling: Mapping[str, Any]
    ) -> dict[str, Rows]:
        made = Made(bench, settings, sampling, part.tokens, self.tokens)
        tasks, q = part.tasks or self.tasks, part.quality
        groups = made.runs(place, bench.engine, tasks, part.limit or self.limit, self.seeds)
        judged = groups
        if q is not None:
            engine = bench.engine_of(pair(q.pair), q.dtype)
            judged = made.runs(f"{place}-quality", engine, q.tasks or tasks, q.limit, q.seeds, timed=False)
        about = {"temperature": sampling.get("temperature", 0), **_truncation(sampling)}
        weights = sizes(bench.pair) if any(setting.trains for setting in settings) else {}
        joined = [together([judged[task][k] for task in judged]) for k in range(len(settings))]
        rows: Rows = []
        for i, setting in enumerate(settings):
            head = {**about, "method": setting.label, **setting.about}
            head["lossy"] = not Method.parse(dict(setting.method)).lossless
            if weights:
                head["trained"] = sum(weights[name] for name in setting.trains)
                head["deployed"] = head["trained"] + weights["target"]
            failed = {each["error"] for task in tasks for each in groups[task][i] if each["status"] == "failed"}
            rows += [{**head, "task": "failed", "failure": error} for error in sorted(failed)]
            of_tasks = {task: found for task in tasks if (found := speed(groups[task][i], groups[task][setting.base]))}
            if of_tasks:
                mine, base = (together([groups[task][k] for task in tasks]) for k in (i, setting.base))
                speeds = [found["speed_up"]["value"] for found in of_tasks.values()]
                spread = Interval(value=median(speeds), low=min(speeds), high=max(speeds), n=len(speeds))
                whole = {**speed(mine, base), "over_tasks": spread, **_judged(joined, i, setting.base, False)}
                rows.append({**head, "task": ALL, **whole})
            for task, found in of_tasks.items():
                good = _judged(judged.get(task, groups[task]), i, setting.base)
                rows.append({**head, "task": task, **found, **good})
        labels = [setting.label for setting in settings]
        tables = {"": rows}
        if part.compare:
            tables[".compared"] = [{**about, **row} for row in compared(part.compare, labels, groups)]
        if part.fronts:
            tables[".front"] = [
                {**about, "grid": name, **row}
                for name, front in part.fronts.items()
                for row in fronts(front, labels, groups, judged)
            ]
        return tables


@dataclass(frozen=True, slots=True)
class Made:
    """Runs of a part's methods with one kind of sampling."""

    bench: Bench
    settings: Sequence[Setting]
    sampling: Mapping[str, Any]
    tokens: int | None  # of an answer; each task's own, but at most `most`, unless told
    most: int

    def runs(
        self, place: str, engine: Engine, tasks: Sequence[str], limit: int, seeds: int, timed: bool = True
    ) -> dict[str, list[list[Record]]]:
        """Records by task and method, of items and seeds that all methods have run on."""
        bench = self.bench
        usual = [parse(name).usual_tokens for name in tasks]
        chosen = [
            parse(name, {"max_new_tokens": self.tokens or min(self.most, tokens)})
            for name, tokens in zip(tasks, usual, strict=True)
        ]
        methods = [Method.parse(dict(setting.method)) for setting in self.settings]
        asked = [(task, task.instances(limit)) for task in chosen]
        plan = Plan(methods, asked, SamplingParams(**self.sampling), range(seeds), warmup=int(timed))
        watched = Stopwatch(engine) if timed else None
        try:
            records = stored(
                watched.engine if watched else engine,
                plan,
                bench.work / place,
                lambda made, expected: bench.told(place, made, expected),
                lambda job, done, total: bench.told(f"{place}: {job.task.name}, {job.method.name}", done, total),
                watched.noted if watched else dict,
                run=not bench.stopped,
            )
        except KeyboardInterrupt:  # rows are of what there is
            bench.stopped = True
            return self.runs(place, engine, tasks, limit, seeds, timed)
        groups: dict[str, list[list[Record]]] = {}
        for name in tasks:
            made = [
                {(r["place"], r["seed"]): r for r in records if (r["task"], r["method"]) == (name, i)}
                for i in range(len(methods))
            ]
            whole = sorted(set.intersection(*(set(each) for each in made)))
            groups[name] = [with_usual_rounds([each[key] for key in whole]) for each in made]
        return groups


def _truncation(sampling: Mapping[str, Any]) -> dict[str, str]:
    cut = [f"{name.replace('_', '-')} {sampling[name]:g}" for name in ("top_k", "top_p", "min_p") if name in sampling]
    return {"truncation": ", ".join(cut)} if cut else {}


def together(groups: Sequence[Sequence[Record]]) -> list[Record]:
    """Records of several tasks as of one: items of different tasks are different items."""
    return [{**record, "place": (task, record["place"])} for task, group in enumerate(groups) for record in group]


def speed(group: Sequence[Record], base: Sequence[Record]) -> dict[str, Any]:
    """Speed over the baseline in the same turns, the rounds' counts and where their time went.

    Ratios are of sums over runs; `speed_up` leaves the prompt's forward out, `speed_up_with_prompt` does not.
    `tau_ratio` compares tokens per round.
    """
    pairs = paired(group, base)
    if not pairs:
        return {}
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    counts = decoding(mine)
    spent = {part: sum(record["rounds"][f"{part}_seconds"] for record in mine) for part in PARTS}
    slots = [median(record["rounds"]["peak_slots"] for record in side) for side in (mine, theirs)]
    total, rounds = sum(spent.values()) or 1.0, counts["rounds"] or 1
    return {
        "runs": len(mine),
        "speed_up": versus(pairs, TOKENS, decode_seconds),
        "speed_up_with_prompt": versus(pairs, TOKENS, SECONDS),
        "tau_ratio": versus(pairs, TOKENS, field("rounds", "rounds")),
        "tokens_per_second": over(mine, TOKENS, decode_seconds),
        **{name: counts[name]["value"] for name in (*RATIOS, "harmonic_mean")},
        "peak_slots": counts["peak_slots"],
        "slots_ratio": slots[0] / (slots[1] or 1),
        **{f"{part}_ms": 1000 * value / rounds for part, value in spent.items()},
        **{f"{part}_time_share": value / total for part, value in spent.items()},
        "not_a_forward": (spent["sampling"] + spent["other"]) / total,
        "controller_share": sum(record.get("controller_seconds", 0.0) for record in mine) / total,
        "same_text": mean([(a, float(a["token_hash"] == b["token_hash"])) for a, b in pairs])["value"],
    }


def _judged(groups: Sequence[Sequence[Record]], i: int, base: int, scores: bool = True) -> dict[str, Any]:
    """Score and perplexity, and what they are beside the baseline's on the same runs."""
    group, pairs = groups[i], paired(groups[i], groups[base])
    if not pairs:
        return {}
    metric = parse(group[0]["task"]).headline if scores else "perplexity"
    good = quality(group, metric)
    found: dict[str, Any] = {
        "perplexity": good["perplexity"],
        "perplexity_ratio": versus(pairs, NATS, TOKENS, perplexity_ratio),
        "judged": len(pairs),
    }
    if metric != "perplexity":
        both = [(a, scored(a, metric), scored(b, metric)) for a, b in pairs]
        found["score"] = good[metric]
        found["points"] = mean([(a, 100 * (x - y)) for a, x, y in both if x is not None and y is not None])
    return found


def compared(
    asked: Sequence[Compared], labels: Sequence[str], groups: Mapping[str, Sequence[Sequence[Record]]]
) -> Rows:
    """Ratios between methods, over all tasks and, if asked, for each."""
    rows: Rows = []
    for each in asked:
        for task in (ALL, *groups) if each.each_task else (ALL,):
            chosen = list(groups) if task == ALL else [task]
            members = [together([groups[name][i] for name in chosen]) for i in range(len(labels))]

            def fastest(pattern: str, members: Sequence[Sequence[Record]] = members) -> int | None:
                some = [i for i, name in enumerate(labels) if (name == pattern or fnmatchcase(name, pattern))]
                some = [i for i in some if members[i] and all("tokens" in record for record in members[i])]

                def rate(i: int) -> float:
                    return float(sum(r["tokens"] for r in members[i]) / sum(map(decode_seconds, members[i])))

                return max(some, key=rate, default=None)

            of, over = fastest(each.of), fastest(each.over)
            if of is None or over is None:
                continue
            ratios = speed(members[of], members[over])
            row = {
                "task": task,
                "of": labels[of],
                "over": labels[over],
                "what": each.what,
                "speed": ratios["speed_up"],
                "tau": ratios["tau_ratio"],
            }
            if each.wanted is not None:
                row |= {"wanted": each.wanted, "reached": "yes" if ratios["speed_up"]["value"] >= each.wanted else "no"}
            rows.append(row)
    return rows
