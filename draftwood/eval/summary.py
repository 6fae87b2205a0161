"""Summary of the runs of a directory: one row for each task and method, with intervals and ratios to the baseline.

`quality` and `decoding` depend on the configuration alone; `timing` and `energy` also on the machine and the moment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from jinja2 import TemplateError

from draftwood.engine.metrics import ADDED, LATER, PARTS, QUOTIENTS, cost_ratio
from draftwood.errors import ConfigurationError
from draftwood.eval.energy import NOT_AVAILABLE
from draftwood.eval.intervals import Interval, pass_at, quotient, ratio
from draftwood.eval.running import BY_POSITION, HISTOGRAMS, added, grouped
from draftwood.eval.store import CONFIGURATION, failed, read_run, records_of
from draftwood.util.jsonl import Record
from draftwood.util.safe_parsing import short_repr

SUMMARY_SCHEMA = 1
PASSED, PERPLEXITY = "passed", "perplexity"
PASS_AT = (1, 5, 10, 100)
RATIOS = {  # a ratio -> the sums of rounds that it divides; beams have what Theorem 3.2 predicts, too
    **{name: (each.above, each.below) for name, each in QUOTIENTS.items()},
    "predicted_layers": ("predicted_layers", "rounds"),
    "layers_to_predicted": ("layers", "predicted_layers"),
}
ResultRow: TypeAlias = Mapping[str, Any]  # one method on one task
T = TypeVar("T")


@contextmanager
def understood(directory: Path) -> Iterator[None]:
    """Raise ConfigurationError where work on what a directory holds fails: it is not what an evaluation wrote."""
    try:
        yield
    except ConfigurationError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TemplateError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {short_repr(str(error))}"
        raise ConfigurationError(
            f"{directory} does not hold what `draftwood eval` writes ({what}); run it again with another --out"
        ) from error


def summary_of(directory: Path, records: Mapping[str, Record] | None = None) -> dict[str, Any]:
    """The summary of a directory's runs, by default of those on the disk.

    Raises ConfigurationError where they are not what `draftwood eval` writes, and where no run is there yet.
    """
    if records is None and not (records := records_of(directory)):
        raise ConfigurationError(f"{directory} holds no run yet; wait for the first, or run `draftwood eval` again")
    document = read_run(directory / CONFIGURATION)
    configuration, sessions = document["configuration"], document["sessions"]
    with understood(directory):
        for name in ("tasks", "methods", "seeds"):
            listed = configuration[name]
            if not listed or any(entry in listed[:i] for i, entry in enumerate(listed)):
                raise ValueError(f"{name} is empty or has an entry twice")
        idles = [session["idle_watts"] for session in sessions if session["idle_watts"]]
        return summarise(configuration, sessions, records, idles[-1] if idles else None)


def summarise(
    configuration: Mapping[str, Any],
    sessions: Sequence[Mapping[str, Any]],
    records: Mapping[str, Record],
    idle: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The document summary.json. `idle` is watts by counter; None where this machine has no counter."""
    energy: Any = {"idle_watts": dict(idle)} if idle is not None else NOT_AVAILABLE
    groups = dict(grouped(records))
    seeds = configuration["seeds"]
    rows = []
    for task in configuration["tasks"]:
        baseline = groups.get((task["name"], 0), [])
        for number, method in enumerate(configuration["methods"]):
            group = groups.get((task["name"], number), [])
            rows.append(_row(configuration, task, method, number, group, baseline, idle))
    expected = sum(task["items"] for task in configuration["tasks"]) * len(configuration["methods"]) * len(seeds)
    return {
        "schema": SUMMARY_SCHEMA,
        "complete": len(records) == expected,
        "runs": {"expected": expected, "made": len(records), "failed": sum(map(failed, records.values()))},
        "configuration": configuration,
        "sessions": list(sessions),
        "energy": energy,
        "rows": rows,
    }


