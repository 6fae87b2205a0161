"""The costs of passes over models, by rows and requests: measured as they run, guessed from the weights until then.

A pass takes the seconds of its forwards, by rows (`Curve`), and those that go into the use of its answers, by requests
and by those that have drafted (`Overhead`). By rows alone, many rows of few requests would tell the price of many
requests, and drafts would seem to be free. The overhead is learned from plain requests and from those that decide by
it; beams take far longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from draftwood.models.base import CausalModel
from draftwood.models.modules import bytes_of
from draftwood.util.isotonic import isotonic

# Nominal seconds of forwards, which hold until a pass was measured
BYTE_SECONDS, CACHED_BYTE_SECONDS = 3e-11, 8e-12  # to read a byte of weights, from memory and from a cache
CACHE_BYTES = 16e6  # of weights that a processor's caches keep
WEIGHT_SECONDS = 1.8e-11  # to compute a row with a weight of any type
KERNEL_WEIGHT_SECONDS = {"avx2": 1e-11} | dict.fromkeys(("avx512", "avx512vnni", "avx512bf16", "amx"), 1.2e-12)
FLOAT_WEIGHT_SECONDS = 2.5e-12  # the least for weights of 16 or 32 bits, but for tiles ("amx")
SMALL_WEIGHT_SECONDS = 2.2e-12  # the least for weights of less than 6 bits, which are unpacked
AMX_NUMBER_SECONDS = 5e-12  # the least for weights of 8 bits and less where tiles take many rows, and not few
LAYER_SECONDS, NATIVE_LAYER_SECONDS = 1e-4, 5e-6  # of a layer beside, in PyTorch and in native kernels
NATIVE_LAYER_ROW_SECONDS = 2e-6  # more of a layer in native kernels, for each row
# Nominal seconds beside forwards
TARGET_REQUEST_SECONDS, DRAFT_REQUEST_SECONDS = 2.5e-4, 5e-5  # of a request that `auto` decides for, by whose pass
DRAFTED_SECONDS = 6e-5  # more of a request that has drafted
TOKEN_SECONDS, DRAFT_TOKEN_SECONDS = 2e-9, 3e-9  # more for each token of the vocabulary: distributions are as long
SLOWER = {"amx": 3.0}  # as long take these by kernels: after a forward code and numbers lie in far caches
DRAFTED_ROW_SHARE = 1 / 6  # of these, for each row behind a request's first
# How measured seconds are followed
FIRST_PASSES = 3  # of which the least counts
PASS_WEIGHT = 0.1  # of a later pass in its point
MAX_POINT_WEIGHT = 20.0  # passes that a point counts for, against its neighbours
KNOWN_PASSES = 2  # after which a point is taken for known
WARM_UP_PASSES = 24  # of a curve, which may be slow since the model was not used for long
OVERHEAD_DISCOUNT = 0.975  # what is known beside forwards counts for, after another pass
CURVE_TOLERANCE = 0.03  # relative change of a point that the curve does not follow
PIECE_FACTOR = 8  # times as long as a pass over one row a piece of a prompt may take: an eighth is lost then


def share_read(share: float, rows: float) -> float:
    """The expected share of a mixture's experts that so many rows read, each choosing a `share` of them evenly."""
    return 1.0 - float((1.0 - share) ** rows)


@dataclass(slots=True)
class Point:
    """Passes over about the same number of rows."""

    rows: float
    seconds: float
    count: int = 1
    curve_seconds: float = 0.0  # what the curve has for it

    def add(self, rows: int, seconds: float) -> None:
        """Follow a pass, by half of what is known at most: a disturbance makes a pass slower by any factor."""
        self.count += 1
        if self.count <= FIRST_PASSES:
            self.seconds = min(self.seconds, seconds)
        else:
            change = max(-self.seconds / 2, min(self.seconds / 2, seconds - self.seconds))
            self.seconds += PASS_WEIGHT * change
        self.rows += PASS_WEIGHT * (rows - self.rows)


@dataclass(slots=True)
class Sums:
    """Discounted sums for least squares over passes: of requests n, drafts u (`draft_units`) and seconds y."""

    nn: float = 0.0
    nu: float = 0.0
    uu: float = 0.0
    ny: float = 0.0
    uy: float = 0.0

    def add(self, n: float, u: float, y: float) -> None:
        keep = OVERHEAD_DISCOUNT
        self.nn, self.nu, self.uu = keep * self.nn + n * n, keep * self.nu + n * u, keep * self.uu + u * u
        self.ny, self.uy = keep * self.ny + n * y, keep * self.uy + u * y


