"""Charts of measurements with their intervals: functions that give a height and what fills a matplotlib figure.

Labels stand above bars and below plots, so that figures can be narrow. Every mark tells its numbers when hovered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from draftwood.util import plots
from draftwood.util.plots import FAINT, INK, MARKERS, PAGE, PALETTE, PLAIN

NUMBER = 7.5  # points of the numbers at bars and of labels in plots
SMALL: dict[str, Any] = {  # they hide lines behind them
    "fontsize": NUMBER,
    "bbox": {"facecolor": PAGE, "edgecolor": "none", "pad": 0.6},
    "zorder": 5,
}
BAND = 0.03  # of a bounded axis, beyond its bounds: marks on them stay whole
UNBOUNDED = (-math.inf, math.inf)


class Span(NamedTuple):
    """A value with the ends of its interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; the value itself where there is none."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    @property
    def text(self) -> str:
        """1.52 [1.40, 1.61]"""
        low, high = self.ends
        return number(self.value) + (f" [{number(low)}, {number(high)}]" if self.low is not None else "")


class Dot(NamedTuple):
    """A point of a scatter plot."""

    label: str
    x: Span
    y: Span
    colour: str


class Curve(NamedTuple):
    """Values over a number, from low x to high x."""

    label: str
    points: Sequence[tuple[float, Span]]
    colour: str


class Chart(NamedTuple):
    """A drawing and its height."""

    height: float  # inches
    draw: Callable[[Any], None]  # fills a matplotlib figure


Bar = tuple[str, Span | None, str]  # label, length and colour; None where nothing was measured
Names = Sequence[tuple[str, str]]  # of a legend: (name, colour)


@dataclass(frozen=True)
class Figure:
    """A chart with its title and the text below it. `name` is its file's."""

    name: str
    title: str
    about: str
    chart: Chart
    notes: Sequence[str] = field(default=())

    def drawn(self) -> Any:
        """The matplotlib figure."""
        return plots.figure(self.chart.draw, height=self.chart.height)

    @cached_property
    def svg(self) -> str:
        """For a page that has the style of plots.py."""
        return plots.svg(self.drawn(), self.title)


def number(value: float) -> str:
    """Three figures, without an exponent where there is room."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 4)}f}" if abs(value) < 1e6 else f"{value:.2e}"


def bars(axis: str, rows: Sequence[Bar], reference: float | None = None) -> Chart:
    """Horizontal bars from zero with intervals, and a line at what they are compared with."""

    def draw(canvas: Any) -> None:
        axes = _rows(canvas, axis)
        spans = [span for _, span, _ in rows if span is not None]
        room = 1.45 if any(span.low is not None for span in spans) else 1.15  # for the numbers
        axes.set_xlim(0, room * max([*(span.ends[1] for span in spans), reference or 0, 1e-9]))
        for line, (label, span, colour) in enumerate(rows):
            _label(axes, 2 * line, label if span is not None else f"{label}: not measured")
            if span is not None:
                bar = axes.barh(2 * line + 1, span.value, 0.72, color=colour)[0]
                bar.set_gid(f"tip-{label}: {span.text}")
                axes.plot(span.ends, [2 * line + 1] * 2, color=INK, linewidth=1)
                at = max(span.value, span.ends[1])
                axes.text(at, 2 * line + 1, f" {span.text}", va="center", **SMALL)
        if reference is not None:
            axes.axvline(reference, color=INK, linestyle="--", linewidth=1, zorder=1.5)
        axes.set_ylim(2 * len(rows) - 0.3, -0.6)

    return Chart(0.75 + 0.4 * len(rows), draw)


def stacks(axis: str, parts: Names, rows: Sequence[tuple[str, Sequence[float]]]) -> Chart:
    """Horizontal bars that are made of parts: a label, and an amount for each part."""

    def draw(canvas: Any) -> None:
        axes = _rows(canvas, axis)
        for line, (label, amounts) in enumerate(rows):
            _label(axes, 2 * line, label)
            begin = 0.0
            for (part, colour), amount in zip(parts, amounts, strict=True):
                bar = axes.barh(2 * line + 1, amount, 0.72, left=begin, color=colour)[0]
                bar.set_gid(f"tip-{label}, {part}: {number(amount)}")
                begin += amount
            axes.text(begin, 2 * line + 1, f" {number(begin)}", va="center", **SMALL)
        axes.set_ylim(2 * len(rows) - 0.3, -0.6)
        axes.set_xlim(0, 1.12 * max([sum(amounts) for _, amounts in rows] + [1e-9]))
        _legend(canvas, [(name, colour, "s") for name, colour in parts])

    return Chart(0.75 + 0.4 * len(rows) + _legend_height(parts), draw)


def _rows(canvas: Any, axis: str) -> Any:
    axes = canvas.subplots()
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.set_xlabel(axis)
    return axes


def _label(axes: Any, line: float, text: str) -> None:
    style = {**SMALL, "fontsize": 9}
    axes.text(0, line + 0.1, _shortened(text), va="center", transform=axes.get_yaxis_transform(), **style)


def _shortened(text: str, most: int = 64) -> str:
    """A name that a figure has room for; names of methods often differ at their ends, so it is cut in the middle."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most + most // 2 + 1 :]}"


def front(dots: Sequence[Dot], higher: bool = True) -> list[Dot]:
    """The Pareto front, from low x to high x: no other dot is as good on both axes and better on one.

    More of x is better, of y if `higher`, else less.
    """
    sign = 1 if higher else -1

    def beats(a: Dot, b: Dot) -> bool:
        ay, by = sign * a.y.value, sign * b.y.value
        return a.x.value >= b.x.value and ay >= by and (a.x.value, ay) != (b.x.value, by)

    return sorted((dot for dot in dots if not any(beats(a, dot) for a in dots)), key=lambda dot: dot.x.value)


