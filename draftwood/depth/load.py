"""What a machine does beside a request, and what forwards cost then: the price of a draft.

Pure data; who measures it is no business of controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

GUESS = 0.1  # of a target forward: what a drafted layer costs where nothing is known of the models


def nothing() -> tuple[float, float]:
    """Where all may draft at once."""
    return 0.0, 0.0


@dataclass(slots=True)
class Load:
    """`draft(rows)` and `verify(rows)`: seconds of a drafted layer and of a target pass over so many rows.

    Of the requests that run, `drafting` decide like this one, which is among them; the other ones have `rows` rows in
    the target pass. The draft models take `behind()` seconds first where they have not seen what was verified, and
    `left` tokens may still come; `means` are those of both, of all requests that draft. `last` is the load when a
    single one of them is left; unless told, passes cost the same by rows.
    """

    draft: Callable[[int], float] = lambda rows: GUESS
    verify: Callable[[int], float] = lambda rows: 1.0
    drafting: int = 1
    others: int = 0
    rows: int = 0
    behind: Callable[[], float] = lambda: 0.0
    left: Callable[[], int] = lambda: 1 << 30
    means: Callable[[], tuple[float, float]] = nothing
    last: Callable[[], Load] | None = None

    counts: tuple[int, int, int] = field(init=False)  # requests that draft, others, and their rows

    def __post_init__(self) -> None:
        self.counts = self.drafting, self.others, self.rows

    @property
    def tokens(self) -> float:
        """Tokens that a target pass yields for others, per request that drafts: at least one each."""
        return self.others / self.drafting

    def steps(self, layers: Sequence[int]) -> tuple[list[float], list[float]]:
        """Seconds of drafts, and of verification, in a step, per request that drafts: if each drafts no layer, the
        first, the first two, ...; `layers`: rows.

        A drafted layer takes a forward over the one before it, the first over the root.
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
        """Of a step, all told; see `steps`."""
        return [sum(both) for both in zip(*self.steps(layers), strict=True)]

    @property
    def one(self) -> float:
        """Seconds that a single draft of a single request adds to a step without drafts."""
        rows = self.drafting + self.rows
        return self.draft(1) + self.verify(rows + 1) - self.verify(rows)

    def ratio(self, layers: Sequence[int]) -> float:
        """c: the marginal time of a layer, the mean of some, in times that a request without drafts takes of a step."""
        seconds = self.seconds(layers)
        return (seconds[-1] - seconds[0]) * (1 + self.tokens) / (len(layers) * seconds[0])


ALONE = Load()
