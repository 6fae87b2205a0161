"""Predicts tokens per round and seconds per round, and so the speed, of settings that were not run, from pilots."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from draftwood.core.shape import Shape
from draftwood.tune.observation import Observation, total
from draftwood.tune.search import overheads
from draftwood.tune.shapes import Acceptance, Cost, best_shapes, expected_tokens, round_seconds

RESAMPLES = 200
LEVEL = 0.95  # share of resamples inside an interval


Observations: TypeAlias = Sequence[Observation]
PER_ROUND = ("draft", "forwards", "verify", "overhead", "nodes", "rows")


@dataclass(frozen=True, slots=True)
class Means:
    """Means over the rounds of many observations, without first rounds.

    `opening`, the seconds before the second round, and `steps` are means per generation.
    """

    draft: float
    forwards: float
    verify: float
    overhead: float
    nodes: float
    rows: float
    opening: float
    steps: float

    @classmethod
    def of(cls, found: Observations) -> Means:
        sums, count = total(found), len(found)
        each = {name: getattr(sums, name) / max(1, sums.rounds) for name in PER_ROUND}
        return cls(**each, opening=sums.first / count, steps=sums.steps / count)

    @property
    def seconds(self) -> float:
        return self.draft + self.verify + self.overhead


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted speed over that of decoding without drafts, the prompt included, with tokens and seconds per round."""

    speed_up: float
    steps: float  # per round: tokens, of beams layers
    round_seconds: float


def by_depth(found: Observations) -> list[float]:
    """Chance that the first, second, ... layer is accepted, given that those before it were."""
    sums = total(found)
    return [a / n if n else 0.0 for a, n in zip(sums.accepted, sums.attempted, strict=True)]


def chain_steps(chances: Sequence[float], gamma: int) -> float:
    """1 + a_1 + a_1 a_2 + ...: steps of a round of `gamma` drafts; the last chance repeats."""
    if gamma and not chances:
        return 1.0
    reach, steps = 1.0, 1.0
    for layer in range(gamma):
        reach *= chances[min(layer, len(chances) - 1)]
        steps += reach
    return steps


def by_place(found: Observations) -> Acceptance:
    """Acceptance [layer][place among siblings] for `tuning`, one success and one failure added: beta(1, 1)."""
    sums = total(found)
    tables = zip(sums.taken, sums.met, strict=True)
    return [[(a + 1) / (n + 2) for a, n in zip(*rows, strict=True)] for rows in tables] or [[0.5]]


def whole(steps: float, opening: float, per_round: float, per_step: float) -> float:
    """Seconds of a generation of `steps`: the opening, and rounds of `per_step` steps, the last one cut short."""
    rounds = max(0.0, (steps - per_step) / per_step) + (per_step - 1) / (2 * per_step)
    return opening + rounds * per_round


