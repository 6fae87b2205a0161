"""Which replica has computed how a prompt begins: requests go where most of theirs is, or where the queue is short."""

from __future__ import annotations

import json
import random
from asyncio import Future
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

BLOCK = 32  # characters of a prompt, as JSON, that are looked up together
MOST_BLOCKS = 256  # of a prompt
MOST_KNOWN = 1 << 18  # blocks that are remembered


def blocks_of(body: bytes) -> list[int]:
    """A hash for each beginning of a request's prompt, of one block, two blocks, ...; none where there is no prompt.

    Conversations that go on, and texts or token ids that begin alike, share the first ones.
    """
    try:
        asked = json.loads(body)
        prompt = [asked.get("instructions"), *(asked[key] for key in ("messages", "prompt", "input") if key in asked)]
    except (ValueError, AttributeError, RecursionError):
        return []
    text = json.dumps(prompt, ensure_ascii=False)[: BLOCK * MOST_BLOCKS].encode("utf-8", "surrogatepass")
    digest, found = blake2b(digest_size=8), []
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        digest.update(text[start : start + BLOCK])
        found.append(int.from_bytes(digest.digest()))
    return found


class Prefixes:
    """What replicas were given, so that the next request that begins alike finds its keys and values there.

    A replica is unbalanced, and passed over, whose queue is longer than the shortest one by more than `unbalanced`.
    """

    def __init__(self, unbalanced: int = 8) -> None:
        self.unbalanced = unbalanced
        self._homes: OrderedDict[int, dict[str, None]] = OrderedDict()  # block -> replicas; the last used come last

    def ranked(self, blocks: Sequence[int], queues: Mapping[str, int]) -> list[str]:
        """Replicas, the best first: the one with the longest beginning in common, then by the length of the queues."""
        shortest = min(queues.values(), default=0)
        fair = {replica for replica, length in queues.items() if length <= shortest + self.unbalanced}
        found = (fair.intersection(self._homes.get(block, ())) for block in reversed(blocks))
        homes = next(filter(None, found), set())
        first = blocks[0] if blocks else random.getrandbits(64)  # a prompt without a block goes anywhere

        def place(replica: str) -> tuple[bool, int, bytes]:
            tie = blake2b(f"{first} {replica}".encode(), digest_size=8).digest()  # the same for every router
            return replica not in homes, queues[replica], tie

        return sorted(queues, key=place)

    def note(self, blocks: Sequence[int], replica: str) -> None:
        """A request with these blocks went to a replica."""
        for block in blocks:
            self._homes.setdefault(block, {})[replica] = None
            self._homes.move_to_end(block)
        while len(self._homes) > MOST_KNOWN:
            self._homes.popitem(last=False)

    def forget(self, replica: str) -> None:
        """A replica has ended, and what it had computed is gone."""
        for homes in self._homes.values():
            homes.pop(replica, None)


class UnderWay:
    """Requests that a replica has, or is to have, from when it is chosen.

    A request that a replica refuses is tried again, each time with a future of its own. Every try that is sent is over
    once, be it after the next one began; one whose future is cancelled was never sent.
    """

    def __init__(self) -> None:
        self.replicas: dict[str, str] = {}  # of each request
        self._tries: dict[str, list[Future[Any]]] = {}  # of each request, those that are not over

    def queues(self, request: str) -> Counter[str]:
        """How many other requests each replica has."""
        return Counter(replica for other, replica in self.replicas.items() if other != request)

    def chosen(self, request: str, replica: str, future: Future[Any]) -> None:
        """A replica is to have a request; for the same try another one may be chosen later."""
        if future.done():  # it was sent, or given up, meanwhile
            return
        self.replicas[request] = replica
        tries = self._tries.setdefault(request, [])
        if future not in tries:
            tries.append(future)
            future.add_done_callback(partial(self._done, request))

    def taken(self, request: str, replica: str) -> None:
        """A replica has taken a request."""
        if request in self.replicas:  # else it is over already
            self.replicas[request] = replica

    def over(self, request: str) -> None:
        """A try is over: the request has ended, or the replica refused it."""
        if tries := self._tries.get(request):
            self._end(request, tries[0])

    def _done(self, request: str, future: Future[Any]) -> None:
        if future.cancelled() and future in self._tries.get(request, ()):
            self._end(request, future)

    def _end(self, request: str, future: Future[Any]) -> None:
        self._tries[request].remove(future)
        if not self._tries[request]:
            del self._tries[request], self.replicas[request]
