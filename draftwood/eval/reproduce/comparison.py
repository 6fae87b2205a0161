"""What the paper says beside what was measured, in one sentence that follows from the numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

from draftwood.eval.intervals import Interval
from draftwood.eval.report.measures import cell, value

NOT_MEASURED = "not measured here"
SHORT = {  # verdicts in a word or two
    "same direction": "same way",
    "opposite direction": "other way",
    "one item has no interval, so no direction is shown": "open",
    "the interval reaches 1, so no direction is shown": "open",
    "the interval reaches 0, so no direction is shown": "open",
    "smaller than in the paper": "smaller",
    "larger than in the paper": "larger",
    "within the paper's range": "as large",
    "as large as in the paper": "as large",
    "no more than the paper's most": "up to it",
    "more than the paper's most": "more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(ABC):
    """A quantity or an order of the paper, and the same as it was measured."""

    what: str
    main: bool = True  # whether it is among those that a short table has

    @property
    @abstractmethod
    def theirs(self) -> str:
        """The paper's."""

    @property
    @abstractmethod
    def here(self) -> str:
        """The measured."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """Whether they agree; empty where nothing was measured."""

    @property
    def short(self) -> str:
        """The verdict in a few words."""
        return self.verdict.partition(" of methods")[0]

    @property
    def sentence(self) -> str:
        """All of it."""
        found = f"here {self.here}: {self.verdict}" if self.verdict else self.here
        return f"{self.what}: the paper {self.theirs}; {found}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Finding):
    """One quantity. `paper` are the ends of what the paper gives, equal where that is one number.

    `even` is the value that separates better from worse (1 of ratios, 0 of differences); None where there is none.
    `most`: the paper gives the largest that it saw.
    """

    paper: tuple[float, float]
    ours: Interval | None
    unit: str = "×"
    even: float | None = 1.0
    most: bool = False
    digits: int = 2
    absent: str = NOT_MEASURED  # why there is no value of ours

    @property
    def theirs(self) -> str:
        low, high = (f"{end:.{self.digits}f}" for end in self.paper)
        return "at most " * self.most + (low if low == high else f"{low}–{high}") + self.unit

    @property
    def here(self) -> str:
        if value(self.ours) is None:
            return self.absent
        number, bracket, interval = cell(self.ours, self.digits).partition(" [")
        return number + self.unit + bracket + interval

    @property
    def verdict(self) -> str:
        return "; ".join(self._parts())

    @property
    def short(self) -> str:
        return ", ".join(SHORT[part.partition(", but")[0]] for part in self._parts())

    def _parts(self) -> list[str]:
        """Direction, where there is one, and size."""
        if self.ours is None or self.ours["value"] is None:
            return []
        return [part for part in (self._direction(self.ours, self.ours["value"]), self._size(self.ours)) if part]

    def _direction(self, ours: Interval, found: float) -> str:
        if self.even is None:
            return ""
        low, high = ours["low"], ours["high"]
        if low is None or high is None:
            return "one item has no interval, so no direction is shown"
        if low <= self.even <= high:
            return f"the interval reaches {self.even:g}, so no direction is shown"
        paper = {_side(end, self.even) for end in self.paper[self.most :]}
        if len(paper) > 1 or paper == {0}:
            return ""
        return "same direction" if paper == {_side(found, self.even)} else "opposite direction"

    def _size(self, ours: Interval) -> str:
        found = round(ours["value"] or 0.0, self.digits)
        low, high = (found if end is None else end for end in (ours["low"], ours["high"]))
        if self.most:
            return "no more than the paper's most" if found <= self.paper[1] else "more than the paper's most"
        if self.paper[0] <= found <= self.paper[1]:
            return "as large as in the paper" if self.paper[0] == self.paper[1] else "within the paper's range"
        reaches = "" if high < self.paper[0] or low > self.paper[1] else ", but the interval reaches it"
        return ("smaller" if found < self.paper[0] else "larger") + " than in the paper" + reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Finding):
    """Methods ranked by a quantity, most first. The paper's value of a method is one number, or a mean of several."""

    paper: Mapping[str, float]
    ours: Mapping[str, Interval | None]

    @property
    def _known(self) -> dict[str, float]:
        return {name: found for name in self.paper if (found := value(self.ours.get(name))) is not None}

    @property
    def theirs(self) -> str:
        return _ranked({name: self.paper[name] for name in self._known} or self.paper)

    @property
    def here(self) -> str:
        return _ranked(self._known) if len(self._known) > 1 else NOT_MEASURED

    @property
    def verdict(self) -> str:
        known = self._known
        pairs = [(a, b) for a, b in combinations(known, 2) if self.paper[a] != self.paper[b]]
        if not pairs:
            return ""
        other = [(a, b) for a, b in pairs if _side(self.paper[a], self.paper[b]) != _side(known[a], known[b])]
        if not other:
            return "same order"
        sure = sum(_apart(self.ours[a], self.ours[b]) for a, b in other)
        rest = f"{sure} of the others clearly in another" if sure else "the others too close to tell"
        return f"{len(pairs) - len(other)} of {len(pairs)} pairs of methods in the same order, {rest}"


def _ranked(values: Mapping[str, float]) -> str:
    """a > b = c"""
    names = sorted(values, key=lambda name: -values[name])
    signs = [" = " if values[a] == values[b] else " > " for a, b in pairwise(names)]
    return "".join(part for pair in zip(names, [*signs, ""], strict=True) for part in pair)


def _apart(a: Interval | None, b: Interval | None) -> bool:
    """Whether two intervals do not meet."""
    ends = [end for each in (a, b) if each is not None for end in (each["low"], each["high"])]
    known = [end for end in ends if end is not None]
    return len(known) == 4 and (known[1] < known[2] or known[3] < known[0])


def _side(number: float, even: float) -> int:
    return (number > even) - (number < even)
