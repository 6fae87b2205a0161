"""Predicted speed of trees of drafts from measured acceptance and costs, and a search for the best tree."""

from __future__ import annotations

import bisect
import math
from collections.abc import Container, Iterator, Mapping, Sequence

from draftwood.core.shape import Shape
from draftwood.util.isotonic import isotonic


def layer_acceptance(by_place: Sequence[float], width: int) -> float:
    """1 - prod_i (1 - a_i): that one of `width` siblings is accepted; a_i where the i-th is met, the last repeats."""
    if width and not by_place:
        raise ValueError("no acceptance was measured; give the chance of at least the first sibling")
    chance = 1.0
    for i in range(width):
        chance *= 1 - by_place[min(i, len(by_place) - 1)]
    return 1 - chance


RankAcceptance = Sequence[Sequence[float]]  # [layer][place among siblings]; the last layer repeats


def expected_tokens(shape: Shape, acceptance: RankAcceptance) -> float:
    """Tokens per round: 1 + sum_d (1 - (1 - prod_{l<=d} A_l)^initial), A_l as `layer_acceptance` (spec §4).

    The longest of `initial` independent paths is kept, and one token of the target follows it.
    """
    reach, tokens = 1.0, 1.0
    for layer, width in enumerate(shape.tree):
        reach *= layer_acceptance(acceptance[min(layer, len(acceptance) - 1)], width)
        tokens += 1 - (1 - reach) ** shape.initial
    return tokens


class Cost:
    """Seconds of a forward of K rows, from measurements: linear between them and beyond the last two."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or min(seconds) < 1 or not all(0 < s < math.inf for s in seconds.values()):
            raise ValueError("costs are seconds above 0 for 1 row or more; measure at least one")
        self.rows = sorted(seconds)
        self.seconds = [seconds[rows] for rows in self.rows]

    def __call__(self, rows: int) -> float:
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        right = min(max(bisect.bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        a, b = self.rows[right - 1], self.rows[right]
        low, high = self.seconds[right - 1], self.seconds[right]
        return max(low + (high - low) * (rows - a) / (b - a), min(low, high))

    def as_dict(self) -> dict[int, float]:
        """The measured seconds by rows."""
        return dict(zip(self.rows, self.seconds, strict=True))

    def scaled(self, factor: float) -> Cost:
        """The same costs times a factor."""
        return Cost({rows: factor * seconds for rows, seconds in self.as_dict().items()})

    def plus(self, fixed: float, per_row: float = 0.0) -> Cost:
        """The same costs with `fixed` seconds more for each forward and `per_row` more for each row."""
        beyond = [*self.rows, self.rows[-1] + 1]  # so that a single measurement rises too
        return Cost({rows: self(rows) + fixed + per_row * rows for rows in beyond})


def rising(seconds: Mapping[int, float]) -> dict[int, float]:
    """The nearest costs that do not fall with rows (isotonic regression): what falls is noise."""
    rows = sorted(seconds)
    return dict(zip(rows, isotonic([seconds[count] for count in rows]), strict=True))


def round_seconds(shape: Shape, target: Cost, draft: Cost) -> float:
    """One forward of all rows by the target, and per layer one of the layer above by the draft."""
    layers = shape.layers
    return target(sum(layers)) + math.fsum(draft(rows) for rows in layers[:-1])


def shapes(
    row_limit: int, max_depth: int, initial: Sequence[int] = (1,), widths: Container[int] | None = None
) -> Iterator[Shape]:
    """Every k-configuration of at most `row_limit` rows and `max_depth` drafted layers, of given or all `widths`."""

    def below(shape: Shape) -> Iterator[Shape]:
        yield shape
        if len(shape.tree) < max_depth:
            last, rows = shape.layers[-1], shape.rows
            for width in range(1, (row_limit - rows) // last + 1):
                if widths is not None and width not in widths:
                    continue
                yield from below(Shape((*shape.tree, width), shape.initial))

    for count in initial:
        if count <= row_limit:
            yield from below(Shape((), count))


def best_shapes(
    acceptance: RankAcceptance,
    target: Cost,
    draft: Cost,
    row_limit: int,
    max_depth: int = 8,
    initial: Sequence[int] = (1,),
    count: int = 1,
    widths: Container[int] | None = None,
) -> list[tuple[float, Shape]]:
    """The `count` best (predicted speed-up, shape), best first, by branch and bound.

    A branch is left when the best tree below it cannot be among them: a deeper tree costs at least as much as the tree
    that it extends, and gains at most one token per layer. `widths` are those that a layer may have, all by default.
    """
    if row_limit < min(initial, default=1):
        raise ValueError(f"{row_limit} rows cannot hold the tree's first tokens; allow more rows")
    floor = [min(target.seconds[i:]) for i in range(len(target.seconds))]  # costs that noise lets fall, made to rise
    rising = Cost(dict(zip(target.rows, floor, strict=True)))
    cheapest = min(draft.seconds)
    best: list[tuple[float, Shape]] = []

    def consider(shape: Shape, reach: float, tokens: float, spent: float) -> None:
        layers = shape.layers
        last, rows = layers[-1], sum(layers)
        best.append((tokens * target(1) / (spent + target(rows)), shape))
        best.sort(key=lambda entry: (-entry[0], entry[1].rows, entry[1].tree))
        del best[count:]
        depth = len(shape.tree)
        by_place = acceptance[min(depth, len(acceptance) - 1)]
        gain = 1 - (1 - reach) ** shape.initial
        if len(best) == count and not any(
            (tokens + more * gain) * target(1) / (spent + rising(rows + more * last) + more * cheapest)
            > best[-1][0] * (1 - 1e-12)
            for more in range(1, max_depth - depth + 1)
        ):
            return
        for width in range(1, (row_limit - rows) // last + 1 if depth < max_depth else 0):
            if widths is not None and width not in widths:
                continue
            grown = reach * layer_acceptance(by_place, width)
            consider(
                Shape((*shape.tree, width), shape.initial),
                grown,
                tokens + 1 - (1 - grown) ** shape.initial,
                spent + draft(last),
            )

    for first in initial:
        if first <= row_limit:
            consider(Shape((), first), 1.0, 1.0, 0.0)
    return best
