"""The tree that rounds draft by at a load, and the speed that it promises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add

from draftwood.depth.load import Load

# Share of a step's time that drafting must promise to save where a request runs alone, and again for each doubling of
# the requests that share steps: those whose drafts fail lag behind the others, and share their last steps with few.
MIN_SAVING = 0.02


@dataclass(slots=True)
class DraftPlan:
    """The fastest of some trees and of all their depths, at one load.

    Tokens per second of the whole machine are compared: what all requests get of a step, over the seconds that the
    step takes. All requests that draft are taken to draft alike, and layers to be accepted as they were before:
    `width_chances[w]` is the chance that one of w siblings is.
    """

    load_counts: tuple[int, int, int]  # see `Load.counts`
    own_chances: Sequence[float]  # of a layer by its confidence
    next_chances: Sequence[float]  # of a layer by the confidence of the one before
    width_chances: Sequence[float]
    valid_until: int = 0  # number of the last round that it is good for
    evidence: int = 0  # rounds with drafts that it was made after
    widths: list[int] = field(init=False, default_factory=list)  # children of each node, layer by layer
    seconds: list[float] = field(init=False, default_factory=list)  # of a step with 0, 1, ... layers
    tokens_per_second: float = field(init=False, default=0.0)  # lambda: what a second is worth
    seconds_saved: float = field(init=False, default=0.0)  # per token, against no drafts
    surplus_tokens: float = field(init=False, default=0.0)  # of a step, beyond what its time yields without drafts
    trial_price: float = field(init=False, default=math.inf)  # of one draft of one request, in steps without drafts
    step_seconds: dict[tuple[int, ...], tuple[list[float], list[float]]] = field(init=False, default_factory=dict)
    _least_reach: dict[int, float] = field(init=False, default_factory=dict)  # depth -> reach that pays there

    def seconds_of(self, load: Load, layers: Sequence[int], free_drafts: bool = False) -> list[float]:
        """Seconds of steps that draft no layer, the first, the first two, ... of `layers` (rows of each).

        With `free_drafts`, as those of lookup are, only verification takes time. Computed once for each shape.
        """
        seconds = self.step_seconds.get(key := tuple(layers))
        if seconds is None:
            drafts, passes = load.steps(layers)
            margin = MIN_SAVING * (1 + math.log2(load.drafting))
            seconds = self.step_seconds[key] = (
                _with_margin(map(add, drafts, passes), margin),
                _with_margin(passes, margin),
            )
        return seconds[free_drafts]

    def consider(self, widths: list[int], roots: int, load: Load) -> None:
        """Take a tree where, at one of its depths, it is faster than what was found before."""
        layers, rows = [], roots
        for width in widths:
            rows *= width
            layers.append(rows)
        seconds, tokens, reach = self.seconds_of(load, layers), load.tokens + 1, 1.0
        for depth, spent in enumerate(seconds):
            if depth:
                reach *= self.width_chances[widths[depth - 1]]
                tokens += reach
            if tokens > self.tokens_per_second * spent:
                self.tokens_per_second, self.widths, self.seconds = tokens / spent, widths, seconds
        self.seconds_saved = seconds[0] / (load.tokens + 1) - 1 / self.tokens_per_second
        self.surplus_tokens = self.tokens_per_second * seconds[0] - load.tokens - 1
        if layers:
            self.trial_price = load.one / seconds[0]

    def pays(self, depth: int, reach: float, ahead: Sequence[float], load: Load) -> bool:
        """Whether some number of further layers yields more tokens than their time is worth.

        The round has `depth` layers; `reach` is the chance that the next one is accepted. `ahead` are the chances of
        the layers from there on that lookup has found, where it drafts them alone: all are known, and none costs
        anything before verification.
        """
        if ahead:
            seconds = self.seconds_of(load, [1] * len(self.widths), free_drafts=True)
            return reach > self._lowest_reach(seconds, depth, ahead)
        if depth not in self._least_reach:
            chances = [self.width_chances[width] for width in self.widths[depth:]]
            self._least_reach[depth] = self._lowest_reach(self.seconds, depth, chances)
        return reach > self._least_reach[depth]

    def _lowest_reach(self, seconds: Sequence[float], depth: int, chances: Sequence[float]) -> float:
        """The chance of the next layer from which on it pays; `chances` are those of the layers from there on.

        For k further layers: reach (1 + c_2 + c_2 c_3 + ... of k terms) > lambda (seconds of k layers more).
        """
        least, gain, product = math.inf, 0.0, 1.0
        for layer, chance in enumerate(chances[: len(self.widths) - depth], depth):
            if layer > depth:
                product *= chance
            gain += product
            if gain:
                least = min(least, self.tokens_per_second * (seconds[layer + 1] - seconds[depth]) / gain)
        return least


def _with_margin(steps: Iterable[float], margin: float) -> list[float]:
    """Seconds of a step without layers, and of those with some a little more than they take."""
    plain, *drafting = steps
    return [plain, *(seconds * (1 + margin) for seconds in drafting)]
