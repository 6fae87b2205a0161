"""Which figures a summary has, and what each of them says to somebody who was not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwood.eval.energy import ESTIMATE
from draftwood.eval.report.charts import (
    Chart,
    Curve,
    Dot,
    Figure,
    Span,
    bars,
    colours,
    curves,
    front,
    histograms,
    scatter,
    stacks,
)
from draftwood.eval.report.measures import RATE, SCORE, SHARES, Row, energies, span
from draftwood.eval.report.naming import LOWER_IS_BETTER, score_bounds, score_name
from draftwood.util.plots import SHADES

FEWEST = 5  # times that a position was reached, or its share is left out


def file_name(task: str, kind: str) -> str:
    """The name of a figure's file, without its ending."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"{task}-{kind}").strip("-")


class Task:
    """The rows of one task, one for each method, with names and colours."""

    def __init__(self, name: str, rows: Sequence[Row], labels: Sequence[str]) -> None:
        self.name, self.rows, self.labels = name, rows, labels
        self.colours = colours(len(rows), [place for place, row in enumerate(rows) if row["baseline"]])
        self.metric = rows[0]["quality"]["metric"]

    def __iter__(self) -> Iterator[tuple[Row, str, str]]:
        return iter(zip(self.rows, self.labels, self.colours, strict=True))

    def figures(self) -> list[Figure]:
        """All figures that there is something for."""
        made = [self._front(), self._speed_up(), self._acceptance(), self._time(), self._depths(), self._widths()]
        counters = dict.fromkeys(name for row in self.rows for name in energies(row))
        return [figure for figure in (*made, *map(self._energy, counters)) if figure is not None]

    def _figure(self, kind: str, title: str, about: str, chart: Chart, *notes: str) -> Figure:
        return Figure(file_name(self.name, kind), title, about, chart, notes)

    def _front(self) -> Figure | None:
        dots = [
            Dot(label, x, y, colour) for row, label, colour in self if (x := RATE.span(row)) and (y := SCORE.span(row))
        ]
        if not dots:
            return None
        higher = self.metric not in LOWER_IS_BETTER
        return self._figure(
            "front",
            "Quality beside speed",
            "Each point is a method; further right is faster, and "
            f"{'higher' if higher else 'lower'} is better. The dashed line joins the Pareto front: methods that no "
            "other beats on both axes. Pale crosses are 95% intervals; where they overlap, a difference may be "
            "chance.",
            scatter("tokens per second", score_name(self.metric), dots, higher, bounds=score_bounds(self.metric)),
            f"On the front: {', '.join(dot.label for dot in front(dots, higher))}.",
        )

    def _bars(self, measured: Sequence[tuple[str, Any, str]], axis: str, reference: float | None = None) -> Chart:
        return bars(axis, [(label, span(found), colour) for label, found, colour in measured], reference)

    def _speed_up(self) -> Figure | None:
        found = [(label, row["paired"]["speed_up"], colour) for row, label, colour in self if row["paired"] is not None]
        if not any(span(each) for _, each, _ in found):
            return None
        return self._figure(
            "speed-up",
            "Speed-up",
            "Tokens per second over those of plain decoding (the dashed line at 1) on the same items and seeds. The "
            "thin line is the 95% interval; a bar whose interval spans 1 shows no difference.",
            self._bars(found, "times plain decoding", 1.0),
        )

    def _energy(self, counter: str) -> Figure:
        found = [(label, energies(row).get(counter, {}).get("joules_per_token"), colour) for row, label, colour in self]
        source = (
            "estimated from bytes of weights and operations at published joules for each: no counter was read"
            if counter == ESTIMATE
            else "as the device's own counter tells (the whole device, idle power included)"
        )
        return self._figure(
            f"energy-{counter}",
            f"Energy, {counter}",
            f"Joules for each token of the answer, {source}. The thin line is the 95% interval. Shorter is better.",
            self._bars(found, "joules per token"),
        )

    def _acceptance(self) -> Figure | None:
        lines = []
        for row, label, colour in self:
            shares, reached = (row["decoding"][name] for name in ("acceptance_by_position", "attempted_at"))
            places = enumerate(zip(shares, reached, strict=True), 1)
            if points := [(float(place), Span(share)) for place, (share, n) in places if n >= FEWEST]:
                lines.append(Curve(label, points, colour))
        if not lines:
            return None
        return self._figure(
            "acceptance",
            "Acceptance by position",
            "Of the rounds that came as far as the 1st, 2nd, ... drafted position: the share in which a draft was "
            "accepted there. A curve that falls says that deeper drafts are worth less; for beams, acceptance means "
            "that a whole layer stands.",
            curves("drafted position in a round", "share accepted", lines, bounds=(0, 1)),
            f"Positions that were reached fewer than {FEWEST} times are left out.",
        )

    def _time(self) -> Figure | None:
        rows = [(label, row) for row, label, _ in self if row["decoding"]["tokens"]]
        if not rows:
            return None
        return self._figure(
            "time",
            "Where the time went",
            "Milliseconds for each token of the answer, split into forwards of the draft, forwards of the target (the "
            "prompt's among them), sampling with accepting and rejecting, and bookkeeping. Shorter is faster. Drafting "
            "pays where it shortens the target's part by more than it adds.",
            times(rows),
        )

    def _depths(self) -> Figure | None:
        series = [
            (label, _shares(counts), colour)
            for row, label, colour in self
            if row["decoding"]["drafted"] and sum(counts := _depth_counts(row["decoding"]))
        ]
        if not series:
            return None
        return self._figure(
            "depth",
            "Drafts accepted in a row",
            "How many drafts in a row a round had accepted: share of rounds. A round gives one token more than that, "
            "which the target chooses itself. Much at 0 means drafts that miss; much at the far right means that "
            "longer drafts may pay.",
            histograms("drafts accepted in a round", series),
        )

    def _widths(self) -> Figure | None:
        series = [
            (label, _shares(counts)[1:], colour)
            for row, label, colour in self
            if sum(counts := row["decoding"].get("width_counts", []))
        ]
        if not series:
            return None
        return self._figure(
            "width",
            "Width of beams",
            "How many hypotheses a layer of beams held: share of layers. A method with an adaptive width (DSBD) "
            "narrows its beams where drafts are unlikely to be accepted; a fixed width is a single column.",
            histograms("beams in a layer", series, 1),
        )


def times(rows: Sequence[tuple[str, Row]]) -> Chart:
    """Milliseconds for each token by what they were spent on, the time between rounds last."""
    found = []
    for label, row in rows:
        timing, tokens = row["timing"], row["decoding"]["tokens"]
        spent = [timing["time_shares"][part] * timing["round_seconds"] for part in SHARES]
        spent.append(max(0.0, timing["seconds"] - sum(spent)))
        found.append((label, [1000 * seconds / tokens for seconds in spent]))
    names = [*SHARES.values(), "outside rounds"]
    return stacks("milliseconds per token", list(zip(names, SHADES, strict=True)), found)


def _depth_counts(decoding: Mapping[str, Any]) -> list[int]:
    """Rounds by drafts accepted in a row; older results have how many rounds came how far."""
    if decoding.get("depth_counts"):
        return list(decoding["depth_counts"])
    reached = [decoding["rounds"], *decoding["accepted_at"]]
    return [a - b for a, b in zip(reached, [*reached[1:], 0], strict=True)]


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts]
