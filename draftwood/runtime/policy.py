"""Which pass comes next, and how many rows it computes: all that the scheduler decides, without its state.

A pass of the target costs about the same for few rows as for many, so requests that draft wait for each other. A
request that does not draft gets its tokens almost as fast as if nobody did: what drafts, and the rows that verify them,
take beyond a small share is first saved by passes without those that draft.

Calls share the passes: where one has so many rows, of a long prompt, wide beams or many texts, that a pass over them
all would hold up the call with the fewest for too long, each pass computes a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# in target passes over one row of each request
MAX_DRAFT_DELAY = 0.2  # that drafts of others may add to each pass, on average, for requests that do not draft
MAX_DRAFT_DEBT = 20.0  # that drafts can owe these, however long one took (compiled, suspended)
MAX_DRAFT_WAIT = 2.0  # that requests which have drafted wait for others that still draft: one pass for all saves one
# in rows
SHORT_RUN = 128  # of a run that is never computed in pieces while its call is alone, unless it reads a prompt
CATCH_UP = 16  # beside those asked for, of a run that does not read a prompt
MIN_CALL_ROWS = 8  # of each call that a pass computes at least, if it has them


@dataclass(slots=True)
class Policy:
    """The account of time between requests that draft and requests that do not, and the size of passes.

    `chunk`: rows of prompts that one pass computes at most, so that others need not wait for long. `plain_waits` in
    all methods: whether some request waits for the target that does not draft at all.
    """

    chunk: int = 512
    drafted: float = 0.0  # seconds of draft passes since the last target pass
    credit: float = 0.0  # seconds that drafts may still take while plain requests wait; below 0: that they owe

    def may_draft(self, plain_waits: bool) -> bool:
        """Whether a draft pass is made, and whether those that have drafted take part in a target pass."""
        return not plain_waits or self.credit > 0

    def due(self, plain_waits: bool, drafting: bool, seconds: float) -> bool:
        """Whether a target pass, which takes `seconds`, starts now for those that wait, while others draft."""
        if not drafting:
            return True
        return self.credit <= 0 if plain_waits else MAX_DRAFT_WAIT * seconds <= self.drafted

    def draft_pass(self, seconds: float, plain_waits: bool) -> None:
        """Count a draft pass."""
        self.drafted += seconds
        self.credit -= seconds if plain_waits else 0.0

    def target_pass(self, fair: float = 0.0, taken: float = 0.0, uneven: float = 0.0) -> None:
        """Count a target pass; where plain requests take part, with its seconds, those of prompts left out.

        `fair` is what a pass over the rows that requests would ask for takes if nobody drafted, `taken` what this one
        takes, and `uneven` the part of `fair` for calls that have more rows than one that drafts.
        """
        self.drafted = 0.0
        allowed = (1 + MAX_DRAFT_DELAY) * fair - taken + uneven
        self.credit = max(min(self.credit, 0.0) + allowed, -MAX_DRAFT_DEBT * fair)

    def rest(self) -> None:
        """Nobody runs: nobody owes anything."""
        self.drafted = self.credit = 0.0

    def limits(
        self,
        runs: Sequence[Wanted],
        seconds: Callable[[int], float] = float,
        chunk: int | None = None,
    ) -> list[int]:
        """How many rows of each run a pass computes, of one call in their order: all, where these are not too many.

        Of several calls a pass takes at most as long, by `seconds` of so many rows, as the one with the fewest rows can
        wait for its share: as many passes as there are calls. What there is room for is shared evenly, and a call's
        runs have its share in their order. `chunk`: the model's own, where it is smaller.
        """
        chunk = self.chunk if chunk is None else min(chunk, self.chunk)
        requested = dict.fromkeys([run.call for run in runs], 0)
        if len(requested) < 2:
            return _in_turn(runs, chunk)
        for run in runs:
            requested[run.call] += run.rows
        read = sum([run.rows for run in runs if run.reads(chunk)])
        max_rows = sum(requested.values()) - max(0, read - chunk)
        shares = _shared(requested, _within(len(requested), max(1, min(requested.values())), max_rows, seconds))
        rows = []
        for run in runs:
            rows.append(min(run.rows, shares[run.call]))
            shares[run.call] -= rows[-1]
        return rows


class Wanted(NamedTuple):
    """A run of a model that waits: its rows, how many of them are nodes that were asked for, and whose it is."""

    rows: int
    requested: int = 1
    call: object = None

    def reads(self, chunk: int) -> bool:
        """Whether it reads a prompt, or as much: it may be computed in pieces of so many rows."""
        return self.rows > min(SHORT_RUN, chunk + chunk // 2) or self.rows > self.requested + CATCH_UP


def _in_turn(runs: Sequence[Wanted], chunk: int) -> list[int]:
    """Rows of each run: `chunk` of prompts, and half as many again in whole runs that read none, one of them at least.

    All runs are of one call.
    """
    room = chunk + chunk // 2
    rows, reading, others = [], chunk, room
    for run in runs:
        if run.reads(chunk):
            rows.append(min(run.rows, reading))
            reading -= rows[-1]
        else:
            rows.append(run.rows if run.rows <= others or others == room else 0)
            others -= rows[-1]
    return rows


def _within(calls: int, fewest: int, max_rows: int, seconds: Callable[[int], float]) -> int:
    """The most rows, up to `max_rows`, of a pass that the call with the `fewest` rows can wait for."""
    bound = calls * seconds(fewest)
    if seconds(max_rows) <= bound:
        return max_rows
    low, high = min(max_rows, calls * MIN_CALL_ROWS), max_rows
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(middle) <= bound:
            low = middle
        else:
            high = middle - 1
    return low


def _shared(requested: dict[object, int], room: int) -> dict[object, int]:
    """The rows of each call, `room` together: whoever asks for less than an even share has all of it."""
    shares, left = {}, len(requested)
    for call, count in sorted(requested.items(), key=lambda each: each[1]):
        shares[call] = min(count, -(-room // left))
        room, left = room - shares[call], left - 1
    return shares
