"""Figures of one task of an evaluation: plain charts of a summary's rows, a colour for each method."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any, TypeAlias

from draftwood.eval.summary import ResultRow
from draftwood.util import plots

IntervalFigures: TypeAlias = Mapping[str, Any]
PHASES = {"draft": "drafting", "verify": "target forwards", "sampling": "sampling and judging", "other": "bookkeeping"}
LOWER_IS_BETTER = {"perplexity"}
MIN_ATTEMPTS = 5  # a position that was reached less often has no mark
LABEL_WIDTH = 34  # characters, after which names of methods are broken


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart of a `kind`, of which texts.yaml tells; `name` is its file's, `paint` fills a matplotlib figure."""

    kind: str
    name: str
    paint: Callable[[Any], None]
    height: float = 3.2  # inches

    def drawn(self) -> Any:
        """The matplotlib figure."""
        return plots.figure(self.paint, height=self.height)


def file_name(*parts: str) -> str:
    """The name of a figure's file, without its ending."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts)).strip("-")


def energies(row: ResultRow) -> Mapping[str, Any]:
    """Joules by counter; empty where the machine has none."""
    return row["energy"] if isinstance(row["energy"], Mapping) else {}


def figures(task: str, rows: Sequence[ResultRow], labels: Sequence[str]) -> list[Figure]:
    """All figures of a task that its rows have something for; `labels` name the methods of the rows."""
    metric = rows[0]["quality"]["metric"]
    series = [(label, row, f"C{place}") for place, (label, row) in enumerate(zip(labels, rows, strict=True))]
    decoded = [one for one in series if one[1]["decoding"]["tokens"]]
    points = [
        (label, x, y, colour)
        for label, row, colour in decoded
        if known(x := row["timing"]["tokens_per_second"]) and known(y := row["quality"].get(metric))
    ]
    ratios = [(label, row["paired"]["speed_up"], colour) for label, row, colour in series if row["paired"]]
    ratios = [one for one in ratios if known(one[1])]
    kinds: list[tuple[str, Sequence[Any], Callable[[Any], None]]] = [
        ("front", points, partial(_scatter, points=points, metric=metric)),
        ("speed-up", ratios, partial(_bars, bars=ratios, axis="times plain decoding", reference=1.0)),
        ("time", decoded, partial(_times, series=decoded)),
    ]
    for kind, axis in AXES.items():
        curves = [(label, _points(kind, row["decoding"]), colour) for label, row, colour in decoded]
        curves = [one for one in curves if one[1]]
        kinds.append((kind, curves, partial(_curves, curves=curves, axis=axis)))
    for counter in dict.fromkeys(name for row in rows for name in energies(row)):
        joules = [(label, energies(row)[counter]["joules_per_token"], c) for label, row, c in series if energies(row)]
        joules = [one for one in joules if known(one[1])]
        kinds.append((f"energy-{counter}", joules, partial(_bars, bars=joules, axis="joules per token")))
    height = 2.4 + 0.25 * len(rows)
    return [Figure(kind, file_name(task, kind), paint, height) for kind, marks, paint in kinds if marks]


AXES = {
    "acceptance": "drafted position in a round",
    "depth": "drafts accepted in a round",
    "width": "beams in a layer",
}


def _points(kind: str, decoding: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(x, share) of a curve; empty where the method has none."""
    if kind == "acceptance":
        shares = zip(decoding["acceptance_by_position"], decoding["attempted_at"], strict=True)
        return [(place, share) for place, (share, n) in enumerate(shares, 1) if n >= MIN_ATTEMPTS]
    counts = decoding[f"{kind}_counts"] if decoding["drafted"] or kind == "width" else []
    total = sum(counts)
    return [(place, count / total) for place, count in enumerate(counts) if place or kind == "depth"] if total else []


def front(points: Sequence[tuple[float, float]], higher: bool = True) -> list[tuple[float, float]]:
    """The Pareto front, from low x to high x: points that no other equals on one axis or both and beats on one.

    More of x is better, of y if `higher`, else less.
    """
    sign, best, kept = (1 if higher else -1), -math.inf, []
    for x, y in sorted(set(points), key=lambda point: (-point[0], -sign * point[1])):
        if sign * y > best:
            best = sign * y
            kept.append((x, y))
    return kept[::-1]


