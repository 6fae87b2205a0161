"""What pilots predict: tokens per round, seconds per round and so speed, for settings that were not run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from draftwood.core.shape import Shape
from draftwood.results import GenerationResult
from draftwood.tune.shapes import Acceptance, Cost, best_shapes, expected_tokens

RESAMPLES = 200
MIDDLE = 0.95  # share of resamples inside an interval


@dataclass(slots=True)
class Observation:
    """One generation. Figures of rounds leave out the first, which contains the prompt."""

    seconds: float = 0.0  # wall time, the prompt included
    first: float = 0.0  # of which before the later rounds
    steps: int = 0  # tokens; of beams layers
    rounds: int = 0
    later_steps: int = 0
    draft: float = 0.0  # seconds in forwards of the draft
    forwards: int = 0  # of the draft
    verify: float = 0.0  # seconds in forwards of the target
    overhead: float = 0.0  # all other seconds: sampling, bookkeeping, the interpreter
    nodes: int = 0  # drafted
    rows: float = 0.0  # of the target
    met: list[list[int]] = field(default_factory=list)  # [layer][place], see `Metrics`
    taken: list[list[int]] = field(default_factory=list)
    attempted: list[int] = field(default_factory=list)  # by layer
    accepted: list[int] = field(default_factory=list)
    width: float = 0.0  # of beams, the mean

    @classmethod
    def of(cls, result: GenerationResult) -> Observation:
        """What counts of a result."""
        metrics, later = result.metrics, result.rounds[1:]
        beams = bool(metrics.layers)
        spent = math.fsum(round_.draft_seconds + round_.verify_seconds for round_ in later)
        whole = math.fsum(round_.seconds for round_ in later)
        return cls(
            metrics.seconds,
            metrics.seconds - whole,
            metrics.layers if beams else metrics.emitted,
            len(later),
            sum(len(round_.layers) if beams else len(round_.tokens) for round_ in later),
            math.fsum(round_.draft_seconds for round_ in later),
            sum(round_.draft_forwards for round_ in later),
            math.fsum(round_.verify_seconds for round_ in later),
            whole - spent,
            sum(round_.drafted for round_ in later),
            math.fsum(round_.target_rows for round_ in later),
            metrics.met_at,
            metrics.taken_at,
            metrics.attempted_at,
            metrics.accepted_at,
            metrics.mean_width,
        )


Observations: TypeAlias = Sequence[Observation]


@dataclass(frozen=True, slots=True)
class Means:
    """Per later round, of many observations; `opening` is the time before the later rounds, per generation."""

    rounds: int
    draft: float
    forwards: float
    verify: float
    overhead: float
    nodes: float
    rows: float
    opening: float
    steps: float  # per generation

    @classmethod
    def of(cls, found: Observations) -> Means:
        rounds = max(1, sum(one.rounds for one in found))
        return cls(
            rounds,
            math.fsum(one.draft for one in found) / rounds,
            sum(one.forwards for one in found) / rounds,
            math.fsum(one.verify for one in found) / rounds,
            math.fsum(one.overhead for one in found) / rounds,
            sum(one.nodes for one in found) / rounds,
            math.fsum(one.rows for one in found) / rounds,
            math.fsum(one.first for one in found) / len(found),
            sum(one.steps for one in found) / len(found),
        )

    @property
    def seconds(self) -> float:
        return self.draft + self.verify + self.overhead


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed over that of decoding without drafts, the prompt's share included, and what it is made of."""

    speed_up: float
    steps: float  # per round: tokens, of beams layers
    round_seconds: float


