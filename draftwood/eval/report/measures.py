"""Numbers of a summary's row (one method on one task) by the names that tables and figures have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwood.eval.energy import ESTIMATE
from draftwood.eval.intervals import Interval
from draftwood.eval.report.charts import Span
from draftwood.eval.report.naming import LOWER_IS_BETTER

Row = Mapping[str, Any]
NONE = "–"
SHARES = {"draft": "drafting", "verify": "target forwards", "sampling": "sampling and judging", "other": "bookkeeping"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a row with its interval. `even` separates better from worse, where something does."""

    title: str
    about: str
    of: Callable[[Row], Interval | None]
    digits: int = 2
    unit: str = ""
    even: float | None = None

    def value(self, row: Row | None) -> float | None:
        """The number alone."""
        return value(None if row is None else self.of(row))

    def span(self, row: Row | None) -> Span | None:
        """For a chart."""
        return span(None if row is None else self.of(row))

    def cell(self, row: Row | None) -> str:
        """For a table."""
        return cell(None if row is None else self.of(row), self.digits)


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
    return f"{interval['value']:.{digits}f}" + ends(interval, digits)


def ends(interval: Mapping[str, Any], digits: int = 2) -> str:
    """' [0.70, 0.92]', or nothing where there is no interval."""
    low, high = interval["low"], interval["high"]
    return "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"


def exact(number: float | None) -> Interval:
    """A number that has no interval."""
    return Interval(value=number, low=None, high=None, n=0)


def scaled(interval: Interval | None, factor: float) -> Interval | None:
    """An interval in another unit."""
    if interval is None:
        return None
    numbers = interval["value"], interval["low"], interval["high"]
    value, low, high = (None if each is None else each * factor for each in numbers)
    return Interval(value=value, low=low, high=high, n=interval["n"])


def paired(row: Row, name: str, of_baseline: float) -> Interval:
    """A comparison with the baseline on the same items and seeds; its own value where the row is the baseline's."""
    if row["paired"] is not None:
        found: Interval = row["paired"][name]
        return found
    return exact(of_baseline if row["timing"]["tokens_per_second"]["value"] else None)


def energies(row: Row) -> Mapping[str, Any]:
    """Joules by counter; empty where the machine has none."""
    return row["energy"] if isinstance(row["energy"], Mapping) else {}


def _decoding(name: str, needs: str = "", factor: float = 1.0) -> Callable[[Row], Interval | None]:
    return lambda row: scaled(row["decoding"][name], factor) if not needs or row["decoding"][needs] else None


def _predicted(row: Row) -> Interval | None:
    found: Interval = row["decoding"]["predicted_layers"]
    return found if found["value"] else None


def _share(part: str) -> Measure:
    return Measure(
        f"{SHARES[part]}, % of the time",
        f"Share of the rounds' time: {SHARES[part]}.",
        lambda row: exact(100 * row["timing"]["time_shares"][part]),
        1,
        " %",
    )


SPEED_UP = Measure(
    "Speed-up",
    "Tokens per second over plain decoding's, on the same items and seeds.",
    lambda row: paired(row, "speed_up", 1.0),
    unit="×",
    even=1.0,
)
RATE = Measure(
    "Tokens/s", "Of the answers, over wall time with the prompt.", lambda row: row["timing"]["tokens_per_second"], 0
)
SCORE = Measure(
    "Score", "The score that stands for the task.", lambda row: row["quality"].get(row["quality"]["metric"])
)
PERPLEXITY = Measure(
    "Perplexity", "Of the answers under the target; lower is better.", lambda row: row["quality"]["perplexity"]
)
TAU = Measure("tau", "Tokens per forward of the target (block efficiency); plain decoding has 1.", _decoding("tau"))
ACCEPTED = Measure(
    "Accepted",
    "Accepted over drafted tokens. Wide trees and beams draft many to accept few.",
    _decoding("acceptance_rate", "drafted"),
)
BOUNDED = Measure(
    "One of n",
    "How often one of n independent drafts at a place was accepted, in some of the rounds.",
    _decoding("bounded_rate", "bounded"),
)
BOUND = Measure(
    "alpha*(n)",
    "How often any rule that judges node by node could have accepted one of these drafts, at most.",
    _decoding("acceptance_bound", "bounded"),
)
JOULES = Measure(
    "J/token",
    "Joules per token by the machine's counter, idle power included.",
    lambda row: next((each["joules_per_token"] for name, each in energies(row).items() if name != ESTIMATE), None),
)
JOULES_ESTIMATED = Measure(
    "J/token, estimate",
    "Estimated from bytes of weights and operations at published joules for each: no counter was read.",
    lambda row: energies(row).get(ESTIMATE, {}).get("joules_per_token"),
    4,
)
POINTS = Measure(
    "Points",
    "Hundredths of the score above plain decoding's, on the same items and seeds.",
    lambda row: (
        None if row["quality"]["metric"] in LOWER_IS_BETTER else scaled(paired(row, "score_difference", 0.0), 100)
    ),
    0,
    " points",
    0.0,
)
MEASURES = {
    measure.title: measure
    for measure in (
        *(SPEED_UP, RATE, SCORE, PERPLEXITY, TAU, ACCEPTED, BOUNDED, BOUND, JOULES, JOULES_ESTIMATED, POINTS),
        Measure(
            "HM, %",
            "Harmonic mean of accepted/drafted and accepted/output (EESD App. D).",
            _decoding("harmonic_mean", "drafted", 100),
            1,
        ),
        Measure("r_d", "Accepted over all tokens of the output.", _decoding("draft_share", "drafted")),
        Measure(
            "alpha",
            "Accepted depth over the greatest that is configured, mean of rounds that drafted (MCSD).",
            _decoding("alpha", "drafted"),
        ),
        Measure(
            "Position rate",
            "How often a position with drafts has one accepted.",
            _decoding("position_rate", "drafted"),
        ),
        Measure("Width", "Mean number of beams in a layer.", _decoding("mean_width", "layers")),
        Measure(
            "Accepted width",
            "Drafts accepted in a layer that was verified (DSBD App. C.1).",
            _decoding("mean_accepted_width", "layers"),
        ),
        Measure("Layers/round", "Layers of beams per forward of the target.", _decoding("layers_per_round", "layers")),
        Measure(
            "Layers predicted",
            "The same as DSBD's Theorem 3.2 predicts it, text by text.",
            _predicted,
        ),
        Measure(
            "Layers/predicted",
            "Layers of beams over those that Theorem 3.2 predicts.",
            _decoding("layers_to_predicted", "layers"),
            unit="×",
            even=1.0,
        ),
        Measure(
            "Slots",
            "Most key/value slots of the target's cache in use at once.",
            lambda row: exact(row["decoding"]["peak_slots"] or None),
            0,
        ),
        *map(_share, SHARES),
    )
}
