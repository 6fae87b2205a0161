"""Which pass comes next, and how many rows it computes: all that the scheduler decides, without its state.

A pass of the target costs about the same for few rows as for many. So requests that draft wait for each other. One that
does not draft gets its tokens almost as fast as if nobody did: what drafts, and the rows that verify them, take more
than that is saved first, by passes without those that draft.

Calls share the passes: where one has so many rows, of a long prompt, wide beams or many texts, that a pass over them
all would hold up the call with the fewest for too long, each pass computes a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PATIENCE = 0.2  # of a target pass over one row of each request: what drafts of others may add to one on average
TOGETHER = 2.0  # target passes: drafting that those wait for which have drafted, since a pass for them all saves one
SHORT = 128  # rows of a run that is never computed in pieces while its call is alone, unless it reads a prompt
CATCHES_UP = 16  # rows beside those asked for of a run that reads no prompt
LEAST = 8  # rows of each call that a pass computes at least, if it has them
DEBT = 20.0  # target passes: most that drafts can owe, however long one took (compiled, suspended)


@dataclass(slots=True)
class Policy:
    """`chunk`: most rows of prompts that one pass computes, so that others need not wait for long.

    Requests are hasty that wait for the target and do not draft at all.
    """

    chunk: int = 512
    drafted: float = 0.0  # seconds of draft passes since the last target pass
    credit: float = 0.0  # seconds that others' drafts may take while the hasty wait; below 0: that they took too much

    def may_draft(self, hasty: bool) -> bool:
        """Whether a draft pass is made, and whether those that have drafted take part in a target pass."""
        return not hasty or self.credit > 0

    def due(self, hasty: bool, drafting: bool, seconds: float) -> bool:
        """Whether a pass of the target starts now, while others draft; it takes those that wait `seconds`."""
        if not drafting:
            return True
        return self.credit <= 0 if hasty else TOGETHER * seconds <= self.drafted

    def draft_pass(self, seconds: float, hasty: bool) -> None:
        """Count a draft pass, for which the hasty waited or not."""
        self.drafted += seconds
        self.credit -= seconds if hasty else 0.0

    def target_pass(self, fair: float = 0.0, taken: float = 0.0, uneven: float = 0.0) -> None:
        """Count a target pass; of one with hasty ones the seconds, without those of prompts.

        `fair` is what a pass over the rows that requests would ask for takes if nobody drafted, `taken` what this one
        does, and `uneven` the part of `fair` that calls took which have more rows than one that drafts.
        """
        self.drafted = 0.0
        self.credit = max(min(self.credit, 0.0) + (1 + PATIENCE) * fair - taken + uneven, -DEBT * fair)

    def rest(self) -> None:
        """Nobody runs: nobody owes anything."""
        self.drafted = self.credit = 0.0

    def limits(
        self,
        runs: Sequence[Wanted],
        seconds: Callable[[int], float] = float,
        chunk: int | None = None,
    ) -> list[int]:
        """How many of each run's rows a pass computes, of one call in their order: all, where these are not too many.

        Of several calls a pass takes at most as long, by `seconds` of so many rows, as the one with the fewest rows can
        wait for its share: as many passes as there are calls. What there is room for is shared evenly, and a call's
        runs have its share in their order. `chunk`: the model's own, where it is smaller.
        """
        chunk = self.chunk if chunk is None else min(chunk, self.chunk)
        asked = dict.fromkeys([run.call for run in runs], 0)
        if len(asked) < 2:
            return _in_turn(runs, chunk)
        for run in runs:
            asked[run.call] += run.rows
        read = sum([run.rows for run in runs if run.reads(chunk)])
        most = sum(asked.values()) - max(0, read - chunk)
        shares = _shared(asked, _within(len(asked), max(1, min(asked.values())), most, seconds))
        found = []
        for run in runs:
            found.append(min(run.rows, shares[run.call]))
            shares[run.call] -= found[-1]
        return found


class Wanted(NamedTuple):
    """Of a run: how many, how many of them are those of nodes that were asked for, and whose it is."""

    rows: int
    asked: int = 1
    call: object = None

    def reads(self, chunk: int) -> bool:
        """Whether it reads a prompt, or as much: it may be computed in pieces of so many rows."""
        return self.rows > min(SHORT, chunk + chunk // 2) or self.rows > self.asked + CATCHES_UP


def _in_turn(runs: Sequence[Wanted], chunk: int) -> list[int]:
    """So many rows of prompts, and half as many again in whole runs that read none: one of these at least."""
    most = chunk + chunk // 2
    found, reading, others = [], chunk, most
    for run in runs:
        if run.reads(chunk):
            found.append(min(run.rows, reading))
            reading -= found[-1]
        else:
            found.append(run.rows if run.rows <= others or others == most else 0)
            others -= found[-1]
    return found


def _within(calls: int, fewest: int, most: int, seconds: Callable[[int], float]) -> int:
    """The rows, at most so many, of a pass that the call with the fewest rows can wait for."""
    bound = calls * seconds(fewest)
    if seconds(most) <= bound:
        return most
    low, high = min(most, calls * LEAST), most
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(middle) <= bound:
            low = middle
        else:
            high = middle - 1
    return low


def _shared(asked: dict[object, int], room: int) -> dict[object, int]:
    """The rows of each call, of so many together: whoever asks for less than an even share has all of it."""
    shares, left = {}, len(asked)
    for call, count in sorted(asked.items(), key=lambda each: each[1]):
        shares[call] = min(count, -(-room // left))
        room, left = room - shares[call], left - 1
    return shares
