"""Numbers of a summary's row (one method on one task) by the names that tables and figures have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwood.eval.energy import ESTIMATE
from draftwood.eval.intervals import Interval
from draftwood.eval.report.charts import Span

Row = Mapping[str, Any]
NONE = "–"
SHARES = {"draft": "drafting", "verify": "target forwards", "sampling": "sampling and judging", "other": "bookkeeping"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a row with its interval, as tables and figures show it."""

    title: str
    about: str
    of: Callable[[Row], Interval | None]
    digits: int = 2

    def value(self, row: Row) -> float | None:
        """The number alone."""
        return value(self.of(row))

    def span(self, row: Row) -> Span | None:
        """For a chart."""
        return span(self.of(row))

    def cell(self, row: Row) -> str:
        """For a table."""
        return cell(self.of(row), self.digits)


def value(interval: Mapping[str, Any] | None) -> float | None:
    """An interval's value, if there is one."""
    return None if interval is None else interval["value"]


def span(interval: Mapping[str, Any] | None) -> Span | None:
    """An interval as charts take it; None where nothing was measured."""
    if interval is None or interval["value"] is None:
        return None
    return Span(interval["value"], interval["low"], interval["high"])


def cell(interval: Mapping[str, Any] | None, digits: int = 2) -> str:
    """0.81 [0.70, 0.92]"""
    if interval is None or interval["value"] is None:
        return NONE
    shown, low, high = f"{interval['value']:.{digits}f}", interval["low"], interval["high"]
    return shown if low is None or high is None else f"{shown} [{low:.{digits}f}, {high:.{digits}f}]"


def energies(row: Row) -> Mapping[str, Any]:
    """Joules by counter; empty where the machine has none."""
    return row["energy"] if isinstance(row["energy"], Mapping) else {}


def speed_up(row: Row) -> Interval | None:
    """Over plain decoding on the same items and seeds; 1 where the row is plain decoding's."""
    if row["paired"] is None:
        made = row["timing"]["tokens_per_second"]["value"]
        return Interval(value=1.0 if made else None, low=None, high=None, n=0)
    found: Interval = row["paired"]["speed_up"]
    return found


def decoded(name: str, needs: str) -> Callable[[Row], Interval | None]:
    """A ratio of the rounds' counts, where the sum `needs` is not 0."""
    return lambda row: row["decoding"][name] if row["decoding"][needs] else None


SPEED_UP = Measure("Speed-up", "Tokens per second over plain decoding's, on the same items and seeds.", speed_up)
RATE = Measure(
    "Tokens/s", "Of the answers, over wall time with the prompt.", lambda row: row["timing"]["tokens_per_second"], 0
)
SCORE = Measure(
    "Score", "The score that stands for the task.", lambda row: row["quality"].get(row["quality"]["metric"])
)
TAU = Measure(
    "tau",
    "Tokens per forward of the target (block efficiency); plain decoding has 1.",
    lambda row: row["decoding"]["tau"],
)
ACCEPTED = Measure(
    "Accepted",
    "Accepted over drafted tokens. Wide trees and beams draft many to accept few.",
    decoded("acceptance_rate", "drafted"),
)
BOUNDED = Measure(
    "One of n",
    "How often one of n independent drafts at a place was accepted, in some of the rounds.",
    decoded("bounded_rate", "bounded"),
)
BOUND = Measure(
    "alpha*(n)",
    "How often any rule that judges node by node could have accepted one of these drafts, at most.",
    decoded("acceptance_bound", "bounded"),
)
JOULES_ESTIMATED = Measure(
    "J/token, estimate",
    "Estimated from bytes of weights and operations at published joules for each: no counter was read.",
    lambda row: energies(row).get(ESTIMATE, {}).get("joules_per_token"),
    4,
)