def _row(
    configuration: Mapping[str, Any],
    task: Mapping[str, Any],
    method: Mapping[str, Any],
    number: int,
    group: Sequence[Record],
    baseline: Sequence[Record],
    idle: Mapping[str, float] | None,
) -> ResultRow:
    made = [record for record in group if "tokens" in record]
    return {
        "task": task["name"],
        "method": method,
        "lossless": configuration["lossless"][number],
        "baseline": number == 0,
        "configuration": {
            "task": task,
            "models": configuration["models"],
            "sampling": configuration["sampling"],
            "seeds": configuration["seeds"],
        },
        "runs": {
            "made": len(group),
            "failed_to_decode": sum(failed(record) and record["stage"] == "decode" for record in group),
            "failed_to_score": sum(failed(record) and record["stage"] == "score" for record in group),
        },
        "errors": dict(Counter(record["error"] for record in filter(failed, group))),
        "quality": quality(group, task["metric"]),
        "decoding": decoding(made),
        "timing": timing(made),
        "energy": NOT_AVAILABLE if idle is None else _energy(made, idle),
        "paired": None if number == 0 else _paired(group, baseline, task["metric"], idle),
    }


def field(*path: str) -> Callable[[Record], float]:
    """Reads a number of a record; 0 where older results lack it."""

    def read(record: Record) -> float:
        value: Any = record
        for name in path:
            value = value.get(name, 0)
        return float(value)

    return read


TOKENS, SECONDS, NATS = field("tokens"), field("seconds"), field("nats")


def per_item(group: Sequence[Record], value: Callable[[Record], float]) -> list[float]:
    """Sums of a value over each item's runs."""
    return [math.fsum(each) for each in by_item((record, value(record)) for record in group)]


def by_item(values: Iterable[tuple[Record, T]]) -> list[list[T]]:
    """The values of each item's runs."""
    items: dict[Any, list[T]] = {}
    for record, value in values:
        items.setdefault(record["place"], []).append(value)
    return list(items.values())


def clusters(group: Sequence[Record]) -> list[int]:
    """The numbers of the clusters that items belong to, in the order of `per_item`; most are alone in theirs."""
    names = {record["place"]: record.get("cluster") or record["place"] for record in group}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return [numbers[name] for name in names.values()]


def over(group: Sequence[Record], above: Callable[[Record], float], below: Callable[[Record], float]) -> Interval:
    """The sum of one value over that of another."""
    return ratio(per_item(group, above), per_item(group, below), clusters(group))


def versus(
    pairs: Sequence[tuple[Record, Record]],
    above: Callable[[Record], float],
    below: Callable[[Record], float],
) -> Interval:
    """`over` of the first of each pair against that of the second."""
    sides = [a for a, _ in pairs], [b for _, b in pairs]
    mine, theirs = ([per_item(side, value) for value in (above, below)] for side in sides)
    return quotient(mine[0], mine[1], theirs[0], theirs[1], clusters(sides[0]))


def mean(values: Sequence[tuple[Record, float]]) -> Interval:
    """The mean of a value over runs, with the interval over items."""
    items = by_item(values)
    of_items = clusters([record for record, _ in values])
    return ratio([math.fsum(each) for each in items], [len(each) for each in items], of_items)


def scored(record: Record, name: str) -> float | None:
    """A score of a run. One that could not decode has answered nothing: 0; one that could not be scored has none."""
    if failed(record):
        return 0.0 if record["stage"] == "decode" else None
    score = record["scores"].get(name)
    return None if score is None else float(score)


def quality(group: Sequence[Record], metric: str) -> dict[str, Any]:
    """Means of all scores, pass@k of programs, and perplexity of the answers under the target."""
    names = dict.fromkeys(name for record in group if not failed(record) for name in record["scores"])
    if metric != PERPLEXITY and any(map(failed, group)):
        names.setdefault(metric)
    scores: dict[str, Any] = {}
    for name in names:
        values = [(record, value) for record in group if (value := scored(record, name)) is not None]
        scores[name] = mean(values)
    if PASSED in names:
        scores |= _pass_at(group)
    made = [record for record in group if record.get("tokens")]
    scores[PERPLEXITY] = exponential(over(made, NATS, TOKENS))
    scores["metric"] = metric
    return scores


def _pass_at(group: Sequence[Record]) -> dict[str, Interval]:
    """pass@k over the seeds of each item, for all k that there are seeds for."""
    scores = by_item((record, scored(record, PASSED)) for record in group)
    runs = [[value for value in each if value is not None] for each in scores]
    max_k = min((len(each) for each in runs), default=0)
    return {
        f"pass@{k}": ratio([pass_at(len(each), int(sum(each)), k) for each in runs], [1.0] * len(runs))
        for k in PASS_AT
        if k <= max_k
    }


