"""Tables and figures of measured methods: which number of a row, for which methods and tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwood.eval.intervals import Interval
from draftwood.eval.report.charts import Bar, Curve, Curves, Dot, Figure, Group, Groups, Scatter, Span
from draftwood.eval.report.figures import Row, file_name, span
from draftwood.eval.report.naming import LOWER_IS_BETTER, score_bounds, score_name
from draftwood.eval.report.tables import METHOD, Column, Table, cell
from draftwood.eval.reproduce.results import Measured
from draftwood.plots import PALETTE


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a row, with its interval."""

    title: str
    about: str
    of: Callable[[Row], Interval | None]
    digits: int = 2
    reference: float | None = None

    def span(self, row: Row | None) -> Span | None:
        return None if row is None else span(self.of(row))


def _speed_up(row: Row) -> Interval | None:
    if row["baseline"]:
        return Interval(value=1.0, low=None, high=None, n=0) if row["timing"]["tokens_per_second"]["value"] else None
    found: Interval = row["paired"]["speed_up"]
    return found


def scaled(interval: Interval | None, factor: float) -> Interval | None:
    """An interval in another unit."""
    if interval is None:
        return None

    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    low, high = times(interval["low"]), times(interval["high"])
    return Interval(value=times(interval["value"]), low=low, high=high, n=interval["n"])


def _drafted(row: Row, name: str, factor: float = 1.0) -> Interval | None:
    return scaled(row["decoding"][name], factor) if row["decoding"]["drafted"] else None


def _beams(row: Row, name: str) -> Interval | None:
    return row["decoding"][name] if row["decoding"]["layers"] else None


def _slots(row: Row) -> Interval | None:
    most = row["decoding"]["peak_slots"]
    return Interval(value=float(most), low=None, high=None, n=0) if most else None


def _joules(row: Row) -> Interval | None:
    energy = row["energy"]
    if not isinstance(energy, Mapping):
        return None
    return next((each["joules_per_token"] for each in energy.values()), None)


SPEED_UP = Measure("Speed-up", "Tokens per second over plain decoding's, same items and seeds.", _speed_up, 2, 1.0)
RATE = Measure(
    "Tokens/s", "Of the answers, over wall time with the prompt.", lambda r: r["timing"]["tokens_per_second"], 0
)
SCORE = Measure("Score", "The score that stands for the task.", lambda r: r["quality"].get(r["quality"]["metric"]))
PERPLEXITY = Measure(
    "Perplexity", "Of the answers under the target; lower is better.", lambda r: r["quality"]["perplexity"]
)
TAU = Measure("tau", "Tokens per forward of the target.", lambda r: r["decoding"]["tau"])
HM = Measure(
    "HM, %", "Harmonic mean of accepted/drafted and accepted/output.", lambda r: _drafted(r, "harmonic_mean", 100), 1
)
ACCEPTED = Measure("v_d", "Accepted over drafted tokens.", lambda r: _drafted(r, "acceptance_rate"))
SHARE = Measure("r_d", "Accepted over all tokens of the output.", lambda r: _drafted(r, "draft_share"))
ALPHA = Measure(
    "alpha", "Accepted depth over the longest drafted path, mean of rounds (MCSD).", lambda r: _drafted(r, "alpha")
)
WIDTH = Measure("Width", "Mean number of beams in a layer.", lambda r: _beams(r, "mean_width"))
LAYERS = Measure("Layers/round", "Layers of beams per forward of the target.", lambda r: _beams(r, "layers_per_round"))
SLOTS = Measure("Slots", "Most key/value slots of the target's cache in use at once.", _slots, 0)
JOULES = Measure("J/token", "Joules per token by the machine's counter, idle power included.", _joules)


def score_title(measured: Measured, task: str) -> str:
    """What a task's score is called."""
    return score_name(_metric(measured, task))


def _metric(measured: Measured, task: str) -> str:
    tasks = measured.summary["configuration"]["tasks"]
    return next(str(each["metric"]) for each in tasks if each["name"] == task)


def score_is_lower_better(measured: Measured, task: str) -> bool:
    """Whether less of a task's score is better."""
    return _metric(measured, task) in LOWER_IS_BETTER


