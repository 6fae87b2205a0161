"""The cost of drafting: the load of a machine with the time of passes, and the speed-up by a formula (MCSD Eq. 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftwood.core.records import Round

NOMINAL_RATIO = 0.1  # time of a drafted layer, in target passes, where nothing is known of the models
READ_SECONDS = 1e-4  # nominal ones of a round that shows what drafting reads of the target
FIRST_LAYERS = 4  # that a round is taken to draft before one has


@dataclass(slots=True)
class Load:
    """The requests that run at once, and functions that tell what passes for them take.

    `draft(rows)` and `verify(rows)` are the seconds of a drafted layer and of a target pass over so many rows, of all
    requests together. Of the requests, `drafting` decide like this one, which is among them; `others` do not, and have
    `rows` rows in the target pass. The draft models take `catch_up_seconds()` to read what they have not seen, before
    they can draft, and `tokens_left()` tokens may still come. A round without drafts takes `read_seconds` more where
    the target shows what drafting reads of it. With `one_pass` the first layer's time is that of all. Each request that
    drafts has `hypotheses` beams, whose rows a target pass has without any drafts.
    """

    draft: Callable[[int], float] = lambda rows: NOMINAL_RATIO
    verify: Callable[[int], float] = lambda rows: 1.0
    drafting: int = 1
    others: int = 0
    rows: int = 0
    catch_up_seconds: Callable[[], float] = lambda: 0.0
    tokens_left: Callable[[], int] = lambda: 1 << 30
    read_seconds: float = 0.0
    one_pass: bool = False
    hypotheses: int = 1

    counts: tuple[int, int, int] = field(init=False)  # (drafting, others, rows)

    def __post_init__(self) -> None:
        self.counts = self.drafting, self.others, self.rows

    @property
    def tokens(self) -> float:
        """Tokens that a target pass yields for the others, one each, per request that drafts."""
        return self.others / self.drafting

    def steps(self, layers: Sequence[int]) -> tuple[list[float], list[float]]:
        """Seconds of drafting and of verifying, per request that drafts, where each drafts 0, 1, ... of `layers`.

        `layers` are the rows of each layer. A layer takes a forward over the layer before it, the first over the roots;
        with `one_pass` only that.
        """
        n, before = self.drafting, self.hypotheses
        layer, verified = self.draft(n * before), n * before + self.rows
        drafts, passes = [0.0], [self.verify(verified) / n]
        for i, rows in enumerate(layers):
            above = layers[i - 1] if i else self.hypotheses
            if above != before and not self.one_pass:
                layer, before = self.draft(n * above), above
            verified += n * rows
            drafts.append(layer / n if self.one_pass else drafts[-1] + layer / n)
            passes.append(self.verify(verified) / n)
        return drafts, passes

    def seconds(self, layers: Sequence[int]) -> list[float]:
        """Seconds of drafting and verifying together; see `steps`."""
        return [sum(both) for both in zip(*self.steps(layers), strict=True)]

    @property
    def one(self) -> float:
        """Seconds that a draft for each hypothesis of a single request adds to a step without drafts."""
        rows, more = self.drafting * self.hypotheses + self.rows, self.hypotheses
        return self.draft(more) + self.verify(rows + more) - self.verify(rows)

    def ratio(self, layers: Sequence[int]) -> float:
        """c: the mean seconds that a layer adds to a step, over those of a step without drafts per token of it."""
        seconds = self.seconds(layers)
        return (seconds[-1] - seconds[0]) * (1 + self.tokens) / (len(layers) * seconds[0])


ALONE = Load()


def improvement(rate: float, gamma: int, c: float) -> float:
    """IF(a, gamma, c) = (1 - a^(gamma+1)) / ((1 - a)(c gamma + 1)), MCSD Eq. 1; a is `rate`.

    The expected speed-up of rounds of `gamma` drafts over plain decoding, where each draft is accepted with the
    chance `rate`, independently, and takes `c` target forwards.
    """
    if not 0 <= rate <= 1 or gamma < 0 or c < 0:
        raise ValueError(f"rate must be in 0..1, gamma and c at least 0, not {rate}, {gamma}, {c}")
    tokens = gamma + 1.0 if rate == 1 else (1 - rate ** (gamma + 1)) / (1 - rate)
    return tokens / (c * gamma + 1)


def best_depth(rate: float, most: int, c: float) -> int:
    """The gamma in 0..most of the largest IF(a, gamma, c), of equals the smallest.

    IF rises and then falls: its numerator is concave in gamma, its denominator linear. So the first fall ends it.
    """
    tokens = best = reach = 1.0
    for gamma in range(1, most + 1):
        reach *= rate
        tokens += reach
        gain = tokens / (c * gamma + 1)
        if gain <= best:
            return gamma - 1
        best = gain
    return most


@dataclass(slots=True)
class DraftCost:
    """c: what a drafted layer costs in target forwards: `fixed`, or the marginal time at the present load."""

    fixed: float | None = None
    ratio: float = field(init=False, default=NOMINAL_RATIO)
    _rows: int = field(init=False, default=1)  # of a layer
    _layers: int = field(init=False, default=FIRST_LAYERS)  # that a round is likely to draft

    def __post_init__(self) -> None:
        self.ratio = NOMINAL_RATIO if self.fixed is None else self.fixed

    def start(self, load: Load) -> None:
        """A round begins at a load."""
        if self.fixed is None:
            self.ratio = load.ratio([self._rows] * self._layers)

    def add(self, round_: Round, layers: int) -> None:
        """Follow a round that drafted `layers` layers."""
        if layers:
            self._rows, self._layers = max(1, round(round_.drafted / layers)), layers
