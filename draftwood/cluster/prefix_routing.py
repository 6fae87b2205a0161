"""Routing by prefix: requests go to the replica that computed the beginning of their prompt, or has a short queue."""

from __future__ import annotations

import json
import random
from asyncio import Future
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

BLOCK_LENGTH = 32  # characters of a prompt, as JSON, that are looked up together
MAX_BLOCKS = 256  # of a prompt
MAX_REMEMBERED_BLOCKS = 1 << 18  # blocks that are remembered


def blocks_of(body: bytes) -> list[int]:
    """A hash for each beginning of a request's prompt, of one block, two blocks, ...; none where there is no prompt.

    Conversations that go on, and texts or token ids that begin alike, share the first ones.
    """
    try:
        request = json.loads(body)
        prompt = [
            request.get("instructions"),
            *(request[key] for key in ("messages", "prompt", "input") if key in request),
        ]
    except (ValueError, AttributeError, RecursionError):
        return []
    text = json.dumps(prompt, ensure_ascii=False)[: BLOCK_LENGTH * MAX_BLOCKS].encode("utf-8", "surrogatepass")
    digest, hashes = blake2b(digest_size=8), []
    for start in range(0, len(text) - BLOCK_LENGTH + 1, BLOCK_LENGTH):
        digest.update(text[start : start + BLOCK_LENGTH])
        hashes.append(int.from_bytes(digest.digest()))
    return hashes


class PrefixLocations:
    """Remembers which replicas computed which beginnings of prompts, and ranks replicas for the next request.

    A replica whose queue is longer than the shortest one by more than `unbalanced` is ranked by its queue alone.
    """

    def __init__(self, unbalanced: int = 8) -> None:
        self.unbalanced = unbalanced
        self._homes: OrderedDict[int, dict[str, None]] = OrderedDict()  # block -> replicas; the last used come last

    def ranked(self, blocks: Sequence[int], queues: Mapping[str, int]) -> list[str]:
        """Replicas, the best first: the one with the longest beginning in common, then by the length of the queues."""
        shortest = min(queues.values(), default=0)
        fair = {replica for replica, length in queues.items() if length <= shortest + self.unbalanced}
        holders = (fair.intersection(self._homes.get(block, ())) for block in reversed(blocks))
        homes = next(filter(None, holders), set())
        first = blocks[0] if blocks else random.getrandbits(64)  # a prompt without a block goes anywhere

        def place(replica: str) -> tuple[bool, int, bytes]:
            tie = blake2b(f"{first} {replica}".encode(), digest_size=8).digest()  # the same for every router
            return replica not in homes, queues[replica], tie

        return sorted(queues, key=place)

    def add(self, blocks: Sequence[int], replica: str) -> None:
        """Remember that a request with these blocks went to a replica."""
        for block in blocks:
            self._homes.setdefault(block, {})[replica] = None
            self._homes.move_to_end(block)
        while len(self._homes) > MAX_REMEMBERED_BLOCKS:
            self._homes.popitem(last=False)

    def forget(self, replica: str) -> None:
        """Forget a replica that has ended."""
        for homes in self._homes.values():
            homes.pop(replica, None)


class InFlight:
    """The replica of each request that is not over, from when the replica is chosen.

    A request that a replica refuses is tried again, each time with a future of its own. Every try that is sent is over
    once, be it after the next one began; one whose future is cancelled was never sent.
    """

    def __init__(self) -> None:
        self.replicas: dict[str, str] = {}  # of each request
        self._tries: dict[str, list[Future[Any]]] = {}  # of each request, those that are not over

    def queues(self, request: str) -> Counter[str]:
        """The number of other requests at each replica."""
        return Counter(replica for other, replica in self.replicas.items() if other != request)

    def chosen(self, request: str, replica: str, future: Future[Any]) -> None:
        """Note the replica chosen for a request; another one may be chosen later for the same try."""
        if future.done():  # it was sent, or given up, meanwhile
            return
        self.replicas[request] = replica
        tries = self._tries.setdefault(request, [])
        if future not in tries:
            tries.append(future)
            future.add_done_callback(partial(self._done, request))

    def taken(self, request: str, replica: str) -> None:
        """Note that a replica accepted a request."""
        if request in self.replicas:  # else it is over already
            self.replicas[request] = replica

    def over(self, request: str) -> None:
        """Note the end of a try: the request has ended, or the replica refused it."""
        if tries := self._tries.get(request):
            self._end(request, tries[0])

    def _done(self, request: str, future: Future[Any]) -> None:
        if future.cancelled() and future in self._tries.get(request, ()):
            self._end(request, future)

    def _end(self, request: str, future: Future[Any]) -> None:
        self._tries[request].remove(future)
        if not self._tries[request]:
            del self._tries[request], self.replicas[request]
