"""The slots of one session: which of its extent's slots hold a token, and which are free again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slots:
    """Slots 0, 1, ... `span` - 1 were given out; some of them are free again and are given out first."""

    span: int = 0
    _free: list[int] = field(default_factory=list)  # heap

    @property
    def live(self) -> int:
        """Slots that hold a token now."""
        return self.span - len(self._free)

    def take(self) -> int:
        """A free slot: the first one below `span`, else the one behind it."""
        if self._free:
            return heapq.heappop(self._free)
        self.span += 1
        return self.span - 1

    def give_back(self, slots: Iterable[int]) -> None:
        """Slots hold nothing any more; `span` falls below those at its end, so that attention reads no more of them."""
        free = {*self._free, *slots}
        while self.span - 1 in free:
            self.span -= 1
            free.discard(self.span)
        self._free = sorted(free)