def scatter(
    x_axis: str, y_axis: str, dots: Sequence[Dot], higher: bool = True, bounds: tuple[float, float] = UNBOUNDED
) -> Chart:
    """Points with their intervals, those on the Pareto front joined."""

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        joined = front(dots, higher)
        axes.plot([dot.x.value for dot in joined], [dot.y.value for dot in joined], "--", color=INK, linewidth=1)
        marks = _marks([dot.colour for dot in dots])
        for dot, mark in zip(dots, marks, strict=True):
            x, y = dot.x.value, dot.y.value
            axes.plot(dot.x.ends, [y, y], color=dot.colour, alpha=0.35, linewidth=1)
            axes.plot([x, x], dot.y.ends, color=dot.colour, alpha=0.35, linewidth=1)
            tip = f"tip-{dot.label}: {dot.x.text}, {dot.y.text}"
            axes.plot(x, y, mark, color=dot.colour, markeredgecolor=PAGE, markeredgewidth=0.6, gid=tip)
        axes.set(xlabel=x_axis, ylabel=y_axis)
        _bound(axes, bounds)
        _legend(canvas, [(dot.label, dot.colour, mark) for dot, mark in zip(dots, marks, strict=True)])

    return Chart(3.1 + _legend_height([(dot.label, "") for dot in dots]), draw)


def curves(x_axis: str, y_axis: str, lines: Sequence[Curve], bounds: tuple[float, float] = UNBOUNDED) -> Chart:
    """Curves over whole numbers."""

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        marks = _marks([curve.colour for curve in lines])
        for curve, mark in zip(lines, marks, strict=True):
            axes.plot([x for x, _ in curve.points], [y.value for _, y in curve.points], color=curve.colour)
            for x, y in curve.points:
                axes.plot([x, x], y.ends, color=curve.colour, alpha=0.4, linewidth=1.5)
                axes.plot(x, y.value, mark, color=curve.colour, gid=f"tip-{curve.label}, {x:g}: {y.text}")
        xs = sorted({x for curve in lines for x, _ in curve.points})
        if len(xs) <= 12:
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
        else:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel=x_axis, ylabel=y_axis)
        _bound(axes, bounds)
        _legend(canvas, [(curve.label, curve.colour, mark) for curve, mark in zip(lines, marks, strict=True)])

    return Chart(2.9 + _legend_height([(curve.label, "") for curve in lines]), draw)


def histograms(axis: str, series: Sequence[tuple[str, Sequence[float], str]], first: int = 0) -> Chart:
    """A small histogram for each (label, shares of the bins first, first + 1, ..., colour), on common axes."""

    def draw(canvas: Any) -> None:
        rows = math.ceil(len(series) / 2)
        grid = canvas.subplots(rows, min(2, len(series)), sharex=True, sharey=True, squeeze=False).flat
        for axes in grid[len(series) :]:
            axes.set_visible(False)
        for axes, (label, shares, colour) in zip(grid, series, strict=False):
            axes.grid(visible=False, axis="x")
            for place, share in enumerate(shares, first):
                axes.bar(place, share, 0.8, color=colour)[0].set_gid(f"tip-{label}, {place}: {share:.1%}")
            axes.set_title(_shortened(label, 36), fontsize=NUMBER)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.yaxis.set_major_formatter("{x:.0%}")
        canvas.supxlabel(axis, fontsize=9, color=FAINT)

    return Chart(0.5 + 1.15 * math.ceil(len(series) / 2), draw)


def _marks(colours: Sequence[str]) -> list[str]:
    """A marker for each colour; where a colour comes again, the next one."""
    return [MARKERS[colours[:place].count(colour) % len(MARKERS)] for place, colour in enumerate(colours)]


def _bound(axes: Any, bounds: tuple[float, float]) -> None:
    """Let the y axis end at its bounds, a little beyond for the marks; no tick stands outside."""
    low, high = axes.get_ylim()
    band = BAND * (min(high, bounds[1]) - max(low, bounds[0]))
    axes.set_ylim(max(low, bounds[0] - band), min(high, bounds[1] + band))
    axes.set_yticks([tick for tick in axes.get_yticks() if bounds[0] <= tick <= bounds[1] and low <= tick <= high])


def _legend(canvas: Any, entries: Sequence[tuple[str, str, str]]) -> None:
    """(name, colour, marker), below the axes."""
    if not entries:
        return
    axes = canvas.axes[0]
    handles = [
        axes.plot([], [], mark, color=colour, label=_shortened(name), markeredgecolor=PAGE, markeredgewidth=0.6)[0]
        for name, colour, mark in entries
    ]
    columns = _columns([name for name, _, _ in entries])
    canvas.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=8)


def _columns(names: Sequence[str]) -> int:
    return max(1, min(len(names), 4, 60 // (max(map(len, names)) + 5)))


def _legend_height(parts: Names) -> float:
    names = [name for name, _ in parts]
    return 0.1 + 0.19 * math.ceil(len(names) / _columns(names)) if names else 0.0


def colours(count: int, plain: Sequence[int] = (0,)) -> list[str]:
    """A colour for each of `count` methods; those in `plain` are grey."""
    others = iter(PALETTE * count)
    return [PLAIN if place in plain else next(others) for place in range(count)]
