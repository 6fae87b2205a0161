"""Token-level verification of chains and trees: rejection sampling with residuals, and following a chosen token.

SpecInfer's multi-step speculative sampling, MCSD with and without replacement, Leviathan et al. for a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor

from draftwood.core.forest import Forest, Proposal, Verdict
from draftwood.core.records import Kind
from draftwood.sampling.distributions import Distributions, Streams, draw
from draftwood.sampling.rows import element, excess


def acceptance(p: float, q: float) -> float:
    """min(1, p(x)/q(x)): the chance to accept a draw of chance q where p is wanted (DSBD §3.1 misprints q/p')."""
    return 1.0 if p >= q else p / q


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """norm(max(0, p - q)): what remains to be sampled from p [V] after a draw from q [V] was rejected.

    q None is the point mass at `token`. If nothing remains, p and q agree up to rounding and a rejection had
    probability zero: p itself is returned.
    """
    rest, total = excess(p, q, 1.0, token)
    return rest / total if total > 0 else p


def without(q: Tensor, token: int) -> Tensor | None:
    """q [V] with one token removed, renormalised; None when nothing is left."""
    rest = q.clone()
    rest[token] = 0.0
    total = rest.sum()
    return rest / total if float(total) > 0 else None


Accept = Callable[[float, float], bool]  # tosses a coin of chance `acceptance(p, q)`
Resolve = Callable[[Tensor, Sequence[Proposal], Sequence[int], Accept], tuple[int | None, Tensor]]


def resolve(
    p: Tensor, proposals: Sequence[Proposal], token: Sequence[int], accept: Accept
) -> tuple[int | None, Tensor]:
    """Verify one node's children (spec §2): (accepted child, p) or (None, the residual to draw from).

    p [V] is the warped target, `token` maps nodes to tokens; `accept(p'(x), q(x))` is asked for each draw in turn. The
    emitted token follows p exactly for iid draws, draws without replacement, several draft models and point masses.
    """
    rest = p
    for proposal in proposals:
        q = proposal.q
        for node in proposal.nodes:
            x = token[node]
            if proposal.q is not None and q is None:
                break  # the support is exhausted; such a draw cannot exist
            if accept(element(rest, x), 1.0 if q is None else element(q, x)):
                return node, p
            rest = residual(rest, q, x)
            if not proposal.replacement and q is not None:
                q = without(q, x)
    return None, rest


def walk(
    forest: Forest, root: int, p: Callable[[int], Tensor], accept: Accept, rule: Resolve = resolve
) -> tuple[list[int], Tensor | None]:
    """The accepted path [root, ..., end] below one root, and what the token after its end is drawn from [V].

    p(node) is the warped target after a node. The rest is the residual where children were rejected; None: p(end).
    """
    path = [root]
    while proposals := forest.proposals.get(path[-1]):
        child, rest = rule(p(path[-1]), proposals, forest.token, accept)
        if child is None:
            return path, rest
        path.append(child)
    return path, None


class Rejection:
    """Walk down from the root, resolving the children of each accepted node; then one token from what remains."""

    name = "rejection"
    lossless = True
    coupled = False

    @property
    def rule(self) -> Resolve:
        """How a node's children are resolved."""
        return resolve

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """Verdict for a forest with one root."""
        if target.params.greedy:
            return follow(forest, target.best, None)
        path, rest = walk(forest, forest.roots[0], target.probs, coin(streams), self.rule)
        return end_of_path(forest, path, next_token(path[-1], rest, target, streams), target.log_prob)


def next_token(node: int, rest: Tensor | None, target: Distributions, streams: Streams) -> int:
    """The token after an accepted path that ends at a node: from weights [V] of any sum, or (None) from T∘p itself."""
    u = streams.uniform("accept")
    return target.draw(node, u) if rest is None else draw(rest, u)


def coin(streams: Streams) -> Accept:
    """Accept with chance min(1, p/q), by numbers of the stream 'accept'."""
    return lambda p, q: streams.uniform("accept") < acceptance(p, q)


def end_of_path(
    forest: Forest, path: Sequence[int], token: int, log_prob: Callable[[int, int], float] | None
) -> Verdict:
    """The verdict that a path of nodes from the root on is accepted and `token` comes next.

    `log_prob(node, token)` is log T∘p; None means that every token of it has probability 1 (greedy).
    """
    edges = [*((above, forest.token[below]) for above, below in pairwise(path)), (path[-1], token)]
    warped = {edge: 0.0 if log_prob is None else log_prob(*edge) for edge in edges}
    accepted, failed = len(path) - 1, path[-1] in forest.proposals
    return Verdict([path[-1]], [token], [kind_of(forest, failed)], warped, accepted, accepted + failed)


def kind_of(forest: Forest, failed: bool) -> Kind:
    """How the token after the accepted path came about; `failed`: drafts at its place were rejected."""
    drafts = len(forest.proposals) > len(forest.forced)  # others than those that a grammar leaves no choice about
    return "corrected" if failed else "bonus" if drafts else "plain"


def follow(forest: Forest, choice: Callable[[int], int], log_prob: Callable[[int, int], float] | None) -> Verdict:
    """Accept the path of drafts that are the target's choice after each node of it, then one choice more."""
    path = [forest.roots[0]]
    while True:
        token = choice(path[-1])
        child = forest.child.get((path[-1], token))
        if child is None:
            return end_of_path(forest, path, token, log_prob)
        path.append(child)
