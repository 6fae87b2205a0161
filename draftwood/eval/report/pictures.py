"""Charts as PNG files, where matplotlib is installed.

The same data and colours as svg.py. Refuses to know what is measured.
"""

from __future__ import annotations

import math
from functools import singledispatch
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwood.eval.report.charts import Bars, Curves, Figure, Groups, Histograms, Lines, Scatter, Span, Stacks
from draftwood.eval.report.svg import said, shortened

DOTS = 150  # per inch


def available() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def save(figure: Figure, path: Path) -> None:
    """Draw a figure with its title into a PNG file."""
    canvas = import_module("matplotlib.figure").Figure(  # no pyplot: no window system, nothing global
        figsize=(7.6, 4.6), dpi=DOTS, layout="constrained"
    )
    canvas.suptitle(figure.title, fontsize=11)
    draw(figure.chart, canvas)
    canvas.savefig(path, metadata={"Software": None})  # equal data, equal file


def _errors(spans: list[Span]) -> list[list[float]]:
    """Distances to the ends of intervals, as matplotlib wants them."""
    return [[span.value - span.ends[0] for span in spans], [span.ends[1] - span.value for span in spans]]


def _legend(canvas: Any, axes: Any) -> None:
    """Below the axes, if there is anything to explain."""
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower center", ncols=3, fontsize=8)


@singledispatch
def draw(chart: object, canvas: Any) -> None:
    """Fill a matplotlib figure."""
    raise TypeError(f"no picture of {type(chart).__name__}")


@draw.register
def _bars(chart: Bars, canvas: Any) -> None:
    axes = canvas.subplots()
    rows = [(row, row.span) for row in chart.rows if row.span is not None]
    names = [shortened(row.label) for row, _ in rows]
    axes.barh(
        range(len(rows)),
        [span.value for _, span in rows],
        xerr=_errors([span for _, span in rows]),
        color=[row.colour for row, _ in rows],
        capsize=3,
    )
    axes.set_yticks(range(len(rows)), names)
    for place, (_, span) in enumerate(rows):
        axes.annotate(said(span), (span.ends[1], place), (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.set_xlabel(chart.axis)
    if chart.reference is not None:
        axes.axvline(chart.reference, color="black", linestyle="--", linewidth=1)


@draw.register
def _groups(chart: Groups, canvas: Any) -> None:
    axes = canvas.subplots()
    height = 0.8 / max(1, len(chart.parts))
    for part, (name, colour) in enumerate(chart.parts):
        drawn = [(place, row.spans[part]) for place, row in enumerate(chart.rows)]
        known = [(place, span) for place, span in drawn if span is not None]
        if known:
            axes.barh(
                [place + (part - (len(chart.parts) - 1) / 2) * height for place, _ in known],
                [span.value for _, span in known],
                height=height,
                xerr=_errors([span for _, span in known]),
                color=colour,
                label=name or None,
                error_kw={"linewidth": 1},
            )
    axes.set_yticks(range(len(chart.rows)), [shortened(row.label) for row in chart.rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(chart.axis)
    if chart.reference is not None:
        axes.axvline(chart.reference, color="black", linestyle="--", linewidth=1)
    _legend(canvas, axes)


@draw.register
def _curves(chart: Curves, canvas: Any) -> None:
    axes = canvas.subplots()
    for one in chart.curves:
        spans = [span for _, span in one.points]
        axes.errorbar(
            [x for x, _ in one.points],
            [span.value for span in spans],
            _errors(spans),
            fmt="o-",
            color=one.colour,
            label=shortened(one.label),
            markersize=4,
        )
    for level in chart.levels:
        if level.span is not None:
            axes.axhline(level.span.value, color=level.colour, linestyle="--", label=shortened(level.label))
    axes.set_xlabel(chart.x_axis)
    axes.set_ylabel(chart.y_axis)
    _legend(canvas, axes)


@draw.register
def _stacks(chart: Stacks, canvas: Any) -> None:
    axes = canvas.subplots()
    begin = [0.0] * len(chart.rows)
    for part, (name, colour) in enumerate(chart.parts):
        amounts = [row.amounts[part] for row in chart.rows]
        axes.barh(range(len(chart.rows)), amounts, left=begin, color=colour, label=name)
        begin = [a + b for a, b in zip(begin, amounts, strict=True)]
    axes.set_yticks(range(len(chart.rows)), [shortened(row.label) for row in chart.rows])
    axes.invert_yaxis()
    axes.set_xlabel(chart.axis)
    canvas.legend(loc="outside lower center", ncols=3, fontsize=8)


@draw.register
def _lines(chart: Lines, canvas: Any) -> None:
    axes = canvas.subplots()
    for one in chart.series:
        known = [(place + 1, value) for place, value in enumerate(one.values) if value is not None]
        axes.plot(*zip(*known, strict=True), "o-", color=one.colour, label=shortened(one.label), markersize=4)
    axes.set_ylim(0, 1.03)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(chart.x_axis)
    axes.set_ylabel(chart.y_axis)
    canvas.legend(loc="outside lower center", ncols=3, fontsize=8)


@draw.register
def _histograms(chart: Histograms, canvas: Any) -> None:
    columns = min(3, len(chart.series))
    grid = canvas.subplots(math.ceil(len(chart.series) / columns), columns, sharex=True, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(chart.series):
            axes.set_visible(False)
            continue
        one = chart.series[place]
        axes.bar([i + chart.first for i in range(len(one.values))], [v or 0.0 for v in one.values], color=one.colour)
        axes.set_title(shortened(one.label, 30), fontsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
    canvas.supxlabel(chart.axis, fontsize=9)
    canvas.supylabel("share", fontsize=9)


@draw.register
def _scatter(chart: Scatter, canvas: Any) -> None:
    axes = canvas.subplots()
    for dot in chart.dots:
        named = {} if chart.families else {"label": shortened(dot.label)}
        axes.errorbar(
            dot.x.value, dot.y.value, _errors([dot.y]), _errors([dot.x]), color=dot.colour, alpha=0.35, linewidth=1
        )
        axes.plot(dot.x.value, dot.y.value, "o", color=dot.colour, **named)
    for name, colour in chart.families:
        axes.plot([], [], "o", color=colour, label=name)
    for line, front in chart.fronts:
        x, y = [dot.x.value for dot in front], [dot.y.value for dot in front]
        axes.plot(x, y, "--", color=line or "black", linewidth=1)
    axes.set_xlabel(chart.x_axis)
    axes.set_ylabel(chart.y_axis)
    canvas.legend(loc="outside lower center", ncols=3, fontsize=8)