def by_depth(found: Observations) -> list[float]:
    """Chance that verification goes on at the first, second, ... layer, given that it came so far."""
    table: list[float] = []
    for layer in range(max((len(one.attempted) for one in found), default=0)):
        n = sum(one.attempted[layer] for one in found if layer < len(one.attempted))
        a = sum(one.accepted[layer] for one in found if layer < len(one.accepted))
        table.append(a / n if n else 0.0)
    return table


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
    table: list[list[float]] = []
    for layer in range(max((len(one.met) for one in found), default=0)):
        here = [(one.met[layer], one.taken[layer]) for one in found if layer < len(one.met)]
        row = []
        for place in range(max(len(met) for met, _ in here)):
            n = sum(met[place] for met, _ in here if place < len(met))
            a = sum(taken[place] for _, taken in here if place < len(taken))
            row.append((a + 1) / (n + 2))
        table.append(row)
    return table or [[0.5]]


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
        seconds = gamma * found.draft / layers + verify + plain.overhead + gamma * per_layer
        before = plain.opening + (plain.steps - 1) * plain.seconds
        opening = found.opening + (seconds - found.seconds)
        return Prediction(before / whole(plain.steps, opening, seconds, steps), steps, seconds)

    def costs(self) -> tuple[Cost, Cost]:
        """Seconds per row count of a target forward and of a drafted layer, overhead included, for `tuning`."""
        plain, chain, tree = Means.of(self.plain), Means.of(self.chain), Means.of(self.tree)
        layers = [max(1e-9, means.forwards) for means in (chain, tree)]
        extra = [means.overhead - plain.overhead for means in (chain, tree)]
        # overhead = plain's + b layers + c nodes
        determinant = layers[0] * tree.nodes - layers[1] * chain.nodes
        b = c = 0.0
        if abs(determinant) > 1e-6 * layers[0] * max(tree.nodes, 1.0):
            b = (extra[0] * tree.nodes - extra[1] * chain.nodes) / determinant
            c = (layers[0] * extra[1] - layers[1] * extra[0]) / determinant
        if b <= 0 or c < 0:  # noise: all of it by the layer
            b, c = max(0.0, sum(extra) / sum(layers)), 0.0
        one = chain.draft / layers[0]
        drafted = {rows: one * self.draft(rows) / self.draft(1) + b for rows in self.draft.rows}
        anchors = [plain, chain, tree]
        verified = {
            rows: self.verified(rows, anchors) + plain.overhead + c * (rows - 1)
            for rows in range(1, max(self.target.rows) + 1)
        }
        return Cost(verified), Cost(drafted)

    def shape(self, shape: Shape) -> Prediction:
        """A tree."""
        target, draft = self.costs()
        plain, tree = Means.of(self.plain), Means.of(self.tree)
        steps = expected_tokens(shape, by_place(self.tree))
        layers = shape.layers
        seconds = target(sum(layers)) + math.fsum(draft(rows) for rows in layers[:-1])
        before = plain.opening + (plain.steps - 1) * plain.seconds
        opening = tree.opening + (seconds - tree.seconds)
        return Prediction(before / whole(plain.steps, opening, seconds, steps), steps, seconds)

    def best_shape(self, row_limit: int, max_depth: int) -> Shape:
        """The tree of the best predicted speed of rounds."""
        target, draft = self.costs()
        found = best_shapes(by_place(self.tree), target, draft, row_limit, max_depth, count=2)
        return next((shape for _, shape in found if shape.tree), Shape((1,)))

    def best_depth(self, most: int, pilot: Observations, without: Observations, resumes: bool = False) -> int:
        """The depth of the best predicted speed, 1 or more."""
        return max(range(1, most + 1), key=lambda gamma: self.line(gamma, pilot, without, resumes).speed_up)

    def resampled(self, prompts: Sequence[int]) -> Predictor:
        """The same with other prompts, by number and with repetition."""

        def pick(found: Observations) -> Observations:
            return [found[i] for i in prompts] if found else found

        return Predictor(
            self.target,
            self.draft,
            pick(self.plain),
            pick(self.chain),
            pick(self.tree),
            pick(self.beams),
            pick(self.drafted_beams),
        )


def interval(count: int, value: Callable[[Sequence[int]], float], seed: int = 0) -> tuple[float, float]:
    """The middle of a value's bootstrap distribution over `count` prompts: percentiles of resamples."""
    rng = random.Random(seed)
    values = sorted(value([rng.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    cut = int((1 - MIDDLE) / 2 * RESAMPLES)
    return values[cut], values[-1 - cut]


def rate(found: Observations) -> float:
    """Steps per second of wall time."""
    return sum(one.steps for one in found) / math.fsum(one.seconds for one in found)