def draft_units(requests: int, rows: int, drafting: int | None = None) -> float:
    """The drafts of a pass, in requests that have drafted one token: what more they take than plain answers.

    A long draft takes little more than a short one. Unless `drafting` tells how many requests have drafted, as many
    have as can have with so many rows.
    """
    behind_first = max(0, rows - requests)
    if drafting is None:
        drafting = min(requests, behind_first)
    return drafting + behind_first * DRAFTED_ROW_SHARE


@dataclass(slots=True)
class Overhead:
    """Seconds of passes beside their forwards: so many for a request, and more where it has drafted.

    Least squares over the last passes without drafts and the last with some. Neither kind makes the other one
    forgotten, so that what drafts take is known after a long rest. Until it was seen it is half of what a request
    takes.
    """

    request_seconds: float = 0.0
    draft_seconds: float = 0.0
    passes: int = 0
    _plain: Sums = field(default_factory=Sums)
    _drafted: Sums = field(default_factory=Sums)

    @property
    def known(self) -> bool:
        """Whether it is more than what a first pass took, which may be any time."""
        return self.passes >= FIRST_PASSES

    def add(self, requests: int, drafts: float, seconds: float) -> None:
        """Follow a pass with so many `draft_units`.

        What disturbs a pass makes it slower by any factor: it counts as at most twice what was expected, and no more
        than twice of it is expected afterwards. Of the first few passes the least counts.
        """
        self.passes += 1
        max_factor = 1 if self.passes <= FIRST_PASSES else 2
        a, b = self._plain, self._drafted
        if (expected := self.seconds(requests, drafts)) > max_factor * seconds:
            for sums in (a, b):
                sums.ny, sums.uy = (max_factor * seconds / expected * sum_ for sum_ in (sums.ny, sums.uy))
        if expected:
            seconds = min(seconds, max_factor * expected)
        (b if drafts else a).add(requests, drafts, seconds)
        nn, ny = a.nn + b.nn, a.ny + b.ny
        pull = nn / 100  # towards draft_seconds = request_seconds / 2
        nn, nu, uu = nn + pull / 4, b.nu - pull / 2, b.uu + pull
        self.draft_seconds = max(0.0, (nn * b.uy - nu * ny) / (nn * uu - nu * nu))
        self.request_seconds = max(0.0, (ny - nu * self.draft_seconds) / nn)

    def seconds(self, requests: int, drafts: float) -> float:
        """Seconds beside the forwards of a pass for so many requests, with so many `draft_units`."""
        return requests * self.request_seconds + drafts * self.draft_seconds


@dataclass(slots=True)
class Measured:
    """Figures of the last measured pass of any model, which stand in for those of models that were not measured."""

    ratio: float = 1.0  # measured seconds of its forwards over nominal ones
    overhead: Overhead = field(default_factory=Overhead)
    token_seconds: float = TOKEN_SECONDS
    slower: Mapping[str, float] = field(default_factory=dict)  # kernels -> as long the seconds beside forwards are


