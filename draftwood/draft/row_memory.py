"""Distributions of the target after the tokens that a beam ends with: drafts that cost no forward.

Beams differ in few tokens. What one says another has often said a little sooner, so that the target's distribution
after the same last tokens is known, second-best tokens and all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import Leading

LONGEST = 4  # tokens of a context
MOST_CONTEXTS = 1 << 16  # that are kept, the oldest go first; about 0.5 kB each
LATEST = 4  # distributions that are kept of a context
LIKELIEST = 8  # tokens that are kept of a distribution
NEGLIGIBLE = 0.02  # share of a mixture

Row = tuple[Sequence[int], Sequence[float]]  # tokens, and their probabilities


@dataclass(slots=True)
class Mixture:
    """A distribution of the next token: `mass` [token], and beside it `rest` times some other distribution."""

    mass: dict[int, float]
    rest: float

    def dense(self, other: Tensor | None, like: Tensor) -> Tensor:
        """Its log-probabilities [V], as long and of the dtype and device of `like`.

        `other`: the logits of the other distribution; None: uniform.
        """
        if not self.mass and other is not None:
            return other
        size = like.shape[-1]
        row = like.new_full((size,), self.rest / size) if other is None else torch.softmax(other, -1).mul_(self.rest)
        places = torch.tensor([*self.mass], dtype=torch.int64, device=like.device)
        row[places] += torch.tensor([*self.mass.values()], dtype=row.dtype, device=like.device)
        return row.log_()

    def likeliest(self, other: Leading | None, count: int) -> Leading:
        """Its `count` most probable tokens, of those that are told by `mass` and by `other`."""
        mass = self.mass
        if other is not None:
            mass = dict(mass)
            for token, log_prob in zip(other.tokens, other.log_probs, strict=True):
                mass[token] = mass.get(token, 0.0) + self.rest * math.exp(log_prob)
        best = sorted(mass.items(), key=lambda one: (-one[1], one[0]))[:count]
        return Leading([token for token, _ in best], [math.log(prob) for _, prob in best])


@dataclass(slots=True)
class RowMemory:
    """The latest distributions of the target after each context of up to LONGEST tokens; in the prompt the next tokens.

    After a context of n tokens whose N distributions are kept, the next token follows their sum and 1/n times what
    comes after the next shorter context, over N + 1/n: prediction by partial matching (Cleary & Witten 1984), of
    distributions in place of single tokens.
    """

    _rows: dict[tuple[int, ...], list[Row]] = field(init=False, default_factory=dict)
    _read: bool = field(init=False, default=False)  # whether it has read the prompt

    def read(self, forest: Forest) -> None:
        """Take in the prompt, at the first time."""
        if self._read:
            return
        self._read = True
        for place in range(1, min(forest.prompt, len(forest.trunk))):
            self._note(forest.trunk[max(0, place - LONGEST) : place], ((forest.trunk[place],), (1.0,)))

    def learn(self, target: Distributions) -> None:
        """Take in what the target said after the fresh nodes of a forest."""
        forest = target.forest
        for node in range(forest.fresh, len(forest)):
            if node not in forest.finished:
                tokens, log_probs = target.leading(node, LIKELIEST)
                row = tokens[:LIKELIEST], [math.exp(log_prob) for log_prob in log_probs[:LIKELIEST]]
                self._note(forest.tail(node, LONGEST), row)

    def after(self, context: Sequence[int], shortest: int = 1) -> Mixture:
        """The next token after at most LONGEST tokens, by contexts of at least `shortest` of them."""
        mass: dict[int, float] = {}
        rest = 1.0
        for length in range(len(context), shortest - 1, -1):
            rows = self._rows.get(tuple(context[len(context) - length :]))
            if rows is None:
                continue
            share = rest / (len(rows) + 1 / length)
            for row in rows:
                for token, prob in zip(*row, strict=True):
                    mass[token] = mass.get(token, 0.0) + share * prob
            rest = share / length
            if rest < NEGLIGIBLE:
                break
        return Mixture(mass, rest)

    def _note(self, context: Sequence[int], row: Row) -> None:
        for length in range(1, len(context) + 1):
            rows = self._rows.setdefault(tuple(context[len(context) - length :]), [])
            rows.append(row)
            if len(rows) > LATEST:
                del rows[0]
        while len(self._rows) > MOST_CONTEXTS:
            del self._rows[next(iter(self._rows))]
