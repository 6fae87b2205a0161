"""Charts as SVG text, which needs no library to be made and none to be seen.

Knows pixels. Every mark has a `title` with its numbers. Refuses to know what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from html import escape

from draftwood.eval.report.charts import Bars, Curves, Dot, Groups, Histograms, Lines, Scatter, Span, Stacks

WIDTH = 760
FONT = "font-family='system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif'"
INK, FAINT, GRID = "#222222", "#5c5c5c", "#dddddd"
LETTER = 6.9  # pixels of a letter at the size of labels, generously
LONGEST = 34  # letters of a label
ROW = 26
RIGHT = 76  # room for the numbers behind bars


def number(value: float) -> str:
    """Three figures, without an exponent where there is room."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 4)}f}" if abs(value) < 1e6 else f"{value:.2e}"


def said(span: Span) -> str:
    """1.52 [1.40, 1.61]"""
    low, high = span.ends
    return number(span.value) + (f" [{number(low)}, {number(high)}]" if span.low is not None else "")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def shortened(label: str, most: int = LONGEST) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK, size: int = 12) -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {place} fill='{colour}' font-size='{size}'>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, width: float = 1, dash: str = "") -> str:
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
        f"stroke-width='{width}'{dashes}/>"
    )


def box(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{height:.1f}' fill='{colour}'>"
        f"<title>{escape(title)}</title></rect>"
    )


