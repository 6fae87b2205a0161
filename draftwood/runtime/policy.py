"""Which pass comes next, and how many rows of prompts it computes: all that the scheduler decides, without its state.

A pass of the target costs about the same for few rows as for many. So requests that draft wait for each other. One that
does not draft gets its tokens almost as fast as if nobody did: what drafts, and the rows that verify them, take more
than that is saved first, by passes without those that draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 0.2  # of a target pass over one row of each request: what drafts of others may add to one on average
TOGETHER = 2.0  # target passes: drafting that those wait for which have drafted, since a pass for them all saves one
RECENT = 0.2  # weight of the newest pass in the mean of their seconds
SHORT = 128  # rows of a run that is never computed in pieces


@dataclass(slots=True)
class Policy:
    """`chunk`: rows of prompts that one pass computes, so that others need not wait for long.

    Requests are hasty that wait for the target and do not draft at all.
    """

    chunk: int = 512
    seconds: float = 0.0  # of a target pass, a moving mean
    drafted: float = 0.0  # seconds of draft passes since the last target pass
    credit: float = 0.0  # seconds that others' drafts may take while the hasty wait; below 0: that they took too much

    def may_draft(self, hasty: bool) -> bool:
        """Whether a draft pass is made, and whether those that have drafted take part in a target pass."""
        return not hasty or self.credit > 0

    def due(self, hasty: bool, drafting: bool) -> bool:
        """Whether those that wait for the target are served now, while others draft still or not."""
        if not drafting:
            return True
        return self.credit <= 0 if hasty else 0 < TOGETHER * self.seconds <= self.drafted

    def draft_pass(self, seconds: float, hasty: bool) -> None:
        """Count a draft pass, for which the hasty waited or not."""
        self.drafted += seconds
        self.credit -= seconds if hasty else 0.0

    def target_pass(self, seconds: float, fair: float = 0.0, taken: float = 0.0) -> None:
        """Count a target pass. If hasty ones are in it: `fair` is what one over a row of each request takes, and
        `taken` what this one does where no prompts are read."""
        self.seconds += (RECENT if self.seconds else 1.0) * (seconds - self.seconds)
        self.drafted = 0.0
        self.credit = min(self.credit, 0.0) + (1 + PATIENCE) * fair - taken if fair else 0.0

    def limits(self, rows: Sequence[int]) -> list[int]:
        """How many of each run's rows a pass computes, the eldest's prompt first."""
        room, found = self.chunk, []
        for count in rows:
            limit = count if count <= SHORT else min(count, room)
            room -= limit if count > SHORT else 0
            found.append(limit)
        return found
