"""Mean tokens of a round with given drafts: every coin of a verification rule is summed over instead of tossed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import Verifier


class Toss(float):
    """A number of `Coins`, which decides when it is compared with a chance; to draw a token it is 0."""

    coins: Coins

    def __lt__(self, chance: float) -> bool:
        return self.coins.heads(chance)


@dataclass(slots=True)
class Coins:
    """Stands for a request's streams: the outcomes of `script`, then heads wherever they are possible."""

    script: Sequence[bool] = ()
    weight: float = 1.0  # chance of the outcomes so far
    taken: list[bool] = field(default_factory=list)
    others: list[list[bool]] = field(default_factory=list)  # scripts that go on otherwise

    def uniform(self, purpose: str) -> float:
        """The stream's next number."""
        toss = Toss()
        toss.coins = self
        return toss

    def heads(self, chance: float) -> bool:
        """The next outcome."""
        place = len(self.taken)
        outcome = self.script[place] if place < len(self.script) else chance > 0
        if place >= len(self.script) and 0 < chance < 1:
            self.others.append([*self.taken, False])
        self.taken.append(outcome)
        self.weight *= chance if outcome else 1 - chance
        return outcome


def expected_tokens(verify: Verifier, forest: Forest, target: Distributions) -> float:
    """Mean tokens of a round with these drafts: each outcome of the rule's coins by its chance."""
    scripts: list[list[bool]] = [[]]
    mean = 0.0
    while scripts:
        coins = Coins(scripts.pop())
        verdict = verify(forest, target, cast(Streams, coins))
        mean += coins.weight * (verdict.accepted + (verdict.parent[0] not in forest.finished))
        scripts += coins.others
    return mean
