"""Figures as plain data, which draw themselves: what is shown, and in which units.

Labels stand above bars and below plots, so that figures can be narrow. Every mark tells its numbers when hovered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from draftwood import plots
from draftwood.plots import FAINT, INK, MARKERS, PAGE, PALETTE, PLAIN

NUMBER = 7.5  # points of the numbers at bars and of labels in plots
SMALL: dict[str, Any] = {  # they hide lines behind them
    "fontsize": NUMBER,
    "bbox": {"facecolor": PAGE, "edgecolor": "none", "pad": 0.6},
    "zorder": 5,
}
BAND = 0.03  # of a bounded axis, beyond its bounds: marks on them stay whole


@dataclass(frozen=True, slots=True)
class Span:
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


def number(value: float) -> str:
    """Three figures, without an exponent where there is room."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 4)}f}" if abs(value) < 1e6 else f"{value:.2e}"


class Chart(Protocol):
    """What can be drawn."""

    @property
    def height(self) -> float:
        """Inches."""
        ...

    def draw(self, canvas: Any) -> None:
        """Fill a matplotlib figure."""
        ...


@dataclass(frozen=True)
class Figure:
    """A chart with what must be told with it. `name` is its file's."""

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


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart, or a level among curves."""

    label: str
    span: Span | None  # None: not measured
    colour: str


@dataclass(frozen=True, slots=True)
class Group:
    """A row of a grouped bar chart: one bar for each part, or none."""

    label: str
    spans: Sequence[Span | None]


@dataclass(frozen=True, slots=True)
class Groups:
    """Horizontal bars from zero with intervals, several to a row, and a line at what they are compared with."""

    axis: str
    parts: Sequence[tuple[str, str]]  # (name, colour)
    rows: Sequence[Group]
    reference: float | None = None

    @property
    def height(self) -> float:
        return 0.75 + 0.2 * sum(1 + max(1, len(_known(row))) for row in self.rows) + _legend_height(self.parts)

    def draw(self, canvas: Any) -> None:
        colours = [colour for _, colour in self.parts]
        rows = [
            (row.label, [(span, colours[part], self.parts[part][0]) for part, span in _known(row)]) for row in self.rows
        ]
        _bars(canvas, self.axis, rows, self.reference)
        _legend(canvas, [(name, colour, "s") for name, colour in self.parts if name])


def _known(row: Group) -> list[tuple[int, Span]]:
    return [(part, span) for part, span in enumerate(row.spans) if span is not None]


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars from zero, one to a row."""

    axis: str
    rows: Sequence[Bar]
    reference: float | None = None

    @property
    def height(self) -> float:
        return 0.75 + 0.4 * len(self.rows)

    def draw(self, canvas: Any) -> None:
        rows = [(row.label, [(row.span, row.colour, "")] if row.span else []) for row in self.rows]
        _bars(canvas, self.axis, rows, self.reference)


def _bars(
    canvas: Any, axis: str, rows: Sequence[tuple[str, Sequence[tuple[Span, str, str]]]], reference: float | None
) -> None:
    axes = _rows(canvas, axis)
    ends = [span.ends[1] for _, bars in rows for span, _, _ in bars]
    room = 1.45 if any(span.low is not None for _, bars in rows for span, _, _ in bars) else 1.15  # for the numbers
    axes.set_xlim(0, room * max([*ends, reference or 0, 1e-9]))
    line = 0.0
    for label, bars in rows:
        _label(axes, line, label if bars else f"{label}: not measured")
        for place, (span, colour, part) in enumerate(bars, 1):
            tip = f"{label}{', ' * bool(part)}{part}: {span.text}"
            axes.barh(line + place, span.value, 0.72, color=colour)[0].set_gid(f"tip-{tip}")
            axes.plot(span.ends, [line + place] * 2, color=INK, linewidth=1)
            at = max(span.value, span.ends[1])
            _words(axes, at, line + place, f" {span.text}", va="center")
        line += 1 + max(1, len(bars))
    if reference is not None:
        axes.axvline(reference, color=INK, linestyle="--", linewidth=1, zorder=1.5)
    axes.set_ylim(line - 0.3, -0.6)


def _rows(canvas: Any, axis: str) -> Any:
    axes = canvas.subplots()
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.set_xlabel(axis)
    return axes


def _label(axes: Any, line: float, text: str) -> None:
    _words(axes, 0, line + 0.1, text, va="center", fontsize=9, transform=axes.get_yaxis_transform())


def _words(axes: Any, x: float, y: float, text: str, **where: Any) -> Any:
    """A small text that hides lines behind it."""
    return axes.text(x, y, text, **{**SMALL, **where})


