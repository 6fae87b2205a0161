"""A search for the fastest tree in few measured runs: acceptance and times of these predict all other trees."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

import numpy as np

from draftwood.core.shape import Shape
from draftwood.tune.observation import Observation, added
from draftwood.tune.shapes import Cost, RankAcceptance, best_shapes, expected_tokens, round_seconds

PRIOR_DRAFTS = 4  # weight of a prior, in drafts
UNSEEN_PLACES = 6  # places beyond the measured ones, before the last repeats
PREDICTION_RUNS = 2  # weight of a prediction, in runs


@dataclass(slots=True)
class AcceptanceTally:
    """Acceptance [layer][place among siblings] from all runs so far."""

    met: list[list[int]] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)

    def add(self, run: Observation) -> None:
        self.met, self.accepted = added([self.met, run.met]), added([self.accepted, run.taken])

    def acceptance(self) -> list[list[float]]:
        """Acceptance [layer][place] for `expected_tokens`: all measured layers, and some places beyond.

        Estimates from few drafts are shrunk towards a prior that weighs as much as `PRIOR_DRAFTS` drafts: for a layer
        the same place over all layers, for a place half the chance of the place before it (later siblings are less
        likely), for the first place 1/2.
        """
        places = max(map(len, self.met), default=1) + UNSEEN_PLACES
        met, accepted = (
            np.array([[*row, *[0] * (places - len(row))] for row in table or [[]]])
            for table in (self.met, self.accepted)
        )
        usual: list[float] = []
        for n, a in zip(met.sum(0), accepted.sum(0), strict=True):
            usual.append((a + PRIOR_DRAFTS * (usual[-1] if usual else 1) / 2) / (n + PRIOR_DRAFTS))
        table: list[list[float]] = ((accepted + PRIOR_DRAFTS * np.array(usual)) / (met + PRIOR_DRAFTS)).tolist()
        return table


def overheads(rounds: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Seconds of a round beyond its forwards, split into seconds per round, per layer and per row.

    Non-negative least squares over (layers, rows, seconds) with a small ridge, which decides where rounds are few.
    """
    if not rounds:
        return 0.0, 0.0, 0.0
    rows = np.array([(1.0, layers, count) for layers, count, _ in rounds])
    scale = np.maximum(rows.max(0), 1e-9)
    ridge = math.sqrt(1e-3 * len(rounds)) * np.eye(3)
    a, b = np.vstack((rows / scale, ridge)), np.array([*(seconds for *_, seconds in rounds), 0.0, 0.0, 0.0])
    best, error = np.zeros(3), float(b @ b)
    for some in chain.from_iterable(combinations(range(3), count) for count in (1, 2, 3)):  # what is not 0
        solution = np.zeros(3)
        solution[list(some)] = np.linalg.lstsq(a[:, some], b, rcond=None)[0]
        off = float(((a @ solution - b) ** 2).sum())
        if (solution >= 0).all() and off < error:
            best, error = solution, off
    per_round, per_layer, per_row = (best / scale).tolist()
    return per_round, per_layer, per_row


PILOT_TREES = ((4, 2, 2, 1, 1), (4, 2, 2, 1), (3, 2, 1, 1), (2, 2, 1, 1), (2, 2, 1), (2, 1, 1), (2, 1), (2,), (1,))


def pilot_shape(row_limit: int, max_depth: int) -> Shape:
    """The first tree of `PILOT_TREES` that fits; they show acceptance at several places of several layers."""
    for tree in PILOT_TREES:
        shape = Shape(tree[:max_depth])
        if shape.tree and shape.rows <= row_limit:
            return shape
    raise ValueError(f"{row_limit} rows and depth {max_depth} cannot hold a token and a draft of the next; allow more")


