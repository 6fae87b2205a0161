"""The tables of a report as plain text cells: the form of the papers' tables, one row for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.eval.report.figures import Row, Task
from draftwood.eval.report.naming import LOWER_IS_BETTER, score_name

NONE = "–"
FEW = 10  # items, below which a bootstrap interval is too narrow


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with what it means."""

    title: str
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row; `best` holds (row, column) of what is best in its column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = field(default=frozenset())


METHOD = Column("Method", "Name and the options that are not the usual ones.")
TAU = Column("tau", "Tokens per forward of the target (block efficiency); plain decoding has 1.")
ACCEPTANCE = Column("Accepted", "Accepted over drafted tokens. Wide trees and beams draft many to accept few.")
COST = Column("c", "Seconds of a forward of the draft over those of a forward of the target.")
RATE = Column("Tokens/s", "Of the answers, over wall time with the prompt.")
SPEED_UP = Column("Speed-up", "Tokens per second over plain decoding's, on the same items and seeds.")
SAME = Column("Same text", "Share of answers that equal plain decoding's token by token; means something when greedy.")
EXACT = Column("Exact", "yes: the output has the distribution of the method's reference; no: the method is lossy.")
FAILED = Column("Failed", "Runs that could not be decoded (score 0), and runs that could not be scored (no score).")


def cell(interval: Mapping[str, Any] | None, digits: int = 2) -> str:
    """0.81 [0.70, 0.92]"""
    if interval is None or interval["value"] is None:
        return NONE
    value = f"{interval['value']:.{digits}f}"
    if interval["low"] is None:
        return value
    return f"{value} [{interval['low']:.{digits}f}, {interval['high']:.{digits}f}]"


def task_table(task: Task) -> Table:
    """Quality, speed and what explains the speed, for each method on one task."""
    scores = [name for name in _scores(task.rows) if name != task.metric]
    first = Column(score_name(task.metric).capitalize(), "The score that stands for this task.")
    counters = list(
        dict.fromkeys(name for row in task.rows if isinstance(row["energy"], Mapping) for name in row["energy"])
    )
    columns = [METHOD, first, *(Column(name, score_name(name).capitalize() + ".") for name in scores)]
    columns += [RATE, SPEED_UP, TAU, ACCEPTANCE, COST]
    columns += [
        Column(f"J/token, {name}", "Joules per token by this counter, idle power included.") for name in counters
    ]
    columns += [SAME, EXACT, FAILED]
    rows = []
    for row, label, _ in task:
        failed = row["runs"]["failed_to_decode"], row["runs"]["failed_to_score"]
        paired, decoding = row["paired"], row["decoding"]
        cost = row["timing"]["draft_cost_ratio"]
        energy = row["energy"] if isinstance(row["energy"], Mapping) else {}
        rows.append(
            [
                label,
                cell(row["quality"].get(task.metric)),
                *(cell(row["quality"].get(name)) for name in scores),
                cell(row["timing"]["tokens_per_second"], 0),
                "1" if paired is None else cell(paired["speed_up"]),
                cell(decoding["tau"]),
                cell(decoding["acceptance_rate"]) if decoding["drafted"] else NONE,
                NONE if cost is None else f"{cost:.2f}",
                *(cell(energy.get(name, {}).get("joules_per_token")) for name in counters),
                NONE if paired is None else _percent(paired["same_tokens"]),
                "yes" if row["lossless"] else "no",
                f"{failed[0]} + {failed[1]} of {row['runs']['made']}" if any(failed) else "0",
            ]
        )
    values = [
        [_value(row["quality"].get(task.metric)) for row in task.rows],
        [_value(row["timing"]["tokens_per_second"]) for row in task.rows],
        [_value(row["decoding"]["tau"]) for row in task.rows],
    ]
    places = [1, columns.index(RATE), columns.index(TAU)]
    best: set[tuple[int, int]] = set()
    for column, numbers in zip(places, values, strict=True):
        known = [number for number in numbers if number is not None]
        if known:
            wanted = min(known) if column == 1 and task.metric in LOWER_IS_BETTER else max(known)
            best |= {(place, column) for place, number in enumerate(numbers) if number == wanted}
    return Table(columns, rows, frozenset(best))


def overview(tasks: Sequence[Task]) -> Table:
    """Speed-up of each method on each task, and the geometric mean over tasks."""
    columns = [METHOD, *(Column(task.name, f"Speed-up on {task.name}.") for task in tasks)]
    mean = len(tasks) > 1
    if mean:
        columns.append(Column("Mean", "Geometric mean over the tasks."))
    rows, means = [], []
    for place, label in enumerate(tasks[0].labels):
        paired = [task.rows[place]["paired"] for task in tasks]
        if any(each is None for each in paired):
            continue
        values = [each["speed_up"]["value"] for each in paired]
        known = all(value for value in values)
        means.append(math.exp(sum(map(math.log, values)) / len(values)) if known else None)
        last = [NONE if means[-1] is None else f"{means[-1]:.2f}"] if mean else []
        rows.append([label, *(cell(each["speed_up"]) for each in paired), *last])
    best = set()
    known_means = [value for value in means if value is not None]
    if known_means:
        best = {(place, len(columns) - 1) for place, value in enumerate(means) if value == max(known_means)}
    return Table(columns, rows, frozenset(best))


def conclusion(task: Task) -> str:
    """One sentence: which lossless method was fastest, and whether that is beyond doubt."""
    known = [
        (row["paired"]["speed_up"], label)
        for row, label, _ in task
        if row["paired"] is not None and row["lossless"] and row["paired"]["speed_up"]["value"] is not None
    ]
    if not known:
        return "No lossless method was measured beside plain decoding."
    best, label = max(known, key=lambda each: each[0]["value"])
    low, high = best["low"], best["high"]
    said = f"{label} was the fastest lossless method: {cell(best)} times plain decoding"
    if low is None:
        return f"{said}, on a single item: no interval can be given."
    if low > 1 and best["n"] < FEW:
        return f"{said}; the interval lies above 1, but of {best['n']} items no interval says much."
    if low > 1:
        return f"{said}; the interval lies above 1, so it is faster."
    if high < 1:
        return f"{said}: nothing was faster than plain decoding."
    return f"{said}; the interval spans 1, so this measurement does not show that it is faster."


def settings(rows: Sequence[Row], labels: Sequence[str]) -> Table:
    """All options of each method."""
    columns = [METHOD, Column("Options", "All of them, the usual ones too.")]
    cells = []
    for row, label in zip(rows, labels, strict=True):
        options = [f"{key}={value}" for key, value in row["method"].items() if key != "name" and value is not None]
        cells.append([label, ", ".join(options) or "none"])
    return Table(columns, cells)


def _scores(rows: Sequence[Row]) -> list[str]:
    found = dict.fromkeys(name for row in rows for name in row["quality"] if name != "metric")
    return [name for name in found if any(_value(row["quality"].get(name)) is not None for row in rows)]


def _value(interval: Mapping[str, Any] | None) -> float | None:
    return None if interval is None else interval["value"]


def _percent(interval: Mapping[str, Any]) -> str:
    return NONE if interval["value"] is None else f"{interval['value']:.0%}"