@dataclass(slots=True)
class Curve:
    """Seconds of a pass over some layers of a model, by rows and requests; those of the forward never fall with rows.

    Between measured points it is linear, beyond them it has the slope of the nominal line `fixed + rows * each`, and of
    the experts that so many rows read. Before any pass was measured it is that line, to the scale of other curves. The
    first passes count as no slower than that: a model that is seldom run is slow, and what is held to be slow is seldom
    run.
    """

    fixed: float
    each: float
    measured: Measured = field(default_factory=Measured)
    sized: bool = True  # whether the size of the model is known
    routed: float = 0.0  # seconds to read all experts of a mixture
    share: float = 0.0  # of them, that one row reads
    vocabulary: int = 0
    stored: float = 0.0  # bytes of its weights
    slower: float = 1.0  # as long as `measured` has it takes what is beside forwards
    points: dict[int, Point] = field(default_factory=dict)  # of forwards, two for each doubling of the rows
    overhead: Overhead = field(default_factory=Overhead)
    passes: int = 0
    reading: float = 0.0  # seconds of passes that read prompts, over the nominal ones
    _knots: list[tuple[float, float]] = field(init=False, default_factory=list)  # (rows, seconds), both rising
    _known: dict[int, float] = field(init=False, default_factory=dict)  # rows -> seconds by the knots

    @classmethod
    def of(cls, model: CausalModel, layers: int, measured: Measured) -> Curve:
        """The curve of a model's layers before any was measured."""
        stored = float(getattr(model, "weight_bytes", 0)) * layers / model.n_layers
        matrices = [part for part in getattr(model, "modules", tuple)() if hasattr(part, "in_features")]
        packed, weights = sum(map(bytes_of, matrices)), sum(part.in_features * part.out_features for part in matrices)
        kernels = getattr(model, "kernels", "")
        cached = min(stored, CACHE_BYTES)
        fixed = (NATIVE_LAYER_SECONDS if kernels else LAYER_SECONDS) * layers
        reading = CACHED_BYTE_SECONDS * cached + BYTE_SECONDS * (stored - cached)
        fixed += reading
        weights_per_byte = weights / packed if packed else 1 / 4
        experts, share = getattr(model, "routed", (0, 0.0))
        part = experts * layers / model.n_layers / stored if experts else 0.0
        active = stored * (1 - part * (1 - share))
        weight_seconds = KERNEL_WEIGHT_SECONDS.get(kernels, WEIGHT_SECONDS)
        if weights_per_byte <= 1 / 2 and kernels != "amx":
            weight_seconds = max(weight_seconds, FLOAT_WEIGHT_SECONDS)
        if weights_per_byte > 1 / 2 and kernels == "amx":
            weight_seconds = max(weight_seconds, AMX_NUMBER_SECONDS)
        elif weights_per_byte > 8 / 6:
            weight_seconds = max(weight_seconds, SMALL_WEIGHT_SECONDS)
        each = weight_seconds * active * weights_per_byte
        each += NATIVE_LAYER_ROW_SECONDS * layers if kernels else 0.0
        routed = reading * part
        vocabulary = getattr(model, "vocab_size", 0)
        sized = hasattr(model, "weight_bytes")
        slower = measured.slower.get(kernels, 1.0)
        return cls(fixed - routed, max(each, fixed / 100), measured, sized, routed, share, vocabulary, stored, slower)

    def nominal(self, rows: float) -> float:
        """Seconds of a forward as the size of the model has them."""
        return self.fixed + rows * self.each + self.routed * share_read(self.share, rows)

    def behind(self, other: Curve) -> float:
        """Nominal seconds that a pass takes more behind one of `other`, if that leaves none of these weights in caches.

        Each drafted layer is charged so, though later ones of a round may find them there again.
        """
        cached = min(self.stored, CACHE_BYTES) if other.stored > CACHE_BYTES else 0.0
        return (BYTE_SECONDS - CACHED_BYTE_SECONDS) * cached

    @property
    def piece_rows(self) -> int:
        """Rows of a pass that takes at most PIECE_FACTOR times as long as one over a single row.

        As the model's size has it, or fewer where prompts were measured to take longer than that. It is for a CPU,
        where rows cost what they compute: what is read in such pieces takes hardly longer than as a whole. Of a mixture
        all experts count for the single row, too: else a long prompt would read them for every few rows.
        """
        fixed = self.fixed + self.routed
        rows = max(1, int((PIECE_FACTOR * (fixed + self.each) - fixed) / self.each))
        slower = self.reading * self.nominal(1) / self.forward_seconds(1) if self.points else 1.0
        return max(1, int(rows / max(1.0, slower)))

    def add_reading(self, rows: int, seconds: float) -> None:
        """Note the seconds of the forwards of a pass that read prompts."""
        ratio = seconds / self.nominal(rows)
        self.reading += (ratio - self.reading) * (PASS_WEIGHT if self.reading else 1.0)

    def add(self, rows: int, seconds: float) -> None:
        """Note the seconds of a pass's forwards."""
        self.passes += 1
        self.measured.ratio = seconds / self.nominal(rows)
        key = round(2 * math.log2(rows))
        point = self.points.get(key)
        if point is None:
            point = self.points[key] = Point(rows, seconds)
        else:
            point.add(rows, seconds)
        moved = abs(point.seconds - point.curve_seconds)
        if point.count == KNOWN_PASSES or moved > CURVE_TOLERANCE * point.curve_seconds:
            point.curve_seconds = point.seconds
            self._known.clear()

    def add_overhead(self, requests: int, rows: int, drafting: int, seconds: float) -> None:
        """Note what a pass took beside its forwards, for so many requests with so many rows, and drafts of some."""
        self.overhead.add(requests, draft_units(requests, rows, drafting), seconds)
        if self.overhead.known:
            self.measured.overhead = self.overhead

    def seconds(self, rows: int, requests: int = 0, drafting: int | None = None) -> float:
        """Seconds of a pass over so many rows of so many requests, some with drafts; without requests the forward's."""
        if not requests:
            return self.forward_seconds(rows)
        units, seconds = draft_units(requests, rows, drafting), self.forward_seconds(rows)
        if self.overhead.known:
            return seconds + self.overhead.seconds(requests, units)
        sampling = requests * self.measured.token_seconds * self.vocabulary
        return seconds + self.slower * (self.measured.overhead.seconds(requests, units) + sampling)

    def forward_seconds(self, rows: int) -> float:
        """Seconds of a forward over so many rows."""
        if not self.points:
            return self.nominal(rows) * self.measured.ratio
        seconds = self._known.get(rows)
        if seconds is None:
            if not self._known:
                self._knots = self._rising()
            seconds = self._known[rows] = self._at(rows)
        return seconds if self.passes > WARM_UP_PASSES else min(seconds, self.nominal(rows) * self.measured.ratio)

    def marginal(self, rows: int, more: int) -> float:
        """Seconds that `more` rows add to a forward over `rows`."""
        return self.seconds(rows + more) - self.seconds(rows)

    def _at(self, rows: int) -> float:
        """Seconds on the line through the knots."""
        knots = self._knots
        place = bisect_right(knots, (rows, math.inf))
        if place in (0, len(knots)):  # beyond: the nominal line, to the scale of the nearest point
            at, seconds = knots[min(place, len(knots) - 1)]
            return seconds * self.nominal(rows) / self.nominal(at)
        (low, below), (high, above) = knots[place - 1], knots[place]
        return below + (above - below) * (rows - low) / (high - low)

    def _rising(self) -> list[tuple[float, float]]:
        """The points, neighbours that fall replaced by their mean (isotonic regression).

        A single pass, which may have been disturbed, counts where nothing better is known: else a plan that avoids so
        many rows for its sake would never measure them again.
        """
        seen = [point for point in self.points.values() if point.count >= KNOWN_PASSES] or self.points.values()
        known = sorted(seen, key=lambda point: point.rows)
        rising = isotonic([point.seconds for point in known], [min(MAX_POINT_WEIGHT, point.count) for point in known])
        return [(point.rows, seconds) for point, seconds in zip(known, rising, strict=True)]