class Guided:
    """Chooses the next shape to measure: `ask` for one, `tell` the figures of its run, and finally read `ranked`.

    The first shape is the pilot. Acceptance and time per round of all runs so far predict the speed of every shape.
    The next one has the best mean of measured and predicted speed, with a bonus for shapes that ran seldom; so good
    shapes are run again, and noise decides less. Acceptance is estimated from runs with one initial token only:
    with several, just the longest path is seen. The gain of several is estimated as a factor.
    """

    def __init__(
        self,
        pilot: Shape,
        target: Cost,
        draft: Cost,
        row_limit: int,
        max_depth: int = 8,
        initial: Sequence[int] = (1,),
        widths: Container[int] | None = None,
        noise: float = 0.1,
    ) -> None:
        if row_limit < min(initial, default=1) * 2:
            raise ValueError(
                f"{row_limit} rows cannot hold the tree's first tokens and a draft below each; allow more rows"
            )
        self.pilot, self.target, self.draft = pilot, target, draft
        self.row_limit, self.max_depth, self.initial = row_limit, max_depth, tuple(initial)
        self.widths, self.noise = widths, noise
        self.runs: dict[Shape, list[float]] = {}
        self.tally = AcceptanceTally()
        self._rounds: list[tuple[Shape, tuple[float, float, float]]] = []  # mean seconds of target, draft and the rest
        self._acceptance: RankAcceptance = [[0.5]]
        self._costs = target, draft
        self._factor: dict[int, float] = {}
        self._pace = 0.0

    def tell(self, shape: Shape, own: Observation, plain: Observation) -> None:
        """Take in the figures of a run of `shape`, and of plain decoding in the same run."""
        self.runs.setdefault(shape, []).append(own.tokens / own.seconds / (plain.tokens / plain.seconds))
        if shape.initial == 1:
            self.tally.add(own)
            self._acceptance = self.tally.acceptance()
        self._clock(shape, own, plain)
        logs: dict[int, list[float]] = {}
        for known, speeds in self.runs.items():
            raw = self._raw(known)
            logs.setdefault(known.initial, []).extend(math.log(speed / raw) for speed in speeds)
        everything = math.fsum(map(math.fsum, logs.values())) / sum(map(len, logs.values()))
        self._factor = {count: math.exp(math.fsum(each) / len(each)) for count, each in logs.items()}
        self._factor[0] = math.exp(everything)

    def _clock(self, shape: Shape, own: Observation, plain: Observation) -> None:
        """Estimate forwards and overhead from the times of rounds, corrected for the machine's speed in each run."""
        if not own.rounds or not plain.rounds:
            return
        seconds = (plain.verify + plain.draft + plain.overhead) / plain.rounds
        self._pace = self._pace or seconds
        for known, run in ((Shape(()), plain), (shape, own)):
            scale = self._pace / seconds / run.rounds
            self._rounds.append((known, (scale * run.verify, scale * run.draft, scale * run.overhead)))
        slow = math.fsum(target for _, (target, _, _) in self._rounds) / math.fsum(
            self.target(known.rows) for known, _ in self._rounds
        )
        drafted = math.fsum(self.draft(r) for known, _ in self._rounds for r in known.layers[:-1])
        slow_draft = math.fsum(draft for _, (_, draft, _) in self._rounds) / drafted if drafted else 0.0
        per_round, per_layer, per_row = overheads(
            [(len(known.tree), known.rows, rest) for known, (_, _, rest) in self._rounds]
        )
        self._costs = (
            self.target.scaled(slow or 1.0).plus(per_round, per_row),
            self.draft.scaled(slow_draft or 1.0).plus(per_layer),
        )

    def _raw(self, shape: Shape) -> float:
        return expected_tokens(shape, self._acceptance) / round_seconds(shape, *self._costs)

    def predicted(self, shape: Shape) -> float:
        """The predicted speed of a shape, in the unit of the runs."""
        return self._raw(shape) * self._factor.get(shape.initial, self._factor.get(0, 1.0))

    def score(self, shape: Shape) -> float:
        """The geometric mean of a shape's measured speeds and its prediction, which weighs `PREDICTION_RUNS` runs."""
        logs = [math.log(speed) for speed in self.runs.get(shape, ())]
        return math.exp(
            (math.fsum(logs) + PREDICTION_RUNS * math.log(self.predicted(shape))) / (len(logs) + PREDICTION_RUNS)
        )

    def _doubt(self, shape: Shape) -> float:
        """The factor by which the score of a shape may be wrong."""
        return math.exp(self.noise / math.sqrt(len(self.runs.get(shape, ())) + 1))

    def allows(self, shape: Shape) -> bool:
        """True if a shape is in the searched space; the pilot may lie outside."""
        return (
            shape.initial in self.initial
            and 0 < len(shape.tree) <= self.max_depth
            and shape.rows <= self.row_limit
            and (self.widths is None or all(width in self.widths for width in shape.tree))
        )

    def ask(self) -> Shape:
        if not self.runs:
            return self.pilot
        candidates = [shape for shape in self.runs if self.allows(shape)]
        for count in self.initial:
            ranked = best_shapes(
                self._acceptance,
                *self._costs,
                self.row_limit,
                self.max_depth,
                (count,),
                len(candidates) + 2,
                self.widths,
            )
            fresh = [shape for _, shape in ranked if shape.tree and shape not in self.runs]
            candidates += fresh[:1]
        if not candidates:
            raise ValueError("no tree is within the rows, the depth and the widths that are allowed; allow more")
        return max(candidates, key=lambda shape: self.score(shape) * self._doubt(shape))

    def ranked(self) -> list[tuple[float, Shape]]:
        """(score, shape) of the measured shapes, best first; a score from few runs counts for less."""
        scores = [(self.score(shape), shape) for shape in self.runs if self.allows(shape)]
        return sorted(scores, key=lambda entry: (-entry[0] / self._doubt(entry[1]), entry[1].rows))
