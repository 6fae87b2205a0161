"""Requests of random texts and shapes, decoded round by round below the engine."""

from __future__ import annotations

import random

from draftwood.core.forest import Forest, Verdict, advance
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder
from draftwood.runtime.session import Run, Session


class Walk:
    """A request that reads a prompt and then decodes chains, trees or single tokens of a fixed random text."""

    def __init__(self, model: Decoder, cache: Cache, length: int, kind: str, seed: int) -> None:
        self.rng, self.kind, self.vocab = random.Random(seed), kind, model.vocab_size
        self.session = Session(model, cache)
        self.forest = Forest.from_prompt([self.rng.randrange(self.vocab) for _ in range(length)])

    def run(self) -> Run:
        """The next round's rows; a partial one stops at a layer on the way."""
        forest, nodes = self.forest, [*self.forest.roots]
        for depth in range({"single": 0, "chain": 6, "tree": 3}[self.kind]):
            width = 1 if self.kind == "chain" else 2 + depth % 2
            nodes += forest.propose(nodes[-1], [self.rng.randrange(self.vocab) for _ in range(width)], None)
        return Run(self.session, forest, range(forest.fresh, len(forest)))

    def commit(self) -> None:
        last = self.rng.randrange(self.forest.fresh, len(self.forest))
        trunk, kept, self.forest = advance(self.forest, Verdict([last], [self.rng.randrange(self.vocab)], [], {}))
        self.session.commit(trunk, kept, self.forest)
