"""Keys and values that are there already: a new request takes the longest prefix that another one has, or had.

Only slots 0, 1, ... that hold the tokens 0, 1, ... are taken: they were computed as a fresh run computes them, so that
every bit is what it would be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Protocol

from draftwood.models.cache import Cache
from draftwood.models.extents import Extent

MIN_PREFIX = 16  # tokens that are worth a copy
KEPT_SHARE = 4  # finished requests leave behind at most this part of the budget


class PrefixHolder(Protocol):
    """A live request's keys and values on one model."""

    cache: Cache
    extent: Extent | None

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that are in slots 0, 1, ..., computed in all layers."""
        ...


@dataclass(slots=True, eq=False)
class KeptPrefix:
    """Keys and values that a finished request left behind, and their tokens."""

    cache: Cache
    extent: Extent
    tokens: list[int]

    @property
    def bytes(self) -> int:
        states = 0 if self.cache.states is None else self.cache.states.held_bytes(self.extent)
        return self.extent.capacity * self.cache.slot_bytes + states


_tokens = attrgetter("tokens")


@dataclass(slots=True)
class PrefixCache:
    """Prefixes of finished requests and the live ones; `hits` of `asked` tokens were taken."""

    enabled: bool = True
    kept: dict[KeptPrefix, int] = field(default_factory=dict)  # and when each was last used, which is their order
    live: list[PrefixHolder] = field(default_factory=list)
    hits: int = 0
    tokens_sought: int = 0
    _sorted: dict[Cache, list[KeptPrefix]] = field(init=False, default_factory=dict)  # by tokens
    _clock: Iterator[int] = field(init=False, default_factory=count)
    _off: set[object] = field(init=False, default_factory=set)  # those for whom it is off: several threads may measure

    @contextmanager
    def off(self) -> Iterator[None]:
        """Nothing is taken or kept meanwhile: whoever measures has each request read its prompt."""
        mark = object()
        self._off.add(mark)
        try:
            yield
        finally:
            self._off.discard(mark)

    def take(self, cache: Cache, tokens: Sequence[int], room: int) -> tuple[Extent, int]:
        """An extent for `room` slots that holds the first n of some tokens, and n."""
        best, entry, source = self._longest(cache, tokens)
        if entry is not None and _taken(entry, best):
            extent = entry.extent
            cache.reserve(extent, room)
            self._remove(entry)
            cache.clear(extent, best)
        else:
            extent = cache.lend(room)
            if entry is not None:
                del self.kept[entry]
                self.kept[entry] = next(self._clock)
            if source is not None:
                cache.copy(source, extent, best)
        if cache.states is not None and (shared := self._shared(cache, tokens)) > best:
            cache.states.wish(extent, shared)
        self.tokens_sought += len(tokens)
        self.hits += best
        return extent, best

    def worth_waiting(self, cache: Cache, tokens: Sequence[int], others: Sequence[int]) -> bool:
        """Whether a request with some tokens saves enough if one that reads `others` computes what they begin with."""
        shared = cache.shareable(common(tokens, others))
        return self._usable(cache, tokens) and shared - self._longest(cache, tokens)[0] >= MIN_PREFIX

    def _usable(self, cache: Cache, tokens: Sequence[int]) -> bool:
        """Whether prefixes of so many tokens are taken and left on a cache."""
        return self.enabled and not self._off and bool(cache.layout) and len(tokens) >= MIN_PREFIX

    def expect(self, cache: Cache, wishes: Sequence[tuple[Sequence[int], int]]) -> None:
        """Room for what some requests, with these tokens and room for so many slots, are about to take together."""
        slots, grown = 0, dict[Extent, int]()
        for tokens, room in wishes:
            best, entry, _ = self._longest(cache, tokens)
            if entry is None or not _taken(entry, best) or entry.extent in grown:
                slots += cache.capacity(room)
            else:
                grown[entry.extent] = cache.capacity(room)
        cache.make_room(slots, grown)

    def _longest(self, cache: Cache, tokens: Sequence[int]) -> tuple[int, KeptPrefix | None, Extent | None]:
        """The length of the longest prefix that is there and worth a copy, who kept it unless it is live, and where."""
        if not self._usable(cache, tokens):
            return 0, None, None
        best, entry = self._closest(cache, list(tokens))
        source = None if entry is None else entry.extent
        best = best if source is None else cache.reusable(source, best)
        for holder in self.live:
            extent = holder.extent if holder.cache is cache else None
            if extent is not None and (usable := cache.reusable(extent, common(tokens, holder.prefix))) > best:
                best, entry, source = usable, None, extent
        return (best, entry, source) if best >= MIN_PREFIX else (0, None, None)

    def _shared(self, cache: Cache, tokens: Sequence[int]) -> int:
        """The length of the longest prefix that another request has, or had, whatever is kept of it; 0: a short one."""
        if not self._usable(cache, tokens):
            return 0
        live = [common(tokens, holder.prefix) for holder in self.live if holder.cache is cache and holder.extent]
        shared = max(self._closest(cache, list(tokens))[0], *live, 0)
        return shared if shared >= MIN_PREFIX else 0

    def _closest(self, cache: Cache, tokens: list[int]) -> tuple[int, KeptPrefix | None]:
        """The longest prefix that was kept, if it is worth a copy; of several alike the one used longest ago.

        Of those with recurrent layers, the one that can be gone on behind furthest.

        In the order of their tokens, those that have most in common with some tokens lie where these would.
        """
        entries = self._sorted.get(cache, [])
        place = bisect_left(entries, tokens, key=_tokens)
        best = max((common(tokens, entry.tokens) for entry in entries[max(0, place - 1) : place + 1]), default=0)
        if best < MIN_PREFIX:
            return 0, None
        shared = tokens[:best]
        first = bisect_left(entries, shared, hi=place, key=_tokens)
        last = bisect_right(entries, shared, lo=first, key=lambda entry: entry.tokens[:best])
        return best, min(entries[first:last], key=lambda one: (-cache.reusable(one.extent, best), self.kept[one]))

    def leave(self, holder: PrefixHolder) -> None:
        """A request is over: what it has computed is kept, or given back."""
        extent, tokens = holder.extent, list(holder.prefix)
        self.live = [other for other in self.live if other is not holder]
        assert extent is not None
        if not self._usable(holder.cache, tokens):
            holder.cache.release(extent)
            return
        if holder.cache.states is not None:
            holder.cache.states.settle(extent)
        entry = KeptPrefix(holder.cache, extent, tokens)
        self.kept[entry] = next(self._clock)
        insort(self._sorted.setdefault(holder.cache, []), entry, key=_tokens)
        limit = holder.cache.budget.limit
        while limit is not None and self.kept and sum(entry.bytes for entry in self.kept) > limit // KEPT_SHARE:
            self.forget()

    def forget(self) -> bool:
        """Give back what was used longest ago; whether there was anything."""
        if not self.kept:
            return False
        entry = next(iter(self.kept))
        self._remove(entry)
        entry.cache.release(entry.extent)
        return True

    def _remove(self, entry: KeptPrefix) -> None:
        del self.kept[entry]
        self._sorted[entry.cache].remove(entry)
        if not self._sorted[entry.cache]:
            del self._sorted[entry.cache]

    def reset(self) -> None:
        """Give back all that finished requests left."""
        while self.forget():
            pass


def _taken(entry: KeptPrefix, best: int) -> bool:
    """Whether what was kept is taken as it is, since its owner is gone and most of it is wanted."""
    return best >= len(entry.tokens) // 2


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
