"""MCSD's rule as its authors released it: every draft judged alone, the longest accepted of all paths wins. Lossy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood.core.forest import FINISHED, Forest, Proposal, Verdict
from draftwood.sampling.distributions import Distributions, Streams, draw
from draftwood.sampling.rows import largest
from draftwood.verify.initialised import several_roots, successive
from draftwood.verify.tree import Accept, coin, residual


def accepted_alone(p: Tensor, proposals: Sequence[Proposal], token: Sequence[int], accept: Accept) -> list[int]:
    """All of a node's children that min(1, p(x)/q(x)) accepts, in drawn order: a coin for each."""
    return [
        node
        for proposal in proposals
        for node in proposal.nodes
        if accept(float(p[token[node]]), 1.0 if proposal.q is None else float(proposal.q[token[node]]))
    ]


class LongestPath:
    """The released rule of target-initialised MCSD (§3.1, Figure 1 step 5, and the authors' code).

    A round begins with `initial` distinct tokens of the target, siblings are distinct draws. Each draft is accepted
    with min(1, p(x)/q(x)), whatever became of its siblings. The longest path of accepted drafts wins, of equals the
    first drawn; then the next `initial` tokens are drawn from what `behind` gives. At temperature 0 a draft is accepted
    if it is the target's best token, and rounds begin with the target's `initial` best. Lossy for every number of
    initial tokens: several children of a node have as many chances, and none pays for the others.
    """

    lossless = False
    coupled = False
    name = "longest path, lossy"

    def __init__(self, initial: int) -> None:
        if initial < 1:
            raise ValueError(f"initial is {initial}, but a round begins with at least one token of the target")
        self.initial = initial
        self.accepted: list[int] = []  # drafts of the last round whose coins accepted them, on whatever path

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """Verdict for a forest with any number of roots; an ended root is a path without drafts."""
        path = self._longest(forest, target, coin(streams))
        if path[-1] in forest.roots and path[-1] in forest.finished:
            return Verdict([path[-1]], [FINISHED], ["plain"], {})
        if target.params.greedy:
            tokens = largest(target.edited(path[-1:]), self.initial)[0]
        else:
            rest = self.behind(forest, path, target)
            tokens = successive(rest, self.initial, False, lambda left: draw(left, streams.uniform("accept")))
        return several_roots(forest, path, tokens, target)

    def _longest(self, forest: Forest, target: Distributions, accept: Accept) -> list[int]:
        """The longest path of accepted drafts, a root first."""
        best: list[int] = []
        self.accepted = []
        waiting = [[root] for root in reversed(dict.fromkeys(forest.roots))]
        while waiting:  # depth first, in drawn order
            path = waiting.pop()
            if len(path) > len(best):
                best = path
            proposals = forest.proposals.get(path[-1])
            if proposals:
                children = accepted_alone(target.probs(path[-1]), proposals, forest.token, accept)
                self.accepted += children
                waiting += [[*path, child] for child in reversed(dict.fromkeys(children))]
        return best

    def behind(self, forest: Forest, path: Sequence[int], target: Distributions) -> Tensor:
        """The distribution [V] of the next roots behind an accepted path.

        norm(max(0, p - q)) where drafts behind an accepted one were rejected, which were drawn from q; the target's own
        p where no draft was accepted, or none was there to be rejected.
        """
        p = target.probs(path[-1])
        drawn = [one for one in forest.proposals.get(path[-1], ()) if one.q is not None]
        return residual(p, drawn[-1].q, -1) if drawn and len(path) > 1 else p