@dataclass(slots=True)
class Predictor:
    """Predicts chains, trees and beams from pilots, each a list with one observation per prompt.

    `target` and `draft` are measured costs of K rows. Their slopes are used; their level is taken from the pilots,
    where caches are as they will be.
    """

    target: Cost
    draft: Cost
    plain: Observations
    chain: Observations = ()
    tree: Observations = ()
    beams: Observations = ()  # beam sampling
    drafted_beams: Observations = ()  # dsbd

    def verified(self, rows: float, anchors: Sequence[Means]) -> float:
        """Seconds of a target forward of so many rows, through what pilots of fewer and more rows took.

        Between two pilots the measured costs of K rows say how it grows, beyond the last one they are its factor.
        """
        known = sorted((means.rows, means.verify) for means in anchors)
        low, seconds = known[0]
        for high, more in known[1:]:
            more = max(more, seconds)  # noise
            if rows <= high:
                whole = self._at(self.target, high) - self._at(self.target, low)
                part = self._at(self.target, rows) - self._at(self.target, low)
                share = part / whole if whole > 0 else (rows - low) / max(high - low, 1e-9)
                return seconds + (more - seconds) * min(1.0, max(0.0, share))
            low, seconds = high, more
        return seconds * self._at(self.target, rows) / self._at(self.target, low)

    @staticmethod
    def _at(cost: Cost, rows: float) -> float:
        low = max(1, math.floor(rows))
        return cost(low) + (cost(low + 1) - cost(low)) * max(0.0, rows - low)

    def line(self, gamma: int, pilot: Observations, without: Observations, resumes: bool = False) -> Prediction:
        """A chain of `gamma`, or `gamma` layers of beams, from a pilot of another depth and the pilot without drafts.

        Draft forwards cost what they cost in the pilot, overhead grows by the layer, rows of the target with the nodes.
        `resumes` says that drafts come from the target's first layers, above which verification goes on.
        """
        plain, found = Means.of(without), Means.of(pilot)
        steps = chain_steps(by_depth(pilot), gamma)
        layers = max(found.forwards, 1e-9)
        rows = plain.rows + (found.rows - plain.rows) * gamma / layers
        per_layer = (found.overhead - plain.overhead) / layers
        if resumes:  # verification of the layers that drafting left: a share of a whole forward
            anchors = [plain, *(Means.of(other) for other in (self.chain, self.tree) if other)]
            verify = found.verify * self.verified(rows, anchors) / self.verified(found.rows, anchors)
        else:
            verify = self.verified(rows, [plain, found])
        return _predicted(
            plain, found, steps, gamma * found.draft / layers + verify + plain.overhead + gamma * per_layer
        )

    def costs(self) -> tuple[Cost, Cost]:
        """Seconds per row count of a target forward and of a drafted layer, overhead included, for `tuning`."""
        plain, chain, tree = Means.of(self.plain), Means.of(self.chain), Means.of(self.tree)
        each = [(means.forwards, 1 + means.nodes, means.overhead) for means in (plain, chain, tree)]
        _, per_layer, per_row = overheads(each)
        one = chain.draft / max(1e-9, chain.forwards)
        drafted = {rows: one * self.draft(rows) / self.draft(1) + per_layer for rows in self.draft.rows}
        anchors = [plain, chain, tree]
        verified = {
            rows: self.verified(rows, anchors) + plain.overhead + per_row * (rows - 1)
            for rows in range(1, max(self.target.rows) + 1)
        }
        return Cost(verified), Cost(drafted)

    def shape(self, shape: Shape) -> Prediction:
        """The prediction for a tree of drafts."""
        target, draft = self.costs()
        steps = expected_tokens(shape, by_place(self.tree))
        return _predicted(Means.of(self.plain), Means.of(self.tree), steps, round_seconds(shape, target, draft))

    def best_shape(self, row_limit: int, max_depth: int) -> Shape:
        """The tree with the best predicted speed."""
        target, draft = self.costs()
        found = best_shapes(by_place(self.tree), target, draft, row_limit, max_depth, count=2)
        return next((shape for _, shape in found if shape.tree), Shape((1,)))

    def best_depth(self, most: int, pilot: Observations, without: Observations, resumes: bool = False) -> int:
        """The depth with the best predicted speed, 1 or more."""
        return max(range(1, most + 1), key=lambda gamma: self.line(gamma, pilot, without, resumes).speed_up)

    def resampled(self, prompts: Sequence[int]) -> Predictor:
        """The same predictor with the pilots of other prompts, by number and with repetition."""

        pilots = {name: getattr(self, name) for name in ("plain", "chain", "tree", "beams", "drafted_beams")}
        some: dict[str, Any] = {name: [found[i] for i in prompts] for name, found in pilots.items() if found}
        return replace(self, **some)


def _predicted(plain: Means, pilot: Means, steps: float, seconds: float) -> Prediction:
    """The prediction for rounds of so many steps and seconds, with the pilot's opening, against plain decoding."""
    before = plain.opening + (plain.steps - 1) * plain.seconds
    opening = pilot.opening + (seconds - pilot.seconds)
    return Prediction(before / whole(plain.steps, opening, seconds, steps), steps, seconds)


def interval(count: int, value: Callable[[Sequence[int]], float], seed: int = 0) -> tuple[float, float]:
    """The middle of a value's bootstrap distribution over `count` prompts: percentiles of resamples."""
    rng = random.Random(seed)
    values = sorted(value([rng.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    cut = int((1 - LEVEL) / 2 * RESAMPLES)
    return values[cut], values[-1 - cut]
