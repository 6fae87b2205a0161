"""What the paper says beside what was measured, in one sentence that follows from the numbers.

Pure numbers and words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from draftwood.eval.intervals import Interval

NOT_MEASURED = "not measured here"
SAME, OPPOSITE, ONE_ITEM = "same direction", "opposite direction", "one item has no interval, so no direction is shown"
OPEN = "the interval reaches {even:g}, so no direction is shown"
SHORT = {
    SAME: "same way",
    OPPOSITE: "other way",
    **{text: "open" for text in (ONE_ITEM, OPEN.format(even=1), OPEN.format(even=0))},
    "smaller than in the paper": "smaller",
    "larger than in the paper": "larger",
    "within the paper's range": "as large",
    "as large as in the paper": "as large",
    "no more than the paper's most": "up to it",
    "more than the paper's most": "more",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity. `paper` are the ends of what the paper gives, equal where that is one number.

    `even` is the value that separates better from worse (1 of ratios, 0 of differences); None where there is none.
    `most`: the paper gives the largest that it saw.
    """

    what: str
    paper: tuple[float, float]
    ours: Interval | None
    unit: str = "×"
    even: float | None = 1.0
    most: bool = False
    digits: int = 2
    main: bool = True  # whether it is among those that a short table has
    absent: str = NOT_MEASURED  # why there is no value of ours

    @property
    def theirs(self) -> str:
        """The paper's value."""
        low, high = map(self._number, self.paper)
        text = low if low == high else f"{low}–{high}"
        return ("at most " if self.most else "") + text + self.unit

    @property
    def here(self) -> str:
        """The measured value with its interval."""
        ours = self.ours
        if ours is None or ours["value"] is None:
            return self.absent
        text = self._number(ours["value"]) + self.unit
        if ours["low"] is not None and ours["high"] is not None:
            text += f" [{self._number(ours['low'])}, {self._number(ours['high'])}]"
        return text

    @property
    def verdict(self) -> str:
        """Direction and size."""
        return "; ".join(part for part in (self._direction(), self._size()) if part)

    @property
    def short(self) -> str:
        """The verdict in a few words."""
        return ", ".join(SHORT.get(part, part) for part in (self._direction(), self._size().partition(",")[0]) if part)

    @property
    def sentence(self) -> str:
        if self.here == self.absent:
            return f"{self.what}: the paper {self.theirs}; {self.absent}."
        return f"{self.what}: the paper {self.theirs}; here {self.here}: {self.verdict}."

    def _direction(self) -> str:
        ours, even = self.ours, self.even
        if even is None or ours is None or ours["value"] is None:
            return ""
        paper = {_side(end, even) for end in ((self.paper[1],) if self.most else self.paper)}
        low, high = ours["low"], ours["high"]
        if low is None or high is None:
            return ONE_ITEM
        if low <= even <= high:
            return OPEN.format(even=even)
        if len(paper) > 1 or paper == {0}:
            return ""
        return SAME if paper == {_side(ours["value"], even)} else OPPOSITE

    def _size(self) -> str:
        ours = self.ours
        if ours is None or ours["value"] is None:
            return ""
        value = round(ours["value"], self.digits)
        low = value if ours["low"] is None else ours["low"]
        high = value if ours["high"] is None else ours["high"]
        if self.most:
            return "no more than the paper's most" if value <= self.paper[1] else "more than the paper's most"
        if self.paper[0] <= value <= self.paper[1]:
            return "as large as in the paper" if self.paper[0] == self.paper[1] else "within the paper's range"
        reaches = "" if high < self.paper[0] or low > self.paper[1] else ", but the interval reaches it"
        return ("smaller" if value < self.paper[0] else "larger") + " than in the paper" + reaches

    def _number(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Order:
    """Methods ranked by a quantity, most first. The paper's value of a method is one number, or a mean of several."""

    what: str
    paper: Mapping[str, float]
    ours: Mapping[str, Interval | None]
    main: bool = True

    @property
    def _known(self) -> dict[str, float]:
        values = {name: each["value"] for name, each in self.ours.items() if each is not None}
        return {name: value for name, value in values.items() if value is not None and name in self.paper}

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
        same = [(a, b) for a, b in pairs if _side(self.paper[a], self.paper[b]) == _side(known[a], known[b])]
        if len(same) == len(pairs):
            return "same order"
        sure = sum(_apart(self.ours[a], self.ours[b]) for a, b in pairs if (a, b) not in same)
        rest = f"{sure} of the others clearly in another" if sure else "the others too close to tell"
        return f"{len(same)} of {len(pairs)} pairs of methods in the same order, {rest}"

    @property
    def short(self) -> str:
        """The verdict in a few words."""
        return self.verdict.partition(" of methods")[0]

    @property
    def sentence(self) -> str:
        if self.here == NOT_MEASURED:
            return f"{self.what}: the paper {self.theirs}; {NOT_MEASURED}."
        return f"{self.what}: the paper {self.theirs}; here {self.here}: {self.verdict}."


def _ranked(values: Mapping[str, float]) -> str:
    """a > b = c"""
    names = sorted(values, key=lambda name: -values[name])
    signs = [" = " if values[a] == values[b] else " > " for a, b in pairwise(names)]
    return "".join(part for pair in zip(names, [*signs, ""], strict=True) for part in pair)


def _apart(a: Interval | None, b: Interval | None) -> bool:
    """Whether two intervals do not meet."""
    ends = [end for each in (a, b) if each is not None for end in (each["low"], each["high"])]
    known: Sequence[float] = [end for end in ends if end is not None]
    return len(known) == 4 and (known[1] < known[2] or known[3] < known[0])


def _side(value: float, even: float) -> int:
    return (value > even) - (value < even)
