"""What passes over models cost, by rows and requests: measured while they run, guessed from the weights until then.

What a pass takes beside its forwards, to make use of its answers, goes by requests and by those that have drafted: by
rows alone, many rows of few requests would tell the price of many requests, and drafts would seem to be free. It is
learned from requests that decide by it and from plain ones: beams take far longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from draftwood.models.base import CausalModel
from draftwood.models.modules import bytes_of
from draftwood.util.isotonic import isotonic

READ, COMPUTE = 3e-11, 1.8e-11  # guess of seconds: of a byte of weights, of a weight of any type for each row
CACHED, NEAR = 16e6, 8e-12  # bytes of weights that a processor's caches keep, and seconds of one
LAYER, NATIVE, EACH = 1e-4, 5e-6, 2e-6  # of a layer beside, of one by native kernels, and of it for each row
KERNELS = {"avx2": 1e-11} | dict.fromkeys(("avx512", "avx512vnni", "avx512bf16", "amx"), 1.2e-12)  # `COMPUTE` by these
HANDLED, DRAWN = 2.5e-4, 7e-5  # of a request that `auto` decides for, beside forwards of the target, of draft models
DRAFTED = 6e-5  # more of one that has drafted
ROW = 1 / 6  # of `DRAFTED`: of each row behind the first
FEW, RATE, SURE = 3, 0.1, 20.0  # first passes whose least counts; weight of a later one; most that a point weighs
PIECE = 8  # times a pass over one row: what one of a prompt may take, whose pieces then cost an eighth more
SEEN, WARM = 2, 24  # passes that make a point known; that may be slow since the model was not used for long
KEPT = 0.975  # of what is known beside forwards, after another pass
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
class Sums:
    """Discounted sums over passes, of their requests n, drafts u, see `drafts_of`, and seconds y."""

    nn: float = 0.0
    nu: float = 0.0
    uu: float = 0.0
    ny: float = 0.0
    uy: float = 0.0

    def add(self, n: float, u: float, y: float) -> None:
        self.nn, self.nu, self.uu = KEPT * self.nn + n * n, KEPT * self.nu + n * u, KEPT * self.uu + u * u
        self.ny, self.uy = KEPT * self.ny + n * y, KEPT * self.uy + u * y


def drafts_of(requests: int, rows: int, drafting: int | None = None) -> float:
    """Requests that have drafted, a sixth of one more for each of all rows behind the first.

    To make use of drafts takes more than a plain answer does, and little more for many than for few. Unless told, as
    many have `drafting` as can have.
    """
    behind = max(0, rows - requests)
    return (min(requests, behind) if drafting is None else drafting) + behind * ROW


@dataclass(slots=True)
class Beside:
    """Seconds of passes beside their forwards, so many for a request and more where it has drafted.

    Least squares over the last passes without drafts and the last with some: neither make the others forgotten, so that
    what drafts take is known after a long rest. Until it was seen it is half of what a request takes.
    """

    each: float = 0.0
    draft: float = 0.0
    count: int = 0  # passes
    _plain: Sums = field(default_factory=Sums)
    _drafted: Sums = field(default_factory=Sums)

    @property
    def known(self) -> bool:
        """Whether it is more than what a first pass took, which may be any time."""
        return self.count >= FEW

    def add(self, requests: int, drafts: float, seconds: float) -> None:
        """Follow a pass: at most twice as much is expected then, and it counts as at most twice what was expected.

        What disturbs a pass makes it slower by any factor, as the first one of a process: of the first few the least
        counts.
        """
        self.count += 1
        most = 1 if self.count <= FEW else 2
        a, b = self._plain, self._drafted
        if (expected := self.of(requests, drafts)) > most * seconds:
            for sums in (a, b):
                sums.ny, sums.uy = (most * seconds / expected * sum_ for sum_ in (sums.ny, sums.uy))
        if expected:
            seconds = min(seconds, most * expected)
        (b if drafts else a).add(requests, drafts, seconds)
        nn, ny = a.nn + b.nn, a.ny + b.ny
        pull = nn / 100  # towards draft = each / 2
        nn, nu, uu = nn + pull / 4, b.nu - pull / 2, b.uu + pull
        self.draft = max(0.0, (nn * b.uy - nu * ny) / (nn * uu - nu * nu))
        self.each = max(0.0, (ny - nu * self.draft) / nn)

    def of(self, requests: int, drafts: float) -> float:
        """Of a pass; `drafts` as `drafts_of` has them."""
        return requests * self.each + drafts * self.draft


@dataclass(slots=True)
class Scale:
    """Measured seconds of forwards over guessed ones, and what was last measured beside them."""

    ratio: float = 1.0
    beside: Beside = field(default_factory=Beside)


@dataclass(slots=True)
class Curve:
    """Seconds of a pass over some layers of a model: of the forward, which never fall with its rows, and of requests.

    Between measured points it is linear, beyond them it has the slope of the guess `fixed + rows * each`. Before any
    pass was measured the guess has the scale of other curves. The first passes are held to cost no more than that: a
    model that is seldom run is slow, and what is held to be slow is seldom run.
    """

    fixed: float
    each: float
    scale: Scale = field(default_factory=Scale)
    sized: bool = True  # whether the size of the model is known
    points: dict[int, Point] = field(default_factory=dict)  # of forwards, two for each doubling of the rows
    beside: Beside = field(default_factory=Beside)
    passes: int = 0
    _knots: list[tuple[float, float]] = field(init=False, default_factory=list)  # (rows, seconds), both rising
    _known: dict[int, float] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, model: CausalModel, layers: int, scale: Scale) -> Curve:
        """The curve of a model's layers before any was measured."""
        held = float(getattr(model, "weight_bytes", 0)) * layers / model.n_layers
        matrices = [part for part in getattr(model, "modules", tuple)() if hasattr(part, "in_features")]
        packed, weights = sum(map(bytes_of, matrices)), sum(part.in_features * part.out_features for part in matrices)
        kernels = getattr(model, "kernels", "")
        near = min(held, CACHED)
        fixed = (NATIVE if kernels else LAYER) * layers + NEAR * near + READ * (held - near)
        each = KERNELS.get(kernels, COMPUTE) * held * (weights / packed if packed else 1 / 4)
        each += EACH * layers if kernels else 0.0
        return cls(fixed, max(each, fixed / 100), scale, hasattr(model, "weight_bytes"))

    def guess(self, rows: float) -> float:
        """Seconds as the size of the model has them."""
        return self.fixed + rows * self.each

    @property
    def piece(self) -> int:
        """Rows of a pass that takes `PIECE` times as long as one over a single row, as the size of the model has it.

        On a CPU, where rows cost what they compute: what is read in such pieces takes hardly longer than as a whole.
        """
        return int((PIECE * (self.fixed + self.each) - self.fixed) / self.each)

    def add(self, rows: int, seconds: float) -> None:
        """Note a pass: seconds of its forwards."""
        self.passes += 1
        self.scale.ratio = seconds / self.guess(rows)
        key = round(2 * math.log2(rows))
        point = self.points.get(key)
        if point is None:
            point = self.points[key] = Point(rows, seconds)
        else:
            point.add(rows, seconds)
        if point.count == SEEN or abs(point.seconds - point.told) > CHANGED * point.told:
            point.told = point.seconds
            self._known.clear()

    def took(self, requests: int, rows: int, drafting: int, seconds: float) -> None:
        """Note what a pass took beside its forwards for so many requests with so many rows, and drafts of some."""
        self.beside.add(requests, drafts_of(requests, rows, drafting), seconds)
        if self.beside.known:
            self.scale.beside = self.beside

    def seconds(self, rows: int, requests: int = 0, drafting: int | None = None) -> float:
        """Of a pass over so many rows of so many requests, some with drafts; of the forward alone without them."""
        if not requests:
            return self._forward(rows)
        beside = self.beside if self.beside.known else self.scale.beside
        return self._forward(rows) + beside.of(requests, drafts_of(requests, rows, drafting))

    def _forward(self, rows: int) -> float:
        if not self.points:
            return self.guess(rows) * self.scale.ratio
        found = self._known.get(rows)
        if found is None:
            if not self._known:
                self._knots = self._rising()
            found = self._known[rows] = self._at(rows)
        return found if self.passes > WARM else min(found, self.guess(rows) * self.scale.ratio)

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
        """The points, neighbours that fall replaced by their mean (isotonic regression).

        A single pass, which may have been disturbed, counts where nothing better is known: else a plan that avoids so
        many rows for its sake would never measure them again.
        """
        seen = [point for point in self.points.values() if point.count >= SEEN] or self.points.values()
        known = sorted(seen, key=lambda point: point.rows)
        rising = isotonic([point.seconds for point in known], [min(SURE, point.count) for point in known])
        return [(point.rows, seconds) for point, seconds in zip(known, rising, strict=True)]


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

    def add(self, model: CausalModel, rows: int, full: float, seconds: float) -> Curve | None:
        """Note a pass over `rows` rows that come to `full` of full depth: parts of the layers count by their share.

        `seconds` are those of its forwards; the answer is the curve, if it belongs to one.
        """
        if not rows or not (layers := round(model.n_layers * full / rows)):
            return None
        curve = self.curve(model, layers)
        curve.add(rows, seconds)
        return curve


# by sizes and kernels alone, of targets and of what drafts for them: nothing is ever added
GUESSES, DRAFTS = (Costs(_scale=Scale(beside=Beside(each, DRAFTED))) for each in (HANDLED, DRAWN))