@dataclass(frozen=True, slots=True)
class Stack:
    """A row of a stacked bar chart: one amount for each part."""

    label: str
    amounts: Sequence[float]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Horizontal bars that are made of parts."""

    axis: str
    parts: Sequence[tuple[str, str]]  # (name, colour)
    rows: Sequence[Stack]

    @property
    def height(self) -> float:
        return 0.75 + 0.4 * len(self.rows) + _legend_height(self.parts)

    def draw(self, canvas: Any) -> None:
        axes = _rows(canvas, self.axis)
        for line, row in enumerate(self.rows):
            _label(axes, 2 * line, row.label)
            begin = 0.0
            for (part, colour), amount in zip(self.parts, row.amounts, strict=True):
                bar = axes.barh(2 * line + 1, amount, 0.72, left=begin, color=colour)[0]
                bar.set_gid(f"tip-{row.label}, {part}: {number(amount)}")
                begin += amount
            _words(axes, begin, 2 * line + 1, f" {number(begin)}", va="center")
        axes.set_ylim(2 * len(self.rows) - 0.3, -0.6)
        axes.set_xlim(0, 1.12 * max([sum(row.amounts) for row in self.rows] + [1e-9]))
        _legend(canvas, [(name, colour, "s") for name, colour in self.parts])


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a scatter plot."""

    label: str
    x: Span
    y: Span
    colour: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points, of which those on the front are joined: no other point is as good on both axes and better on one."""

    x_axis: str
    y_axis: str
    dots: Sequence[Dot]
    higher: bool = True  # whether more of y is better; more of x always is
    families: Sequence[tuple[str, str]] = ()  # (name, colour): each has a front, and dots have labels of their own
    bounds: tuple[float, float] = (-math.inf, math.inf)  # that y cannot leave

    @property
    def front(self) -> list[Dot]:
        """The Pareto front, from low x to high x."""
        return self._front(self.dots)

    def _front(self, dots: Sequence[Dot]) -> list[Dot]:
        sign = 1 if self.higher else -1

        def beats(a: Dot, b: Dot) -> bool:
            ay, by = sign * a.y.value, sign * b.y.value
            return a.x.value >= b.x.value and ay >= by and (a.x.value, ay) != (b.x.value, by)

        return sorted((dot for dot in dots if not any(beats(a, dot) for a in dots)), key=lambda dot: dot.x.value)

    @property
    def height(self) -> float:
        return 3.1 + _legend_height(self.families or [(dot.label, "") for dot in self.dots])

    def draw(self, canvas: Any) -> None:
        axes = canvas.subplots()
        lines = [(INK, self.front)]
        if self.families:
            lines = [(colour, self._front([d for d in self.dots if d.colour == colour])) for _, colour in self.families]
        for colour, front in lines:
            axes.plot([dot.x.value for dot in front], [dot.y.value for dot in front], "--", color=colour, linewidth=1)
        marks = _marks([dot.colour for dot in self.dots])
        for dot, mark in zip(self.dots, marks, strict=True):
            x, y = dot.x.value, dot.y.value
            axes.plot(dot.x.ends, [y, y], color=dot.colour, alpha=0.35, linewidth=1)
            axes.plot([x, x], dot.y.ends, color=dot.colour, alpha=0.35, linewidth=1)
            shape = "o" if self.families else mark
            tip = f"tip-{dot.label}: {dot.x.text}, {dot.y.text}"
            axes.plot(x, y, shape, color=dot.colour, markeredgecolor=PAGE, markeredgewidth=0.6, gid=tip)
        axes.set(xlabel=self.x_axis, ylabel=self.y_axis)
        _bound(axes, self.bounds)
        if self.families:
            _legend(canvas, [(name, colour, "o") for name, colour in self.families])
            _place(canvas, axes, self.dots)
        else:
            _legend(canvas, [(dot.label, dot.colour, mark) for dot, mark in zip(self.dots, marks, strict=True)])


def _place(canvas: Any, axes: Any, dots: Sequence[Dot]) -> None:
    """Write labels beside their dots, where they meet neither a dot nor another label; hovering tells the others."""
    canvas.draw_without_rendering()
    pixels = axes.transData.transform([(dot.x.value, dot.y.value) for dot in dots])
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in pixels]
    inside = axes.get_window_extent()
    for dot in dots:
        for far, (right, up) in product(
            (5, 12), ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
        ):
            text = axes.annotate(
                dot.label,
                (dot.x.value, dot.y.value),
                (far * right, far * up),
                textcoords="offset points",
                ha=("right", "center", "left")[right + 1],
                va=("top", "center", "bottom")[up + 1],
                color=dot.colour,
                **SMALL,
            )
            box = text.get_window_extent()
            area = box.x0, box.y0, box.x1, box.y1
            free = not any(area[0] < b[2] and b[0] < area[2] and area[1] < b[3] and b[1] < area[3] for b in taken)
            if free and inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1:
                taken.append(area)
                break
            text.remove()


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over a number."""

    label: str
    points: Sequence[tuple[float, Span]]  # (x, y), from low x to high x
    colour: str


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over a number, and levels that do not depend on it."""

    x_axis: str
    y_axis: str
    curves: Sequence[Curve]
    levels: Sequence[Bar] = ()
    bounds: tuple[float, float] = (-math.inf, math.inf)  # that y cannot leave

    @property
    def height(self) -> float:
        return 2.9 + _legend_height([(one.label, "") for one in self.curves] + [(one.label, "") for one in self.levels])

    def draw(self, canvas: Any) -> None:
        axes = canvas.subplots()
        marks = _marks([curve.colour for curve in self.curves])
        for curve, mark in zip(self.curves, marks, strict=True):
            axes.plot([x for x, _ in curve.points], [y.value for _, y in curve.points], color=curve.colour)
            for x, y in curve.points:
                axes.plot([x, x], y.ends, color=curve.colour, alpha=0.4, linewidth=1.5)
                axes.plot(x, y.value, mark, color=curve.colour, gid=f"tip-{curve.label}, {x:g}: {y.text}")
        for level in self.levels:
            if level.span is not None:
                axes.axhline(level.span.value, color=level.colour, linestyle="--")
        xs = {x for curve in self.curves for x, _ in curve.points}
        if len(xs) <= 12:
            axes.set_xticks(sorted(xs))
        else:
            axes.xaxis.get_major_locator().set_params(integer=all(x == int(x) for x in xs))
        axes.set(xlabel=self.x_axis, ylabel=self.y_axis)
        _bound(axes, self.bounds)
        named = [(curve.label, curve.colour, mark) for curve, mark in zip(self.curves, marks, strict=True)]
        _legend(canvas, [*named, *((level.label, level.colour, "--") for level in self.levels if level.span)])


@dataclass(frozen=True, slots=True)
class Series:
    """Shares of the bins first, first + 1, ... of a histogram."""

    label: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Histograms:
    """One small histogram for each series, on common axes."""

    axis: str
    series: Sequence[Series]
    first: int = 0

    @property
    def height(self) -> float:
        return 0.5 + 1.15 * math.ceil(len(self.series) / 2)

    def draw(self, canvas: Any) -> None:
        rows = math.ceil(len(self.series) / 2)
        grid = canvas.subplots(rows, min(2, len(self.series)), sharex=True, sharey=True, squeeze=False).flat
        for axes in grid[len(self.series) :]:
            axes.set_visible(False)
        for axes, one in zip(grid, self.series, strict=False):
            axes.grid(visible=False, axis="x")
            for place, share in enumerate(one.values, self.first):
                bar = axes.bar(place, share, 0.8, color=one.colour)[0]
                bar.set_gid(f"tip-{one.label}, {place}: {share:.1%}")
            axes.set_title(one.label if len(one.label) <= 36 else one.label[:35] + "…", fontsize=NUMBER)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.yaxis.set_major_formatter("{x:.0%}")
        canvas.supxlabel(self.axis, fontsize=9, color=FAINT)


def _marks(colours: Iterable[str]) -> list[str]:
    """A marker for each colour; where a colour comes again, the next one."""
    seen: list[str] = []
    for colour in colours:
        seen.append(colour)
    return [MARKERS[seen[:place].count(colour) % len(MARKERS)] for place, colour in enumerate(seen)]


def _bound(axes: Any, bounds: tuple[float, float]) -> None:
    """Let the y axis end at its bounds, a little beyond for the marks; no tick stands outside."""
    low, high = axes.get_ylim()
    band = BAND * (min(high, bounds[1]) - max(low, bounds[0]))
    axes.set_ylim(max(low, bounds[0] - band), min(high, bounds[1] + band))
    axes.set_yticks([tick for tick in axes.get_yticks() if bounds[0] <= tick <= bounds[1] and low <= tick <= high])


def _legend(canvas: Any, entries: Sequence[tuple[str, str, str]]) -> None:
    """Names with colours and markers, below the axes."""
    if not entries:
        return
    axes = canvas.axes[0]
    handles = [
        axes.plot([], [], mark, color=colour, label=name, markeredgecolor=PAGE, markeredgewidth=0.6)[0]
        for name, colour, mark in entries
    ]
    canvas.legend(
        handles=handles, loc="outside lower left", ncols=_columns([name for name, _, _ in entries]), fontsize=8
    )


def _columns(names: Sequence[str]) -> int:
    return max(1, min(len(names), 4, 60 // (max(map(len, names)) + 5)))


def _legend_height(parts: Sequence[tuple[str, str]]) -> float:
    names = [name for name, _ in parts if name]
    return 0.1 + 0.19 * math.ceil(len(names) / _columns(names)) if names else 0.0


def colours(count: int, plain: Sequence[int] = (0,)) -> list[str]:
    """A colour for each of `count` methods; those in `plain` are grey."""
    others = iter(PALETTE * count)
    return [PLAIN if place in plain else next(others) for place in range(count)]
