"""The load of a machine as a depth controller sees it: how many requests run, and what their passes cost then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NOMINAL_RATIO = 0.1  # time of a drafted layer, in target passes, where nothing is known of the models


@dataclass(slots=True)
class Load:
    """The requests that run at once, and functions that tell what passes for them take.

    `draft(rows)` and `verify(rows)` are the seconds of a drafted layer and of a target pass over so many rows, of all
    requests together. Of the requests, `drafting` decide like this one, which is among them; `others` do not, and have
    `rows` rows in the target pass. The draft models take `behind()` seconds to read what they have not seen before they
    can draft, and `left()` tokens may still come.
    """

    draft: Callable[[int], float] = lambda rows: NOMINAL_RATIO
    verify: Callable[[int], float] = lambda rows: 1.0
    drafting: int = 1
    others: int = 0
    rows: int = 0
    behind: Callable[[], float] = lambda: 0.0
    left: Callable[[], int] = lambda: 1 << 30

    counts: tuple[int, int, int] = field(init=False)  # (drafting, others, rows)

    def __post_init__(self) -> None:
        self.counts = self.drafting, self.others, self.rows

    @property
    def tokens(self) -> float:
        """Tokens that a target pass yields for the others, one each, per request that drafts."""
        return self.others / self.drafting

    def steps(self, layers: Sequence[int]) -> tuple[list[float], list[float]]:
        """Seconds of drafting and of verifying, per request that drafts, where each drafts 0, 1, ... of `layers`.

        `layers` are the rows of each layer. A layer takes a forward over the layer before it, the first over the root.
        """
        n, before = self.drafting, 1
        layer, verified = self.draft(n), n + self.rows
        drafts, passes = [0.0], [self.verify(verified) / n]
        for i, rows in enumerate(layers):
            above = layers[i - 1] if i else 1
            if above != before:
                layer, before = self.draft(n * above), above
            verified += n * rows
            drafts.append(drafts[-1] + layer / n)
            passes.append(self.verify(verified) / n)
        return drafts, passes

    def seconds(self, layers: Sequence[int]) -> list[float]:
        """Seconds of drafting and verifying together; see `steps`."""
        return [sum(both) for both in zip(*self.steps(layers), strict=True)]

    @property
    def one(self) -> float:
        """Seconds that a single draft of a single request adds to a step without drafts."""
        rows = self.drafting + self.rows
        return self.draft(1) + self.verify(rows + 1) - self.verify(rows)

    def ratio(self, layers: Sequence[int]) -> float:
        """c: the mean seconds that a layer adds to a step, over those of a step without drafts per token of it."""
        seconds = self.seconds(layers)
        return (seconds[-1] - seconds[0]) * (1 + self.tokens) / (len(layers) * seconds[0])


ALONE = Load()
