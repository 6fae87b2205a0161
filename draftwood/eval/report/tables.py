"""The tables of a report as plain text cells: the form of the papers' tables, one row for each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.eval.energy import ESTIMATE
from draftwood.eval.report.figures import Task
from draftwood.eval.report.measures import (
    ACCEPTED,
    BOUND,
    BOUNDED,
    JOULES_ESTIMATED,
    NONE,
    RATE,
    SPEED_UP,
    TAU,
    Row,
    cell,
    energies,
    value,
)
from draftwood.eval.report.naming import LOWER_IS_BETTER, score_name

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


def task_table(task: Task) -> Table:
    """Quality, speed and what explains the speed, for each method on one task."""

    def score(name: str) -> Callable[[Row], str]:
        return lambda row: cell(row["quality"].get(name))

    def joules(name: str) -> Callable[[Row], str]:
        digits = JOULES_ESTIMATED.digits if name == ESTIMATE else 2
        return lambda row: cell(energies(row).get(name, {}).get("joules_per_token"), digits)

    def failed(row: Row) -> str:
        decoding, scoring = row["runs"]["failed_to_decode"], row["runs"]["failed_to_score"]
        return f"{decoding} + {scoring} of {row['runs']['made']}" if decoding or scoring else "0"

    scores = dict.fromkeys(name for row in task.rows for name in row["quality"] if name not in ("metric", task.metric))
    known = [name for name in scores if any(value(row["quality"].get(name)) is not None for row in task.rows)]
    made: list[tuple[str, str, Callable[[Row], str]]] = [
        (score_name(task.metric).capitalize(), "The score that stands for this task.", score(task.metric)),
        *((name, score_name(name).capitalize() + ".", score(name)) for name in known),
        *((measure.title, measure.about, measure.cell) for measure in (RATE, SPEED_UP, TAU, ACCEPTED, BOUNDED, BOUND)),
        (
            "c",
            "Seconds of a forward of the draft over those of a forward of the target.",
            lambda row: NONE if (c := row["timing"]["draft_cost_ratio"]) is None else f"{c:.2f}",
        ),
        *(
            (
                f"J/token, {name}",
                JOULES_ESTIMATED.about
                if name == ESTIMATE
                else "Joules per token by this counter, idle power included.",
                joules(name),
            )
            for name in dict.fromkeys(name for row in task.rows for name in energies(row))
        ),
        (
            "Same text",
            "Share of answers that equal plain decoding's token by token; means something when greedy.",
            lambda row: NONE if row["paired"] is None else _percent(value(row["paired"]["same_tokens"])),
        ),
        (
            "Exact",
            "yes: the output has the distribution of the method's reference; no: the method is lossy.",
            lambda row: "yes" if row["lossless"] else "no",
        ),
        ("Failed", "Runs that could not be decoded (score 0), and runs that could not be scored (no score).", failed),
    ]
    columns = [METHOD, *(Column(title, about) for title, about, _ in made)]
    rows = [[label, *(text(row) for _, _, text in made)] for row, label, _ in task]
    titles = [column.title for column in columns]
    numbers = {
        1: [value(row["quality"].get(task.metric)) for row in task.rows],
        **{titles.index(each.title): [each.value(row) for row in task.rows] for each in (RATE, TAU)},
    }
    best = {place: _best(found, place == 1 and task.metric in LOWER_IS_BETTER) for place, found in numbers.items()}
    return Table(columns, rows, frozenset((row, place) for place, chosen in best.items() for row in chosen))


def _best(numbers: Sequence[float | None], lower: bool = False) -> list[int]:
    known = [number for number in numbers if number is not None]
    wanted = (min if lower else max)(known, default=None)
    return [place for place, number in enumerate(numbers) if wanted is not None and number == wanted]


def overview(tasks: Sequence[Task]) -> Table:
    """Speed-up of each method on each task, and the geometric mean over tasks."""
    columns = [METHOD, *(Column(task.name, f"Speed-up on {task.name}.") for task in tasks)]
    several = len(tasks) > 1
    if several:
        columns.append(Column("Mean", "Geometric mean over the tasks."))
    rows: list[list[str]] = []
    means: list[float | None] = []
    for place, label in enumerate(tasks[0].labels):
        paired = [task.rows[place]["paired"] for task in tasks]
        if any(each is None for each in paired):
            continue
        values = [each["speed_up"]["value"] for each in paired]
        means.append(math.exp(sum(map(math.log, values)) / len(values)) if all(values) else None)
        last = [NONE if means[-1] is None else f"{means[-1]:.2f}"] if several else []
        rows.append([label, *(cell(each["speed_up"]) for each in paired), *last])
    return Table(columns, rows, frozenset((place, len(columns) - 1) for place in _best(means)))


def conclusion(task: Task) -> str:
    """One sentence: which lossless method was fastest, and whether that is beyond doubt."""
    known: list[tuple[Any, str]] = [
        (row["paired"]["speed_up"], label)
        for row, label, _ in task
        if row["paired"] is not None and row["lossless"] and row["paired"]["speed_up"]["value"] is not None
    ]
    if not known:
        return "No lossless method was measured beside plain decoding."
    best, label = max(known, key=lambda each: each[0]["value"])
    low, high = best["low"], best["high"]
    found = f"{label} was the fastest lossless method: {cell(best)} times plain decoding"
    if low is None:
        return f"{found}, on a single item: no interval can be given."
    if low > 1 and best["n"] < FEW:
        return f"{found}; the interval lies above 1, but of {best['n']} items no interval says much."
    if low > 1:
        return f"{found}; the interval lies above 1, so it is faster."
    if high < 1:
        return f"{found}: nothing was faster than plain decoding."
    return f"{found}; the interval spans 1, so this measurement does not show that it is faster."


def settings(rows: Sequence[Row], labels: Sequence[str]) -> Table:
    """All options of each method."""
    columns = [METHOD, Column("Options", "All of them, the usual ones too.")]
    cells = []
    for row, label in zip(rows, labels, strict=True):
        options = [f"{key}={option}" for key, option in row["method"].items() if key != "name" and option is not None]
        cells.append([label, ", ".join(options) or "none"])
    return Table(columns, cells)


def _percent(number: float | None) -> str:
    return NONE if number is None else f"{number:.0%}"
