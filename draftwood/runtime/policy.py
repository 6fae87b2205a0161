"""Which pass comes next, and how many rows of prompts it computes: all that the scheduler decides, without its state.

A pass of the target costs about the same for few rows as for many. So requests that draft wait for each other, and one
that does not draft waits for the others at most a small part of a pass each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 0.08  # of a target pass: drafting of others before each pass that a request which does not draft waits for
TOGETHER = 2.0  # the same where all that wait have drafted: a pass for them all saves one
RECENT = 0.2  # weight of the newest pass in the mean of their seconds
SHORT = 128  # rows of a run that is never computed in pieces


@dataclass(slots=True)
class Policy:
    """`chunk`: rows of prompts that one pass computes, so that others need not wait for long."""

    chunk: int = 512
    seconds: float = 0.0  # of a target pass, a moving mean
    drafted: float = 0.0  # seconds of draft passes since the last target pass
    credit: float = 0.0  # seconds that may still be drafted while somebody waits who does not draft

    def may_draft(self, ready: Sequence[bool]) -> bool:
        """Whether a draft pass is made; `ready`: of those that wait for the target, whether they draft at all."""
        return all(ready) or self.credit > 0

    def due(self, ready: Sequence[bool], drafting: int) -> bool:
        """Whether those that wait for the target are served now, while so many others draft still."""
        if not drafting:
            return True
        if all(ready):
            return 0 < TOGETHER * self.seconds <= self.drafted
        return self.credit <= 0

    def draft_pass(self, seconds: float) -> None:
        """Count a draft pass."""
        self.drafted += seconds
        self.credit -= seconds

    def target_pass(self, seconds: float) -> None:
        """Count a target pass."""
        self.seconds += (RECENT if self.seconds else 1.0) * (seconds - self.seconds)
        self.drafted = 0.0
        self.credit = min(self.credit, 0.0) + PATIENCE * self.seconds

    def limits(self, rows: Sequence[int]) -> list[int]:
        """How many of each run's rows a pass computes, the eldest's prompt first."""
        room, found = self.chunk, []
        for count in rows:
            limit = count if count <= SHORT else min(count, room)
            room -= limit if count > SHORT else 0
            found.append(limit)
        return found
