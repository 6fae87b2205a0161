"""Keys and values that are there already: a new request takes the longest prefix that another one has, or had.

Only slots 0, 1, ... that hold the tokens 0, 1, ... are taken: they were computed as a fresh run computes them, so that
every bit is what it would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftwood.models.cache import Cache, Extent

FEWEST = 16  # tokens that are worth a copy
SHARE = 4  # finished requests leave behind at most this part of the budget


class Holder(Protocol):
    """A live request's keys and values on one model."""

    cache: Cache
    extent: Extent | None

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that are in slots 0, 1, ..., computed in all layers."""
        ...


@dataclass(slots=True)
class Kept:
    """What a finished request left behind."""

    cache: Cache
    extent: Extent
    tokens: list[int]

    @property
    def bytes(self) -> int:
        return self.extent.capacity * self.cache.slot_bytes


@dataclass(slots=True)
class PrefixCache:
    """Prefixes of finished requests, the last used last, and the live ones; `hits` of `asked` tokens were taken."""

    enabled: bool = True
    kept: list[Kept] = field(default_factory=list)
    live: list[Holder] = field(default_factory=list)
    hits: int = 0
    asked: int = 0

    def take(self, cache: Cache, tokens: Sequence[int], room: int) -> tuple[Extent, int]:
        """An extent for `room` slots that holds the first n of some tokens, and n."""
        best, place, source = self._longest(cache, tokens)
        if best < FEWEST:
            extent = cache.lend(room)
            self.asked += len(tokens)
            return extent, 0
        if (taken := self._taken(best, place)) is not None:
            extent = taken.extent
            cache.reserve(extent, room)
            del self.kept[place]
            cache.clear(extent, best)
        else:
            extent = cache.lend(room)
            if place >= 0:
                self.kept.append(self.kept.pop(place))
                source = self.kept[-1].extent
            assert source is not None
            cache.copy(source, extent, best)
        self.asked += len(tokens)
        self.hits += best
        return extent, best

    def expect(self, cache: Cache, wishes: Sequence[tuple[Sequence[int], int]]) -> None:
        """Room for what some requests, with these tokens and room for so many slots, are about to take together."""
        slots, grown = 0, dict[Extent, int]()
        for tokens, room in wishes:
            best, place, _ = self._longest(cache, tokens)
            taken = self._taken(best, place)
            if taken is None or taken.extent in grown:
                slots += cache.capacity(room)
            else:
                grown[taken.extent] = cache.capacity(room)
        cache.expect(slots, grown)

    def _longest(self, cache: Cache, tokens: Sequence[int]) -> tuple[int, int, Extent | None]:
        """The length of the longest prefix that is there, its place among the kept ones or -1, and a live one's."""
        best, place, source = 0, -1, None
        if self.enabled and cache.layout and len(tokens) >= FEWEST:
            for i, entry in enumerate(self.kept):
                if entry.cache is cache and (found := common(tokens, entry.tokens)) > best:
                    best, place = found, i
            for holder in self.live:
                if holder.cache is cache and holder.extent and (found := common(tokens, holder.prefix)) > best:
                    best, place, source = found, -1, holder.extent
        return best, place, source

    def _taken(self, best: int, place: int) -> Kept | None:
        """The kept one if it is taken as it is, since its owner is gone and most of it is wanted."""
        if best < FEWEST or place < 0 or best < len(self.kept[place].tokens) // 2:
            return None
        return self.kept[place]

    def leave(self, holder: Holder) -> None:
        """A request is over: what it has computed is kept, or given back."""
        extent, tokens = holder.extent, list(holder.prefix)
        self.live = [other for other in self.live if other is not holder]
        assert extent is not None
        if not self.enabled or len(tokens) < FEWEST or not holder.cache.layout:
            holder.cache.release(extent)
            return
        self.kept.append(Kept(holder.cache, extent, tokens))
        limit = holder.cache.budget.limit
        while limit is not None and self.kept and sum(entry.bytes for entry in self.kept) > limit // SHARE:
            self.forget()

    def forget(self) -> bool:
        """Give back what was used longest ago; whether there was anything."""
        if not self.kept:
            return False
        entry = self.kept.pop(0)
        entry.cache.release(entry.extent)
        return True

    def reset(self) -> None:
        """Give back all that finished requests left."""
        while self.forget():
            pass


def common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    low, high = 0, min(len(tokens), len(others))
    while low < high:  # by comparing slices, which is fast
        middle = (low + high + 1) // 2
        if tokens[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
