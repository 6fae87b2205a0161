"""What the evaluations of a reproduction say, by the names that methods have on its page.

Reads summaries and records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.eval.intervals import Interval
from draftwood.eval.report.figures import Row
from draftwood.eval.report.reading import records_of, summary_of
from draftwood.eval.store import CONFIGURATION, ITEMS, Record
from draftwood.eval.summary import paired, speed_ratio


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation's results."""

    methods: Sequence[str]  # names, in the evaluation's order
    summary: Mapping[str, Any]
    records: Mapping[str, Record]

    @property
    def tasks(self) -> list[str]:
        return [task["name"] for task in self.summary["configuration"]["tasks"]]

    @property
    def energy(self) -> str:
        """The first counter of energy; empty where the machine has none."""
        energy = self.summary["energy"]
        return "" if isinstance(energy, str) else next(iter(energy["idle_watts"]), "")

    def row(self, task: str, method: str) -> Row | None:
        """The summary's row; None where the evaluation has no such method. The task must be one of its own."""
        if method not in self.methods:
            return None
        wanted = self.summary["configuration"]["methods"][self.methods.index(method)]
        rows = self.summary["rows"]
        found: Row = next(row for row in rows if row["task"] == task and row["method"] == wanted)
        return found

    def faster(self, method: str, other: str, tasks: Sequence[str] | None = None) -> Interval | None:
        """Tokens per second of a method over another's on the same items and seeds, tasks together."""
        if method not in self.methods or other not in self.methods:
            return None
        numbers = self.methods.index(method), self.methods.index(other)
        pairs = []
        for place, task in enumerate(tasks or self.tasks):
            runs = [
                [each for each in self.records.values() if each["task"] == task and each["method"] == number]
                for number in numbers
            ]
            # items of different tasks are different items
            pairs += [
                tuple({**each, "place": (place, each["place"])} for each in pair) for pair in paired(runs[0], runs[1])
            ]
        return speed_ratio([(a, b) for a, b in pairs])


@dataclass(frozen=True, slots=True)
class Results:
    """All evaluations that have begun, by name."""

    measured: Mapping[str, Measured]

    @classmethod
    def read(cls, out: Path, methods: Mapping[str, Sequence[str]]) -> Results:
        """Those of a directory; `methods` are the names of each evaluation's methods."""
        found = {}
        for name, labels in methods.items():
            place = out / name
            if (place / CONFIGURATION).is_file() and (place / ITEMS).is_file() and (place / ITEMS).stat().st_size:
                found[name] = Measured(labels, summary_of(place), records_of(place))
        return cls(found)

    def __getitem__(self, name: str) -> Measured | None:
        return self.measured.get(name)
