"""What drafting gains, as a formula, and the cost of a drafted layer, as measured.

Pure maths and running sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from draftwood.core.records import Round

GUESS = 0.1  # cost ratio until a round with drafts was measured


def improvement(alpha: float, gamma: int, c: float) -> float:
    """IF(alpha, gamma, c) = (1 - alpha^(gamma+1)) / ((1 - alpha)(c gamma + 1)), MCSD Eq. 1.

    The expected speed-up of rounds of `gamma` drafts over plain decoding, where each draft is accepted with the
    chance `alpha`, independently, and takes `c` target forwards.
    """
    if not 0 <= alpha <= 1 or gamma < 0 or c < 0:
        raise ValueError(f"alpha must be in 0..1, gamma and c at least 0, not {alpha}, {gamma}, {c}")
    tokens = gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return tokens / (c * gamma + 1)


def best_depth(alpha: float, most: int, c: float) -> int:
    """The gamma in 0..most of the largest IF(alpha, gamma, c), of equals the smallest.

    IF rises and then falls: its numerator is concave in gamma, its denominator linear. So the first fall ends it.
    """
    tokens = best = reach = 1.0
    for gamma in range(1, most + 1):
        reach *= alpha
        tokens += reach
        gain = tokens / (c * gamma + 1)
        if gain <= best:
            return gamma - 1
        best = gain
    return most


@dataclass(slots=True)
class Spent:
    """Discounted sums over measured rounds; seconds."""

    draft: float = 0.0
    layers: float = 0.0
    verify: float = 0.0
    rounds: float = 0.0


@dataclass(slots=True)
class DraftCost:
    """c: time of one drafted layer in target forwards; `fixed`, or measured with older rounds discounted.

    The first round of a request is left out, since it contains the prompt. Where several models draft a layer, c counts
    them all.
    """

    fixed: float | None = None
    discount: float = 0.95
    spent: Spent = field(default_factory=Spent)
    _begun: bool = field(init=False, default=False)

    def for_request(self) -> DraftCost:
        """The same sums for another request, whose first round is still to come."""
        return replace(self)

    @property
    def ratio(self) -> float:
        if self.fixed is not None:
            return self.fixed
        spent = self.spent
        if not spent.draft or not spent.verify:
            return GUESS
        return (spent.draft / spent.layers) / (spent.verify / spent.rounds)

    def add(self, round_: Round, layers: int) -> None:
        """Count a round that drafted `layers` layers."""
        if self.fixed is None and self._begun:
            spent = self.spent
            if round_.draft_seconds > 0 and layers:
                spent.draft = self.discount * spent.draft + round_.draft_seconds
                spent.layers = self.discount * spent.layers + layers
            if round_.verify_seconds > 0:
                spent.verify = self.discount * spent.verify + round_.verify_seconds
                spent.rounds = self.discount * spent.rounds + 1
        self._begun = True
