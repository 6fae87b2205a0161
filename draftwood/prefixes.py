"""Which replica has computed how a prompt begins: requests go where most of theirs is, or where the queue is short."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

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
