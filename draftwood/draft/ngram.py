"""Prompt lookup: propose what followed the last few tokens when they occurred before.

No model; proposals are point masses. Knows an index of n-grams that grows with the text.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.core.forest import Forest
from draftwood.depth import NOTHING, DepthController, Growth
from draftwood.draft.base import Drafter, Proposer
from draftwood.runtime.session import Answer, Run


@dataclass(slots=True)
class NgramDrafter(Drafter):
    """A chain copied from the latest earlier occurrence of the longest matching n-gram, min_ngram <= n <= max_ngram."""

    max_ngram: int
    min_ngram: int
    _after: dict[tuple[int, ...], int] = field(init=False, default_factory=dict)  # n-gram -> place after it
    _indexed: int = field(init=False, default=0)

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        trunk, (node,) = forest.trunk, forest.roots
        self._index(trunk)
        recent = [*trunk[max(0, len(trunk) + 1 - self.max_ngram) :], forest.token[node]]
        start = self._match(recent)
        layer = 0
        while start is not None and layer < limit and depth.deeper(Growth(layer, (node,))):
            place = start + layer
            token = trunk[place] if place < len(trunk) else forest.token[forest.path(node)[place - len(trunk)]]
            (node,) = forest.propose(node, [token], None)
            if node in forest.finished:
                break
            layer += 1
        return
        yield  # a generator that yields nothing

    def _index(self, trunk: list[int]) -> None:
        """Note each n-gram that ends in the trunk and the place of the token after it."""
        for end in range(self._indexed + 1, len(trunk) + 1):
            for n in range(self.min_ngram, min(self.max_ngram, end) + 1):
                self._after[tuple(trunk[end - n : end])] = end
        self._indexed = len(trunk)

    def _match(self, recent: list[int]) -> int | None:
        for n in range(min(self.max_ngram, len(recent)), self.min_ngram - 1, -1):
            place = self._after.get(tuple(recent[-n:]))
            if place is not None:
                return place
        return None