def known(interval: IntervalFigures | None) -> bool:
    """True where an interval has a value."""
    return interval is not None and interval["value"] is not None


def _errors(intervals: Sequence[IntervalFigures]) -> list[list[float]]:
    """Distances of the ends of intervals from their values, [below, above], as matplotlib wants them."""
    ends = [[one["value"] if one[end] is None else one[end] for one in intervals] for end in ("low", "high")]
    return [[abs(end - one["value"]) for end, one in zip(side, intervals, strict=True)] for side in ends]


def _scatter(canvas: Any, points: Sequence[tuple[str, IntervalFigures, IntervalFigures, str]], metric: str) -> None:
    axes = canvas.subplots()
    joined = front([(x["value"], y["value"]) for _, x, y, _ in points], metric not in LOWER_IS_BETTER)
    axes.plot(*zip(*joined, strict=True), "--", color=plots.INK, linewidth=1)
    for place, (label, x, y, colour) in enumerate(points):
        marker = plots.MARKERS[place // len(plots.PALETTE) % len(plots.MARKERS)]
        errors = {"xerr": _errors([x]), "yerr": _errors([y]), "elinewidth": 0.7}
        axes.errorbar(x["value"], y["value"], fmt=marker, color=colour, label=fill(label, LABEL_WIDTH), **errors)
    axes.set(xlabel="tokens per second", ylabel=metric)
    canvas.legend(loc="outside lower left", ncols=2, fontsize=8)


def _curves(canvas: Any, curves: Sequence[tuple[str, Sequence[tuple[int, float]], str]], axis: str) -> None:
    axes = canvas.subplots()
    for place, (label, points, colour) in enumerate(curves):
        marker = plots.MARKERS[place // len(plots.PALETTE) % len(plots.MARKERS)]
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=fill(label, LABEL_WIDTH))
    axes.set(xlabel=axis, ylabel="share", ylim=(-0.03, 1.03))
    axes.xaxis.get_major_locator().set_params(integer=True)
    canvas.legend(loc="outside lower left", ncols=2, fontsize=8)


def _bars(
    canvas: Any, bars: Sequence[tuple[str, IntervalFigures, str]], axis: str, reference: float | None = None
) -> None:
    axes = canvas.subplots()
    lengths = [one["value"] for _, one, _ in bars]
    errors = {"xerr": _errors([one for _, one, _ in bars]), "error_kw": {"elinewidth": 1, "ecolor": plots.INK}}
    drawn = axes.barh(_names(bars), lengths, color=[colour for *_, colour in bars], **errors)
    axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=7.5)
    if reference is not None:
        axes.axvline(reference, color=plots.INK, linestyle="--", linewidth=1)
    axes.set(xlabel=axis)
    axes.invert_yaxis()


def _times(canvas: Any, series: Sequence[tuple[str, ResultRow, str]]) -> None:
    axes = canvas.subplots()
    left = [0.0] * len(series)
    for (phase, name), colour in zip({**PHASES, "": "outside rounds"}.items(), plots.SHADES, strict=True):
        spent = [1000 * _seconds(row["timing"], phase) / row["decoding"]["tokens"] for _, row, _ in series]
        axes.barh(_names(series), spent, left=left, color=colour, label=name)
        left = [before + more for before, more in zip(left, spent, strict=True)]
    axes.set(xlabel="milliseconds per token")
    axes.invert_yaxis()
    canvas.legend(loc="outside lower left", ncols=3, fontsize=8)


def _seconds(timing: Mapping[str, Any], phase: str) -> float:
    """Seconds of a phase of the rounds; of none, all that was spent outside of rounds."""
    rounds = float(timing["round_seconds"])
    return float(timing["time_shares"][phase]) * rounds if phase else max(0.0, timing["seconds"] - rounds)


def _names(series: Sequence[tuple[str, Any, str]]) -> list[str]:
    """Labels in lines of LABEL_WIDTH; no two are equal, or matplotlib would draw their bars in one place."""
    names = [fill(label, LABEL_WIDTH) for label, *_ in series]
    return [name + "\u200b" * names[:place].count(name) for place, name in enumerate(names)]