@dataclass(slots=True)
class Costs:
    """The curves of all models of an engine, and of the parts of their layers that were run."""

    _curves: WeakKeyDictionary[CausalModel, dict[int, Curve]] = field(default_factory=WeakKeyDictionary)
    _measured: Measured = field(default_factory=Measured)

    def curve(self, model: CausalModel, layers: int | None = None) -> Curve:
        """The curve of so many layers of a model, all by default."""
        layers = model.n_layers if layers is None else layers
        curves = self._curves.setdefault(model, {})
        if layers not in curves:
            curves[layers] = Curve.of(model, layers, self._measured)
        return curves[layers]

    def add(self, model: CausalModel, rows: int, full: float, seconds: float) -> Curve | None:
        """Note the seconds of a pass's forwards, and return the curve that they belong to, if any.

        The `rows` come to `full` of full depth: each counts by the share of the layers that it ran through.
        """
        if not rows or not (layers := round(model.n_layers * full / rows)):
            return None
        curve = self.curve(model, layers)
        curve.add(rows, seconds)
        return curve


def _nominal(request_seconds: float, token_seconds: float) -> Costs:
    overhead = Overhead(request_seconds, DRAFTED_SECONDS)
    return Costs(_measured=Measured(overhead=overhead, token_seconds=token_seconds, slower=SLOWER))


# by sizes and kernels alone, of targets and of what drafts for them: nothing is ever added
NOMINAL_COSTS = _nominal(TARGET_REQUEST_SECONDS, TOKEN_SECONDS)
NOMINAL_DRAFT_COSTS = _nominal(DRAFT_REQUEST_SECONDS, DRAFT_TOKEN_SECONDS)
