"""What passes over models cost, by rows: measured while they run, guessed from the weights until then.

Knows rows and seconds only. A pass is timed whole, with what its requests do before and after the forward.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from draftwood.models.base import CausalModel

LAYER, READ, COMPUTE = 1e-4, 5e-11, 5e-12  # guess of seconds: of a layer, of a byte of weights, of a byte for each row
FEW, RATE, SURE = 3, 0.1, 20.0  # passes whose least counts; weight of a later one; most that a point weighs
CHANGED = 0.03  # relative change of a point that the curve follows


@dataclass(slots=True)
class Point:
    """Passes of about as many rows."""

    rows: float
    seconds: float
    count: int = 1
    told: float = 0.0  # seconds that the curve has now

    def add(self, rows: int, seconds: float) -> None:
        """Follow a pass: no further than by half, since what disturbs a pass makes it slower by any factor."""
        self.count += 1
        if self.count <= FEW:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += RATE * max(-self.seconds / 2, min(self.seconds / 2, seconds - self.seconds))
        self.rows += RATE * (rows - self.rows)


@dataclass(slots=True)
class Scale:
    """Measured seconds over guessed ones."""

    ratio: float = 1.0


@dataclass(slots=True)
class Curve:
    """Seconds of a pass over some layers of a model, which never fall with its rows.

    Between measured points it is linear, beyond them it has the slope of the guess `fixed + rows * each`. Before any
    pass was measured the guess has the scale of other curves.
    """

    fixed: float
    each: float
    scale: Scale = field(default_factory=Scale)
    sized: bool = True  # whether the size of the model is known
    points: dict[int, Point] = field(default_factory=dict)  # two for each doubling of the rows
    _knots: list[tuple[float, float]] = field(init=False, default_factory=list)  # (rows, seconds), both rising
    _known: dict[int, float] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, model: CausalModel, layers: int, scale: Scale) -> Curve:
        """The curve of a model's layers before any was measured."""
        share = layers / model.n_layers
        weights = float(getattr(model, "weight_bytes", 0))
        fixed = LAYER * layers + READ * weights * share
        return cls(fixed, max(COMPUTE * weights * share, fixed / 100), scale, hasattr(model, "weight_bytes"))

    def guess(self, rows: float) -> float:
        """Seconds as the size of the model has them."""
        return self.fixed + rows * self.each

    def add(self, rows: int, seconds: float) -> None:
        """Note a pass."""
        self.scale.ratio = seconds / self.guess(rows)
        key = round(2 * math.log2(rows))
        point = self.points.get(key)
        if point is None:
            point = self.points[key] = Point(rows, seconds)
        else:
            point.add(rows, seconds)
        if abs(point.seconds - point.told) > CHANGED * point.told:
            point.told = point.seconds
            self._known.clear()

    def seconds(self, rows: int) -> float:
        """Of a pass over so many rows."""
        if not self.points:
            return self.guess(rows) * self.scale.ratio
        found = self._known.get(rows)
        if found is None:
            if not self._known:
                self._knots = self._rising()
            found = self._known[rows] = self._at(rows)
        return found

    def marginal(self, rows: int, more: int) -> float:
        """What `more` rows add to a pass over `rows`."""
        return self.seconds(rows + more) - self.seconds(rows)

    def _at(self, rows: int) -> float:
        knots = self._knots
        place = bisect_right(knots, (rows, math.inf))
        if place in (0, len(knots)):  # beyond: the guess, to the scale of the nearest point
            at, seconds = knots[min(place, len(knots) - 1)]
            return seconds * self.guess(rows) / self.guess(at)
        (low, below), (high, above) = knots[place - 1], knots[place]
        return below + (above - below) * (rows - low) / (high - low)

    def _rising(self) -> list[tuple[float, float]]:
        """The points, neighbours that fall replaced by their mean (isotonic regression)."""
        pools: list[tuple[float, float, list[float]]] = []  # seconds, weight, rows of the points
        for point in sorted(self.points.values(), key=lambda point: point.rows):
            seconds, weight, rows = point.seconds, min(SURE, point.count), [point.rows]
            while pools and pools[-1][0] >= seconds:
                before, heavy, first = pools.pop()
                seconds = (before * heavy + seconds * weight) / (heavy + weight)
                weight, rows = heavy + weight, first + rows
            pools.append((seconds, weight, rows))
        return [(at, seconds) for seconds, _, rows in pools for at in rows]


@dataclass(slots=True)
class Costs:
    """The curves of all models of an engine, and of the parts of their layers that were run."""

    _curves: WeakKeyDictionary[CausalModel, dict[int, Curve]] = field(default_factory=WeakKeyDictionary)
    _scale: Scale = field(default_factory=Scale)  # of the pass that was measured last

    def curve(self, model: CausalModel, layers: int | None = None) -> Curve:
        """Of so many layers of a model, all by default."""
        layers = model.n_layers if layers is None else layers
        curves = self._curves.setdefault(model, {})
        if layers not in curves:
            curves[layers] = Curve.of(model, layers, self._scale)
        return curves[layers]

    def add(self, model: CausalModel, rows: int, full: float, seconds: float) -> None:
        """Note a pass over `rows` rows that come to `full` of full depth: parts of the layers count by their share."""
        if rows and (layers := round(model.n_layers * full / rows)):
            self.curve(model, layers).add(rows, seconds)


GUESSES = Costs()  # by the sizes of models alone: nothing is ever added
