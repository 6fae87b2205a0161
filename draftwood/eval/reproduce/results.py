"""What the evaluations of a reproduction gave, by the labels that methods have on its page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.kinds.methods import Setting, together
from draftwood.eval.intervals import Interval
from draftwood.eval.report.measures import RATE, Measure, Row
from draftwood.eval.report.reading import records_of, summary_of
from draftwood.eval.reproduce.paper import Chosen
from draftwood.eval.store import CONFIGURATION, ITEMS
from draftwood.eval.summary import SECONDS, TOKENS, paired, versus
from draftwood.util.jsonl import Record


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation's results; settings stand in the order of its methods."""

    settings: Mapping[str, Setting]  # by label
    summary: Mapping[str, Any]
    records: Mapping[str, Record]

    @property
    def tasks(self) -> list[str]:
        return [task["name"] for task in self.summary["configuration"]["tasks"]]

    def metric(self, task: str) -> str:
        """The score that stands for a task."""
        tasks = self.summary["configuration"]["tasks"]
        return next(str(each["metric"]) for each in tasks if each["name"] == task)

    def choose(self, chosen: Chosen) -> list[str]:
        """Labels of the methods that are meant, pattern by pattern."""
        patterns = [chosen.match] if isinstance(chosen.match, str) else chosen.match
        found = [label for pattern in patterns for label in self.settings if fnmatchcase(label, pattern)]
        return [
            label
            for label in dict.fromkeys(found)
            if all(self.options(label).get(name) == value for name, value in chosen.where.items())
        ]

    def options(self, label: str) -> dict[str, Any]:
        """The options of a method, and its label."""
        setting = self.settings[label]
        return {**setting.method, **setting.about, "label": label}

    def row(self, task: str, label: str) -> Row | None:
        """The summary's row; None where the evaluation has no such method. The task must be one of its own."""
        if label not in self.settings:
            return None
        wanted = self.summary["configuration"]["methods"][list(self.settings).index(label)]
        found: Row = next(row for row in self.summary["rows"] if row["task"] == task and row["method"] == wanted)
        return found

    def interval(self, task: str, label: str, measure: Measure) -> Interval | None:
        """A measure of a method on a task."""
        row = self.row(task, label)
        return None if row is None else measure.of(row)

    def value(self, task: str, label: str, measure: Measure = RATE) -> float | None:
        """Its value alone."""
        return measure.value(self.row(task, label))

    def fastest(self, labels: Sequence[str], task: str) -> str | None:
        """The method with most tokens per second on a task."""
        return max(labels, key=lambda label: self.value(task, label) or 0.0, default=None)

    def faster(self, label: str, other: str, tasks: Sequence[str] | None = None) -> Interval | None:
        """Tokens per second of a method over another's on the same items and seeds, tasks together."""
        return self._over(label, other, tasks, SECONDS)

    def thriftier(self, label: str, other: str, tasks: Sequence[str] | None = None) -> Interval | None:
        """Tokens per joule of a method over another's, likewise; None where there is neither counter nor estimate."""
        found = self._over(label, other, tasks, lambda record: math.fsum(record["joules"].values()))
        return None if found is None or found["value"] is None else found

    def _over(
        self, label: str, other: str, tasks: Sequence[str] | None, below: Callable[[Record], float]
    ) -> Interval | None:
        if label not in self.settings or other not in self.settings:
            return None
        numbers = [list(self.settings).index(each) for each in (label, other)]
        both = [
            together(
                [
                    [each for each in self.records.values() if (each["task"], each["method"]) == (task, number)]
                    for task in tasks or self.tasks
                ]
            )
            for number in numbers
        ]
        return versus(paired(*both), TOKENS, below)


Results = Mapping[str, Measured]  # evaluations that have begun, by name


def read(out: Path, settings: Mapping[str, Mapping[str, Setting]]) -> Results:
    """The evaluations of a directory; `settings` are those of each evaluation."""
    found = {}
    for name, each in settings.items():
        place = out / name
        if (place / CONFIGURATION).is_file() and (place / ITEMS).is_file() and (place / ITEMS).stat().st_size:
            found[name] = Measured(each, summary_of(place), records_of(place))
    return found