def framed(body: Sequence[str], height: float, name: str) -> str:
    """A whole SVG document."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' "
        f"height='{height:.0f}' role='img' aria-label={_quoted(name)} {FONT}>"
        f"<rect width='{WIDTH}' height='{height:.0f}' fill='#ffffff'/>{''.join(body)}</svg>"
    )


def _quoted(words: str) -> str:
    return f'"{escape(words, quote=True)}"'


def _margin(labels: Sequence[str]) -> float:
    return 18 + LETTER * max((len(shortened(label)) for label in labels), default=0)


def _across(left: float, right: float, top: float, bottom: float, most: float, axis: str) -> list[str]:
    """Grid lines, numbers and name of a horizontal axis from zero."""
    body = []
    for tick in ticks(0, most):
        x = left + tick / most * (right - left)
        body += [line(x, top, x, bottom), text(x, bottom + 16, f"{tick:g}", "middle", FAINT)]
    return [*body, text((left + right) / 2, bottom + 36, axis, "middle", FAINT)]


@singledispatch
def draw(chart: object, name: str) -> str:
    """The SVG of a chart."""
    raise TypeError(f"no drawing of {type(chart).__name__}")


@draw.register
def _bars(chart: Bars, name: str) -> str:
    left, right = _margin([row.label for row in chart.rows]), WIDTH - RIGHT - 70.0
    most = max([row.span.ends[1] for row in chart.rows if row.span] + [chart.reference or 0, 1e-9]) * 1.05
    bottom = 10.0 + ROW * len(chart.rows)
    body = _across(left, right, 6, bottom, most, chart.axis)

    def at(value: float) -> float:
        return left + value / most * (right - left)

    for place, row in enumerate(chart.rows):
        y = 10.0 + ROW * place
        body.append(text(left - 8, y + 16, shortened(row.label), "end"))
        if row.span is None:
            body.append(text(left + 6, y + 16, "not measured", colour=FAINT))
            continue
        low, high = row.span.ends
        body.append(box(left, y + 4, at(row.span.value) - left, ROW - 8, row.colour, f"{row.label}: {said(row.span)}"))
        if high > low:
            body += [line(at(low), y + 13, at(high), y + 13, INK, 1.5)]
            body += [line(at(end), y + 9, at(end), y + 17, INK, 1.5) for end in (low, high)]
        body.append(text(max(at(high), at(row.span.value)) + 8, y + 16, said(row.span), size=11))
    if chart.reference is not None:
        body.append(line(at(chart.reference), 6, at(chart.reference), bottom, INK, 1, "4 3"))
    return framed(body, bottom + 46, name)


@draw.register
def _groups(chart: Groups, name: str) -> str:
    legend = _legend_rows(chart.parts) if any(name for name, _ in chart.parts) else []
    left, right = _margin([row.label for row in chart.rows]), WIDTH - RIGHT - 60.0
    ends = [span.ends[1] for row in chart.rows for span in row.spans if span]
    most = max([*ends, chart.reference or 0, 1e-9]) * 1.05
    each, gap = 15.0, 9.0
    top = 12.0 + 20 * len(legend)
    high = {place: sum(span is not None for span in row.spans) for place, row in enumerate(chart.rows)}
    bottom = top + sum(max(count, 1) * each + gap for count in high.values())
    body = [*_placed(legend, 10.0), *_across(left, right, top, bottom, most, chart.axis)]

    def at(value: float) -> float:
        return left + value / most * (right - left)

    y = top + gap / 2
    for place, row in enumerate(chart.rows):
        tall = max(high[place], 1) * each
        body.append(text(left - 8, y + tall / 2 + 4, shortened(row.label), "end"))
        if not high[place]:
            body.append(text(left + 6, y + 11, "not measured", colour=FAINT, size=11))
        drawn = y
        for (part, colour), span in zip(chart.parts, row.spans, strict=True):
            if span is None:
                continue
            low, end = span.ends
            title = f"{row.label}, {part}: {said(span)}"
            body.append(box(left, drawn + 1, at(span.value) - left, each - 3, colour, title))
            if end > low:
                body.append(line(at(low), drawn + each / 2, at(end), drawn + each / 2, INK, 1.2))
            body.append(text(max(at(end), at(span.value)) + 6, drawn + each - 4, said(span), size=10))
            drawn += each
        y += tall + gap
    if chart.reference is not None:
        body.append(line(at(chart.reference), top, at(chart.reference), bottom, INK, 1, "4 3"))
    return framed(body, bottom + 46, name)


@draw.register
def _stacks(chart: Stacks, name: str) -> str:
    left, right = _margin([row.label for row in chart.rows]), WIDTH - RIGHT
    most = max([sum(row.amounts) for row in chart.rows] + [1e-9]) * 1.02
    top = 32.0
    bottom = top + ROW * len(chart.rows)
    body = _legend(chart.parts, 12)
    body += _across(left, right, top, bottom, most, chart.axis)
    for place, row in enumerate(chart.rows):
        y, x = top + ROW * place, left
        body.append(text(left - 8, y + 17, shortened(row.label), "end"))
        for (part, colour), amount in zip(chart.parts, row.amounts, strict=True):
            width = amount / most * (right - left)
            body.append(box(x, y + 5, width, ROW - 8, colour, f"{row.label}, {part}: {number(amount)}"))
            x += width
        body.append(text(x + 6, y + 17, number(sum(row.amounts)), size=11))
    return framed(body, bottom + 46, name)


def _legend(parts: Sequence[tuple[str, str]], left: float) -> list[str]:
    body, x = [], left
    for part, colour in parts:
        body += [box(x, 6, 12, 12, colour), text(x + 17, 16, part)]
        x += 34 + LETTER * len(part)
    return body


@draw.register
def _lines(chart: Lines, name: str) -> str:
    rows = _legend_rows([(one.label, one.colour) for one in chart.series])
    left, right, top = 62.0, WIDTH - 20.0, 12.0
    bottom = top + 250
    length = max((len(one.values) for one in chart.series), default=1)

    def x(place: int) -> float:
        return left + (place + 0.5) / max(length, 1) * (right - left)

    def y(value: float) -> float:
        return bottom - value * (bottom - top)

    body = []
    for tick in ticks(0, 1, 5):
        body += [line(left, y(tick), right, y(tick)), text(left - 8, y(tick) + 4, f"{tick:g}", "end", FAINT)]
    step = math.ceil(length / 20)
    body += [text(x(i), bottom + 16, str(i + 1), "middle", FAINT) for i in range(0, length, step)]
    body.append(text((left + right) / 2, bottom + 36, chart.x_axis, "middle", FAINT))
    for one in chart.series:
        known = [(place, value) for place, value in enumerate(one.values) if value is not None]
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in known)
        body.append(f"<polyline points='{points}' fill='none' stroke='{one.colour}' stroke-width='2'/>")
        for place, value in known:
            title = f"{one.label}, {place + 1}: {number(value)}"
            body.append(
                f"<circle cx='{x(place):.1f}' cy='{y(value):.1f}' r='4' fill='{one.colour}'>"
                f"<title>{escape(title)}</title></circle>"
            )
    body.append(_upright(14, (top + bottom) / 2, chart.y_axis))
    body += _placed(rows, bottom + 52)
    return framed(body, bottom + 52 + 20 * len(rows), name)


@draw.register
def _curves(chart: Curves, name: str) -> str:
    levels = [level for level in chart.levels if level.span]
    named = [(one.label, one.colour) for one in chart.curves] + [(level.label, level.colour) for level in levels]
    rows = _legend_rows(named)
    left, right, top, bottom = 66.0, WIDTH - 24.0, 14.0, 274.0
    xs = sorted({x for one in chart.curves for x, _ in one.points}) or [0.0]
    spans = [y for one in chart.curves for _, y in one.points] + [level.span for level in levels if level.span]
    x_ends, y_ends = _range([Span(x) for x in xs], False), _range(spans or [Span(0)], False)

    def x(value: float) -> float:
        return left + (value - x_ends[0]) / (x_ends[1] - x_ends[0]) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - y_ends[0]) / (y_ends[1] - y_ends[0]) * (bottom - top)

    body = []
    for tick in ticks(*y_ends):
        body += [line(left, y(tick), right, y(tick)), text(left - 8, y(tick) + 4, f"{tick:g}", "end", FAINT)]
    shown = -math.inf
    for value in xs:
        if x(value) - shown > 26:
            shown = x(value)
            body.append(text(x(value), bottom + 16, f"{value:g}", "middle", FAINT))
    for level in levels:
        assert level.span is not None
        height = y(level.span.value)
        body.append(line(left, height, right, height, level.colour, 2, "7 4"))
    for one in chart.curves:
        points = " ".join(f"{x(place):.1f},{y(span.value):.1f}" for place, span in one.points)
        body.append(f"<polyline points='{points}' fill='none' stroke='{one.colour}' stroke-width='2'/>")
        for place, span in one.points:
            low, high = span.ends
            body.append(f"<g opacity='0.4'>{line(x(place), y(low), x(place), y(high), one.colour, 2)}</g>")
            title = f"{one.label}, {place:g}: {said(span)}"
            body.append(
                f"<circle cx='{x(place):.1f}' cy='{y(span.value):.1f}' r='4' fill='{one.colour}'>"
                f"<title>{escape(title)}</title></circle>"
            )
    body += [text((left + right) / 2, bottom + 36, chart.x_axis, "middle", FAINT)]
    body += [_upright(14, (top + bottom) / 2, chart.y_axis), *_placed(rows, bottom + 54)]
    return framed(body, bottom + 54 + 20 * len(rows), name)


def _upright(x: float, y: float, words: str) -> str:
    return f"<g transform='rotate(-90 {x:.1f} {y:.1f})'>{text(x, y, words, 'middle', FAINT)}</g>"


def _legend_rows(entries: Sequence[tuple[str, str]]) -> list[list[tuple[str, str, float]]]:
    """Entries of a legend in rows that fit: (label, colour, x)."""
    rows: list[list[tuple[str, str, float]]] = [[]]
    x = 56.0
    for label, colour in entries:
        width = 34 + LETTER * len(shortened(label))
        if rows[-1] and x + width > WIDTH - 10:
            rows.append([])
            x = 56.0
        rows[-1].append((shortened(label), colour, x))
        x += width
    return rows


def _placed(rows: Sequence[Sequence[tuple[str, str, float]]], y: float) -> list[str]:
    return [
        mark
        for place, row in enumerate(rows)
        for label, colour, x in row
        for mark in (box(x, y + 20 * place - 6, 12, 12, colour), text(x + 17, y + 20 * place + 4, label))
    ]


@draw.register
def _histograms(chart: Histograms, name: str) -> str:
    bins = max((len(one.values) for one in chart.series), default=1)
    columns = 3 if bins <= 16 else 1
    wide, high, gap = (WIDTH - 24.0) / columns, 128.0, 38.0
    most = max([value for one in chart.series for value in one.values if value is not None] + [1e-9])
    body: list[str] = []
    for place, one in enumerate(chart.series):
        left = 12 + (place % columns) * wide + 34
        top = 24 + (place // columns) * (high + gap)
        right, bottom = left + wide - 48, top + high - 26
        body.append(text(left, top - 6, shortened(one.label, int((wide - 40) / LETTER))))
        body.append(line(left, bottom, right, bottom, FAINT))
        for tick in ticks(0, most, 3):
            y = bottom - tick / most * (bottom - top - 6)
            body += [line(left, y, right, y), text(left - 5, y + 4, f"{tick:.0%}", "end", FAINT, 10)]
        each = (right - left) / bins
        step = math.ceil(bins / max(1, (right - left) / 22))
        for place_in, value in enumerate(one.values):
            x, share = left + place_in * each, value or 0.0
            height = share / most * (bottom - top - 6)
            title = f"{one.label}, {place_in + chart.first}: {share:.1%}"
            body.append(box(x + each * 0.1, bottom - height, each * 0.8, height, one.colour, title))
        body += [
            text(left + (i + 0.5) * each, bottom + 13, str(i + chart.first), "middle", FAINT, 10)
            for i in range(0, bins, step)
        ]
    rows = math.ceil(len(chart.series) / columns)
    bottom = 24 + rows * (high + gap) - gap
    middle = 12 + min(columns, len(chart.series)) * wide / 2 + 10
    body.append(text(middle, bottom + 10, chart.axis, "middle", FAINT))
    return framed(body, bottom + 22, name)


@draw.register
def _scatter(chart: Scatter, name: str) -> str:
    left, right, top, bottom = 66.0, WIDTH - 24.0, 16.0, 356.0
    x_ends, y_ends = _range([dot.x for dot in chart.dots], True), _range([dot.y for dot in chart.dots], False)

    def x(value: float) -> float:
        return left + (value - x_ends[0]) / (x_ends[1] - x_ends[0]) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - y_ends[0]) / (y_ends[1] - y_ends[0]) * (bottom - top)

    body = []
    for tick in ticks(*x_ends):
        body += [line(x(tick), top, x(tick), bottom), text(x(tick), bottom + 16, f"{tick:g}", "middle", FAINT)]
    for tick in ticks(*y_ends):
        body += [line(left, y(tick), right, y(tick)), text(left - 8, y(tick) + 4, f"{tick:g}", "end", FAINT)]
    for colour, dots in chart.fronts:
        front = " ".join(f"{x(dot.x.value):.1f},{y(dot.y.value):.1f}" for dot in dots)
        line_of = f"fill='none' stroke='{colour or INK}' stroke-width='1.5' stroke-dasharray='5 4'"
        body.append(f"<polyline points='{front}' {line_of}/>")
    for dot in chart.dots:
        body.append("<g opacity='0.35'>")
        body += [line(x(end[0]), y(dot.y.value), x(end[1]), y(dot.y.value), dot.colour, 1.5) for end in [dot.x.ends]]
        body += [line(x(dot.x.value), y(end[0]), x(dot.x.value), y(end[1]), dot.colour, 1.5) for end in [dot.y.ends]]
        body.append("</g>")
    for dot in chart.dots:
        title = f"{dot.label}: {chart.x_axis} {said(dot.x)}, {chart.y_axis} {said(dot.y)}"
        body.append(
            f"<circle cx='{x(dot.x.value):.1f}' cy='{y(dot.y.value):.1f}' r='5.5' fill='{dot.colour}' stroke='#ffffff'>"
            f"<title>{escape(title)}</title></circle>"
        )
    body += _labels([(dot, x(dot.x.value), y(dot.y.value)) for dot in chart.dots], (left, top, right, bottom))
    body += [text((left + right) / 2, bottom + 38, chart.x_axis, "middle", FAINT)]
    body += [_upright(16, (top + bottom) / 2, chart.y_axis)]
    rows = _legend_rows(chart.families) if chart.families else []
    body += _placed(rows, bottom + 56)
    return framed(body, bottom + 50 + 20 * len(rows), name)


def _range(spans: Sequence[Span], zero: bool) -> tuple[float, float]:
    """Where an axis begins and ends: around all values and intervals; from zero where that is asked for."""
    low, high = min(span.ends[0] for span in spans), max(span.ends[1] for span in spans)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return (0.0 if zero and low >= 0 else low - room), high + room


def _labels(dots: Sequence[tuple[Dot, float, float]], frame: tuple[float, float, float, float]) -> list[str]:
    """A label beside each dot, where no other dot or label is; a thin line leads to one that stands far off."""
    left, top, right, bottom = frame
    taken = [(px - 6, py - 6, px + 6, py + 6) for _, px, py in dots]
    body = []
    for dot, px, py in dots:
        label = shortened(dot.label, 28)
        width = LETTER * len(label)
        found = None
        for far in (9.0, 16.0, 28.0, 44.0, 62.0, 84.0, 110.0, 140.0):
            for dx, dy in ((1, 0), (-1, 0), (0.3, -1), (0.3, 1), (-0.3, -1), (-0.3, 1), (1, -0.8), (1, 0.8)):
                x0 = px + dx * far - (width if dx < 0 else 0)
                y0 = py + dy * far - 7
                area = (x0, y0, x0 + width, y0 + 14)
                inside = area[0] >= left and area[2] <= right and area[1] >= top and area[3] <= bottom
                if inside and not any(_meet(area, other) for other in taken):
                    found = area, far
                    break
            if found:
                break
        if found is None:
            continue  # its title and the table still name it
        area, far = found
        taken.append(area)
        if far > 20:
            near_x = min(max(px, area[0]), area[2])
            body.append(line(px, py, near_x, area[3] if area[3] < py else area[1] + 2, FAINT, 0.8))
        halo = "<g stroke='#ffffff' stroke-width='3' stroke-linejoin='round' paint-order='stroke'>"
        body.append(f"{halo}{text(area[0], area[1] + 11, label, size=11)}</g>")
    return body


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
