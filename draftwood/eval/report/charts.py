"""Figures as plain data: what is drawn, and in which units.

Refuses to know pixels and file formats (svg.py, pictures.py) and what methods and tasks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#5b3a8c", "#e69f00")  # Okabe and Ito's
PLAIN = "#8a8a8a"  # the baseline's


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


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart."""

    label: str
    span: Span | None  # None: not measured
    colour: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars from zero with intervals, and a line at what they are compared with."""

    axis: str
    rows: Sequence[Bar]
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A row of a grouped bar chart: one bar for each part, or none."""

    label: str
    spans: Sequence[Span | None]


@dataclass(frozen=True, slots=True)
class Groups:
    """Horizontal bars from zero, several to a row."""

    axis: str
    parts: Sequence[tuple[str, str]]  # (name, colour)
    rows: Sequence[Group]
    reference: float | None = None


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
    families: Sequence[tuple[str, str]] = ()  # (name, colour): where given, each colour has a front and is explained

    @property
    def fronts(self) -> list[tuple[str | None, list[Dot]]]:
        """(colour, front) of each family; without families the front of all dots, in no colour of its own."""
        if not self.families:
            return [(None, self.front)]
        own = {colour: [dot for dot in self.dots if dot.colour == colour] for _, colour in self.families}
        return [
            (colour, Scatter(self.x_axis, self.y_axis, dots, self.higher).front) for colour, dots in own.items() if dots
        ]

    @property
    def front(self) -> list[Dot]:
        """The Pareto front, from low x to high x."""

        def beats(a: Dot, b: Dot) -> bool:
            ay, by = (a.y.value, b.y.value) if self.higher else (-a.y.value, -b.y.value)
            return a.x.value >= b.x.value and ay >= by and (a.x.value, ay) != (b.x.value, by)

        best = [dot for dot in self.dots if not any(beats(other, dot) for other in self.dots)]
        return sorted(best, key=lambda dot: dot.x.value)


@dataclass(frozen=True, slots=True)
class Series:
    """Values at 1, 2, 3, ... (None: none there)."""

    label: str
    values: Sequence[float | None]
    colour: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Shares from 0 to 1 over a counted quantity that begins with 1."""

    x_axis: str
    y_axis: str
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over a number."""

    label: str
    points: Sequence[tuple[float, Span]]  # (x, y), from low x to high x
    colour: str


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over a number that is not counted from 1, and levels that do not depend on it."""

    x_axis: str
    y_axis: str
    curves: Sequence[Curve]
    levels: Sequence[Bar] = ()


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


@dataclass(frozen=True, slots=True)
class Histograms:
    """One small histogram for each series, on common axes; the first bin is `first`."""

    axis: str
    series: Sequence[Series]
    first: int = 0


Chart = Bars | Groups | Scatter | Lines | Curves | Stacks | Histograms


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with what must be said beside it. `name` is its file's."""

    name: str
    title: str
    about: str
    chart: Chart
    notes: Sequence[str] = field(default=())


def colours(count: int, plain: Sequence[int] = (0,)) -> list[str]:
    """A colour for each of `count` methods; those in `plain` are grey."""
    found, drawn = [], 0
    for place in range(count):
        found.append(PLAIN if place in plain else PALETTE[drawn % len(PALETTE)])
        drawn += place not in plain
    return found
