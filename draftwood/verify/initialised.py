"""Verifying target-initialised trees: several roots drawn from the target, of which the longest accepted path wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from draftwood.core.forest import FINISHED, Forest, Verdict
from draftwood.sampling.distributions import Distributions, Streams, draw
from draftwood.verify.tree import coin, end_of_path, walk, without


def longest(lengths: Sequence[int]) -> int:
    """The place of the longest path; of equals the first drawn."""
    return max(range(len(lengths)), key=lambda i: (lengths[i], -i))


def successive(rest: Tensor, count: int, replacement: bool, choose: Callable[[Tensor], int]) -> list[int]:
    """The next roots' tokens: `count` draws from weights [V], equal ones once, in order of first appearance.

    Without replacement drawn tokens are out, and fewer come back where the support is smaller.
    """
    drawn: list[int] = []
    left: Tensor | None = rest
    for _ in range(count):
        if left is None:
            break
        token = choose(left)
        drawn.append(token)
        if count > 1 and not replacement:
            left = without(left, token)
    return list(dict.fromkeys(drawn))


def several_roots(forest: Forest, path: Sequence[int], tokens: Sequence[int], target: Distributions) -> Verdict:
    """The verdict that a path is accepted and each of `tokens` may come next: the roots of the next round."""
    verdict = end_of_path(forest, path, tokens[0], target.log_prob)
    count = len(tokens)
    warped = {(path[-1], token): target.log_prob(path[-1], token) for token in tokens}
    return replace(
        verdict,
        parent=verdict.parent * count,
        token=list(tokens),
        kind=verdict.kind * count,
        warped={**verdict.warped, **warped},
    )


class Initialised:
    """Target-initialised verification (MCSD §3.1): roots are alternatives for one token, drawn from the target.

    Each root's tree is verified as ever (spec §2); the longest accepted path wins, and `initial` tokens drawn from
    what remains at its end are the next roots. One root is exact, the same numbers as `Rejection`. More are lossy: a
    token is kept the rather, the more of what follows was foreseen. At temperature 0 all draws are the
    argmax, so there is one root and the text is greedy's.
    """

    def __init__(self, initial: int, replacement: bool = False) -> None:
        if initial < 1:
            raise ValueError(f"initial is {initial}, but a round begins with at least one token of the target")
        self.initial = initial
        self.replacement = replacement
        self.lossless = initial == 1
        self.coupled = False
        self.name = "target-initialised" if self.lossless else "target-initialised, lossy"

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """Verdict for a forest with any number of roots; an ended root is a path without drafts."""
        accept = coin(streams)
        walks = [walk(forest, root, target.probs, accept) for root in dict.fromkeys(forest.roots)]
        path, rest = walks[longest([len(path) for path, _ in walks])]
        if path[-1] in forest.roots and path[-1] in forest.finished:
            return Verdict([path[-1]], [FINISHED], ["plain"], {})
        if rest is None:
            rest = target.probs(path[-1])
        tokens = successive(rest, self.initial, self.replacement, lambda left: draw(left, streams.uniform("accept")))
        return several_roots(forest, path, tokens, target)