def table(
    measured: Measured,
    measures: Sequence[Measure],
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
) -> Table:
    """A row for each method, and for each task its measures."""
    names = [name for name in methods or measured.methods if name in measured.methods]
    asked = [
        (task, measure)
        for task in tasks or measured.tasks
        for measure in measures
        if not (
            measure is PERPLEXITY and SCORE in measures and score_is_lower_better(measured, task)
        )  # it is the score
    ]
    columns = [METHOD]
    for task, measure in asked:
        title = score_title(measured, task) if measure is SCORE else measure.title
        columns.append(Column(f"{task}: {title}", measure.about))
    rows = []
    for name in names:
        cells = [labelled(measured, name)]
        for task, measure in asked:
            row = measured.row(task, name)
            cells.append(cell(None if row is None else measure.of(row), measure.digits))
        rows.append(cells)
    return Table(columns, rows)


def labelled(measured: Measured, method: str) -> str:
    """A method's name, and that it is lossy if it is."""
    row = measured.row(measured.tasks[0], method)
    return method if row is None or row["lossless"] else f"{method} (lossy)"


def groups(
    measured: Measured,
    name: str,
    title: str,
    measure: Measure,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
) -> Figure:
    """Bars of a measure: a row for each method, a bar for each task."""
    chosen = list(tasks or measured.tasks)
    names = [each for each in methods or measured.methods if each in measured.methods]
    rows = [
        Group(labelled(measured, each), [measure.span(measured.row(task, each)) for task in chosen]) for each in names
    ]
    parts = [(task, PALETTE[i % len(PALETTE)]) for i, task in enumerate(chosen)]
    return Figure(file_name(name, measure.title), title, "", Groups(measure.title, parts, rows, measure.reference))


def curves(
    measured: Measured,
    name: str,
    title: str,
    axis: str,
    measure: Measure,
    lines: Mapping[str, Mapping[float, str]],
    task: str,
    levels: Sequence[str] = (),
) -> Figure:
    """A measure over a number: `lines` has methods by number for each curve, `levels` are methods without one."""
    drawn, colours = [], iter(PALETTE * 3)
    for line, methods in lines.items():
        points = [
            (x, y)
            for x, method in sorted(methods.items())
            if (y := measure.span(measured.row(task, method))) is not None
        ]
        drawn.append(Curve(line, points, next(colours)))
    flat = [Bar(each, measure.span(measured.row(task, each)), next(colours)) for each in levels]
    label = score_title(measured, task) if measure is SCORE else measure.title
    return Figure(file_name(name, f"{task}-{measure.title}"), f"{title}: {task}", "", Curves(axis, label, drawn, flat))


def scatter(
    measured: Measured,
    name: str,
    title: str,
    task: str,
    families: Mapping[str, Mapping[str, str]],
    y: Measure = SCORE,
    x: Measure = RATE,
) -> Figure | None:
    """Quality over speed; `families` has short labels of dots by method. Each family has a front."""
    dots: list[Dot] = []
    colours = dict(zip(families, PALETTE, strict=False))
    for family, methods in families.items():
        for method, label in methods.items():
            row = measured.row(task, method)
            at, value = x.span(row), y.span(row)
            if at is not None and value is not None:
                dots.append(Dot(label, at, value, colours[family]))
    if not dots:
        return None
    lower = y is PERPLEXITY or (y is SCORE and score_is_lower_better(measured, task))
    label = score_title(measured, task) if y is SCORE else y.title
    metric = "perplexity" if y is PERPLEXITY else _metric(measured, task)
    bounds = score_bounds(metric) if y in (SCORE, PERPLEXITY) else (-math.inf, math.inf)
    chart = Scatter(x.title, label, dots, not lower, list(colours.items()), bounds)
    return Figure(file_name(name, f"{task}-front"), f"{title}: {task}", "", chart)


def noted(figure: Figure, about: str) -> Figure:
    """The figure with what must be said below it."""
    return replace(figure, about=about)


def value(interval: Interval | Mapping[str, Any] | None) -> float | None:
    """An interval's value, if there is one."""
    return None if interval is None else interval["value"]