def exponential(interval: Interval) -> Interval:
    """exp of nats per token: perplexity."""

    def power(value: float | None) -> float | None:
        return None if value is None or value > 700 else math.exp(value)

    low, high = power(interval["low"]), power(interval["high"])
    return Interval(value=power(interval["value"]), low=low, high=high, n=interval["n"])


def decoding(made: Sequence[Record]) -> dict[str, Any]:
    """Counts of rounds, and the ratios that follow; names are those of `draftwood.engine.metrics.Metrics`."""
    sums = {name: sum(record["rounds"][name] for record in made) for name in ADDED if "seconds" not in name}
    attempted, accepted = (added([record["rounds"][name] for record in made]) for name in BY_POSITION)
    return {
        "tokens": sum(record["tokens"] for record in made),
        "prompt_tokens": sum(record["prompt_tokens"] for record in made),
        **sums,
        "attempted_at": attempted,
        "accepted_at": accepted,
        **{name: over(made, field("rounds", above), field("rounds", below)) for name, (above, below) in RATIOS.items()},
        # HM of accepted/drafted and accepted/emitted (EESD App. D): 2 accepted / (drafted + emitted)
        "harmonic_mean": over(
            made, lambda r: 2 * r["rounds"]["accepted"], lambda r: r["rounds"]["drafted"] + r["rounds"]["emitted"]
        ),
        "peak_slots": max((record["rounds"].get("peak_slots", 0) for record in made), default=0),
        "acceptance_by_position": [a / n for a, n in zip(accepted, attempted, strict=True)],
        **{name: added([record["rounds"].get(name, []) for record in made]) for name in HISTOGRAMS},
    }


def timing(made: Sequence[Record]) -> dict[str, Any]:
    """Wall time, tokens per second with the prompt's forward, where the time went, and c."""
    parts = {part: math.fsum(record["rounds"][f"{part}_seconds"] for record in made) for part in PARTS}
    total = math.fsum(parts.values())
    later = (math.fsum(record["rounds"].get(name, 0) for record in made) for name in LATER)  # of earlier versions: none
    return {
        "seconds": math.fsum(map(SECONDS, made)),
        "round_seconds": total,
        "first_round_seconds": math.fsum(record["rounds"]["first_round_seconds"] for record in made),
        "tokens_per_second": over(made, TOKENS, SECONDS),
        "time_shares": {part: seconds / total if total else 0.0 for part, seconds in parts.items()},
        "draft_cost_ratio": cost_ratio(*later) or None,
    }


def _energy(made: Sequence[Record], idle: Mapping[str, float]) -> dict[str, Any]:
    """Joules by counter, as read and without what the idle machine takes, per token and split by the time line."""
    counters: dict[str, Any] = {}
    shares = timing(made)["time_shares"]
    for name, watts in idle.items():
        known, joules = [record for record in made if name in record["joules"]], field("joules", name)
        raw = math.fsum(map(joules, known))
        counters[name] = {
            "joules": raw,
            "joules_without_idle": raw - watts * math.fsum(map(SECONDS, known)),
            "joules_per_token": over(known, joules, TOKENS),
            "split_by_time": {part: share * raw for part, share in shares.items()},
        }
    return counters


def _paired(
    group: Sequence[Record], baseline: Sequence[Record], metric: str, idle: Mapping[str, float] | None
) -> dict[str, Any]:
    """Against the baseline on the runs that both have: same item, same seed."""
    pairs = paired(group, baseline)
    values = [(a, scored(a, metric), scored(b, metric)) for a, b in pairs]
    ratios: dict[str, Any] = {
        "speed_up": versus(pairs, TOKENS, SECONDS),
        "same_tokens": mean([(a, float(a["token_hash"] == b["token_hash"])) for a, b in pairs]),
        "score_difference": mean([(a, x - y) for a, x, y in values if x is not None and y is not None]),
    }
    if idle:
        ratios["joules_per_token"] = {
            name: versus(
                [pair for pair in pairs if all(name in r["joules"] for r in pair)], field("joules", name), TOKENS
            )
            for name in idle
        }
    return ratios


def paired(group: Sequence[Record], others: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Runs of two methods on the same item with the same seed, of which both could be decoded."""
    theirs = {(record["place"], record["seed"]): record for record in others if "tokens" in record}
    return [
        (record, theirs[record["place"], record["seed"]])
        for record in group
        if "tokens" in record and (record["place"], record["seed"]) in theirs
    ]
