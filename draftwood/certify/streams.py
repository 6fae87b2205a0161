"""The random numbers themselves, which enumeration replaces: uniform to the last bit, independent, draws by their laws.

Numbers are laid out as a table: a row for each seed (or position, or number of a stream), a column for each purpose,
position, counter or token. All columns and all pairs of columns are tested, of one row and of neighbouring rows.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.certify.checks import RISK, Advance, Check
from draftwood.certify.distances import Sample, chi_square_tail
from draftwood.certify.references import ordered_draws
from draftwood.sampling.distributions import PURPOSES, Streams, draw_distinct, draw_iid
from draftwood.verify.joint import Seeded

UNIFORM_BYTES, NOISE_BYTES = (
    6,
    2,
)  # that are tested: 48 bits of uniforms, 16 of what float32 noise has
NOISE_TOKENS = 3
TESTED_POSITIONS = (7, 8)
SEEDS_PER_POSITION, SEEDS_PER_DRAW = (
    4,
    10,
)  # one of so many is tested, because these cost more
PROGRESS_ROWS = 1000  # between reports of progress
CPU = torch.device("cpu")

Table: TypeAlias = npt.NDArray[np.float64]  # [rows, columns], numbers that should be uniform in [0, 1)
Element = TypeVar("Element")
RandomRow: TypeAlias = tuple[list[float], list[Tensor]]  # of a row: uniform ones, arrival times
Test: TypeAlias = tuple[str, float]  # what was tested; the chance of a statistic as far out, on either side


def stream_check(seed: int, seeds: int, advance: Advance) -> Check:
    """Numbers of so many seeds, positions and counters: each test fails good ones with chance `RISK` / tests."""
    tests: list[Test] = []
    for uniform, noise, what in _tables(seed, seeds, advance):
        tests += _bytes(uniform, UNIFORM_BYTES, f"{what}: bits of uniform numbers")
        tests += _bytes(noise, NOISE_BYTES, f"{what}: bits of noise")
        tests += _repeated(uniform, f"{what}: numbers that occur twice")
        tests += _pairs(np.concatenate((uniform, noise), 1), what)
    tests += _draws(seed, -(-seeds // SEEDS_PER_DRAW), advance)
    min_chance = RISK / len(tests)
    failed = [what for what, chance in tests if chance < min_chance]
    worst = min(tests, key=lambda test: test[1])
    text = f"{seeds:,} seeds, {len(tests):,} tests: least p {worst[1]:.2g}, good numbers stay above {min_chance:.1g}"
    text += f" ({worst[0]})" if failed else ""
    figures = {"seeds": seeds, "tests": len(tests), "risk": RISK, "least_p": worst[1], "failed": failed}
    return Check("random numbers", "FAIL" if failed else "PASS", text, figures)


def _tables(seed: int, rows: int, advance: Advance) -> Iterator[tuple[Table, Table, str]]:
    """(uniform numbers, noise mapped to uniform numbers, what the rows are)."""
    every = range(seed, seed + rows)
    yield *_collected(_of_seed(one) for one in _told(every, advance)), "seeds"
    streams = Streams(seed)
    yield (
        *_collected(_at(streams, place, 1) for place in _told(range(-(-rows // SEEDS_PER_POSITION)), advance)),
        "positions",
    )
    streams.at(0)
    long = np.array([[streams.uniform("draft")] for _ in range(rows)])
    noise = _uniform(streams.arrivals(0, rows, CPU)[:, None])
    advance()
    yield long, noise, "one stream"


def _told(items: Iterable[Element], advance: Advance) -> Iterator[Element]:
    """The items; `advance` is called now and then."""
    for number, item in enumerate(items, 1):
        yield item
        if number % PROGRESS_ROWS == 0:
            advance()


def _collected(rows: Iterable[RandomRow]) -> tuple[Table, Table]:
    """The rows as tables: of uniform numbers, and of noise."""
    uniform: list[list[float]] = []
    arrivals: list[Tensor] = []
    for numbers, times in rows:
        uniform.append(numbers)
        arrivals += times
    return np.array(uniform), _uniform(torch.stack(arrivals)).reshape(len(uniform), -1)


def _of_seed(seed: int) -> RandomRow:
    """Numbers of one seed at neighbouring positions, and the noise of the first."""
    streams = Streams(seed)
    uniform, arrivals = _at(streams, TESTED_POSITIONS[0], 2)
    streams.at(TESTED_POSITIONS[1])
    return uniform + _round(streams, 2), arrivals


def _at(streams: Streams, position: int, counters: int) -> RandomRow:
    """Numbers of the round at a position, then the noise of the position."""
    streams.at(position)
    return _round(streams, counters), [streams.arrivals(position, NOISE_TOKENS, CPU)]


def _round(streams: Streams, counters: int) -> list[float]:
    """So many uniform numbers of each purpose."""
    return [streams.uniform(purpose) for _ in range(counters) for purpose in PURPOSES if purpose != "noise"]


def _uniform(exponential: Tensor) -> Table:
    return -np.expm1(-exponential.double().numpy())  # type: ignore[no-any-return]


def _chance(statistic: float, freedom: int) -> float:
    """The two-sided p-value of a chi-square statistic: numbers may be too regular, too."""
    tail = chi_square_tail(statistic, freedom)
    return min(1.0, 2 * min(tail, 1 - tail)) if freedom else 1.0


def _even(counts: npt.NDArray[np.int64]) -> float:
    """The chance of counts of cells that are equally probable."""
    expected = counts.sum() / len(counts)
    return _chance(float(((counts - expected) ** 2).sum() / expected), len(counts) - 1)


def _bytes(table: Table, count: int, what: str) -> Iterator[Test]:
    """Each byte of the numbers is uniform, so they have enough bits."""
    if not ((table >= 0) & (table < 1)).all():
        yield f"{what}: not in [0, 1)", 0.0
        return
    for byte in range(count):
        values = (table * 256.0 ** (byte + 1)).astype(np.int64) & 255
        yield f"{what}, byte {byte + 1}", _even(np.bincount(values.ravel(), minlength=256))


def _repeated(table: Table, what: str) -> Iterator[Test]:
    """No more numbers are equal than by chance: streams do not overlap, however they are shifted."""
    equal = table.size - len(np.unique(table))
    mean = table.size**2 / 2 / 256.0**UNIFORM_BYTES
    fewer = math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(min(equal, 20)))
    yield what, 0.0 if equal > 20 else max(0.0, 1 - fewer)


def _pairs(table: Table, what: str) -> Iterator[Test]:
    """Two columns of a row, and of a row and the next, are independent."""
    rows, columns = table.shape
    side = 16 if rows >= 10_000 else 8
    cells = np.clip((table * side).astype(np.int64), 0, side - 1).T.copy()
    size = side * side
    for a, b in itertools.combinations(range(columns), 2):
        yield f"{what}: columns {a}, {b}", _even(np.bincount(cells[a] * side + cells[b], minlength=size))
    for a, b in itertools.product(range(columns), repeat=2):
        counts = np.bincount(cells[a, :-1] * side + cells[b, 1:], minlength=size)
        yield f"{what}: column {a}, and {b} of the next", _even(counts)


TESTED_LAWS = ((0.5, 0.3, 0.2, 0.0, 0.0), (0.1, 0.2, 0.3, 0.2, 0.2), (0.9, 0.06, 0.04, 0.0, 0.0))  # of draws


def _draws(seed: int, seeds: int, advance: Advance) -> Iterator[Test]:
    """Draws of every kind by their exact laws: of several rows together, of drafts and of beams."""
    rows = torch.tensor(TESTED_LAWS, dtype=torch.float32)
    kinds: dict[str, Counter[Any]] = {}

    def count(what: str, outcome: Any) -> None:
        kinds.setdefault(what, Counter())[outcome] += 1

    for one in _told(range(seed, seed + seeds), advance):
        streams = Streams(one)
        streams.at(TESTED_POSITIONS[0])
        distinct = draw_distinct(rows, 3, streams)
        for number, drawn in enumerate(distinct):
            count(f"distinct {number}", tuple(drawn))
        count("distinct 0, 1", (distinct[0][0], distinct[1][0]))
        count("iid 1", tuple(draw_iid(rows[1:2], 2, streams)[0]))
        beams = Seeded(streams, "accept")
        count("beams distinct 1", tuple(beams.distinct(rows[1].double(), 2)))
        count("beams iid 0", (*beams.picks(rows[0].double(), 2), beams.pick(rows[0].double())))
        count("coins", (beams.coin(0.3), beams.coin(0.3)))
    possible = [{token: p for token, p in enumerate(row) if p > 0} for row in TESTED_LAWS]
    laws: dict[str, dict[Any, float]] = {
        **{f"distinct {number}": ordered_draws(possible[number], 3, False) for number in range(len(TESTED_LAWS))},
        "distinct 0, 1": {(a, b): p * q for a, p in possible[0].items() for b, q in possible[1].items()},
        "iid 1": ordered_draws(possible[1], 2, True),
        "beams distinct 1": ordered_draws(possible[1], 2, False),
        "beams iid 0": ordered_draws(possible[0], 3, True),
        "coins": {(a, b): (0.3 if a else 0.7) * (0.3 if b else 0.7) for a in (True, False) for b in (True, False)},
    }
    for what, law in laws.items():
        statistic, freedom = Sample(law, kinds[what]).pearson()
        yield f"draws, {what}", 0.0 if math.isinf(statistic) else _chance(statistic, freedom)
