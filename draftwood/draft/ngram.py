"""Drafting from n-gram counts: a distribution after any node of a forest, from what followed such tokens before.

No model, and no target's forward: what it says is a function of the verified text and a node's path, so it is known
before drafting, and drawn drafts are exact. Counts are those of the suffix automaton that lookup searches.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.draft.base import Source
from draftwood.draft.suffix import ESCAPE, SuffixAutomaton
from draftwood.models.base import CausalModel
from draftwood.runtime.session import Answer, Run

LONGEST_MATCHES = 4  # of a node's path that are mixed, beside the counts of single tokens


@dataclass(slots=True)
class NgramSource(Source):
    """Log-probabilities of what followed the longest match of a node's path, mixed with those of shorter ones.

    After a match of n tokens, the longest one N times, a token that followed c of these has (c + e q) / (N + e), with
    e = ESCAPE / n and q its probability after the next shorter match: prediction by partial matching, with its update
    exclusion (Cleary & Witten 1984). Behind the empty match is the uniform distribution: no token is impossible.
    """

    target: CausalModel  # rows are of the same type, and lie on its device
    _text: SuffixAutomaton = field(init=False, default_factory=SuffixAutomaton)

    @property
    def context(self) -> int:
        """No position is too far."""
        return 1 << 62

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V]; a node of the trunk is its end."""
        for token in forest.trunk[self._text.size :]:
            self._text.append(token)
        rows = torch.stack([self._after(forest, node) for node in nodes])
        return Answer(rows.log().to(self.target.device))
        yield  # a generator that yields nothing

    def _after(self, forest: Forest, node: int) -> Tensor:
        """Probabilities [V] of the token after a node."""
        texts, match = self._text, self._text.match
        for one in forest.path(node) if node > TRUNK else ():
            match.step(forest.token[one])
        states: list[tuple[int, int]] = []
        state, length = match.state, match.length
        while state > 0 and len(states) < LONGEST_MATCHES:
            states.append((state, length))
            state = texts.shorter[state]
            length = texts.length[state]
        double = getattr(self.target, "dtype", None) == torch.float64
        row = torch.full((self.target.vocab_size,), 1.0, dtype=torch.float64 if double else torch.float32)
        row /= len(row)
        for state, length in (0, 1), *reversed(states):
            rest, counts, tokens = ESCAPE / length, texts.counts[state], list(texts.following[state])
            times = torch.tensor([float(counts.get(token, 1)) for token in tokens], dtype=row.dtype)
            row *= rest
            row[tokens] += times
            row /= texts.total[state] + rest
        return row

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Nothing to do: it reads the trunk when it is asked."""
