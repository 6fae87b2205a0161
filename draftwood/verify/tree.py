"""Token-level verification of chains and trees: rejection sampling with residuals, and following a chosen token.

Knows acceptance probabilities and residuals (SpecInfer's multi-step speculative sampling, MCSD with and without
replacement, Leviathan et al. for a chain). Refuses to know where p and q came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from draftwood.core.forest import Forest, Proposal, Verdict
from draftwood.core.records import Kind
from draftwood.sampling import Penalties, SamplingParams, Streams, draw, warp


def acceptance(p: float, q: float) -> float:
    """min(1, p(x)/q(x)): the chance to accept a draw of chance q where p is wanted (DSBD §3.1 misprints q/p')."""
    return 1.0 if p >= q else p / q


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """norm(max(0, p - q)): what remains to be sampled from p [V] after a draw from q [V] was rejected.

    q None is the point mass at `token`. If nothing remains, p and q agree up to rounding and a rejection had
    probability zero: p itself is returned.
    """
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p - q).clamp_(min=0.0)
    total = rest.sum()
    return rest / total if float(total) > 0 else p


def without(q: Tensor, token: int) -> Tensor | None:
    """q [V] with one token removed, renormalised; None when nothing is left."""
    rest = q.clone()
    rest[token] = 0.0
    total = rest.sum()
    return rest / total if float(total) > 0 else None


def resolve(
    p: Tensor, proposals: Sequence[Proposal], token: Sequence[int], accept: Callable[[float], bool]
) -> tuple[int | None, Tensor]:
    """Verify one node's children (spec §2): (accepted child, p) or (None, the residual to draw from).

    p [V] is the warped target, `token` maps nodes to tokens, `accept(chance)` tosses a coin. The emitted token follows
    p exactly for iid draws, draws without replacement, several draft models and point masses.
    """
    rest = p
    for proposal in proposals:
        q = proposal.q
        for node in proposal.nodes:
            x = token[node]
            if proposal.q is not None and q is None:
                break  # the support is exhausted; such a draw cannot exist
            if accept(acceptance(float(rest[x]), 1.0 if q is None else float(q[x]))):
                return node, p
            rest = residual(rest, q, x)
            if not proposal.replacement and q is not None:
                q = without(q, x)
    return None, rest


class Rejection:
    """Walk down from the root, resolving the children of each accepted node; then one token from what remains."""

    name = "rejection"
    lossless = True

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict:
        """Verdict for a forest with one root; logits [len(forest) - fresh, V] of the target, rows in node order."""
        nodes = range(forest.fresh, len(forest))
        if penalties is not None:
            logits = penalties(logits, forest, nodes)
        if params.greedy:
            return follow(forest, logits.argmax(-1).tolist(), None)
        probs = warp(logits, params)
        node, warped = forest.roots[0], {}
        while True:
            p = probs[node - forest.fresh]
            child, rest = resolve(
                p, forest.proposals.get(node, ()), forest.token, lambda chance: streams.uniform("accept") < chance
            )
            x = draw(rest, streams.uniform("accept")) if child is None else forest.token[child]
            warped[node, x] = _log(float(p[x]))
            if child is None:
                return end_of_path(forest, node, x, warped)
            node = child


def end_of_path(forest: Forest, node: int, token: int, warped: dict[tuple[int, int], float]) -> Verdict:
    """The verdict that everything down to `node` is accepted and `token` comes next."""
    accepted = forest.depth[node]
    failed = node in forest.proposals
    kind: Kind = "corrected" if failed else "bonus" if forest.proposals else "plain"
    return Verdict([node], [token], [kind], warped, accepted, accepted + failed)


def follow(forest: Forest, chosen: Sequence[int], log_p: Tensor | None) -> Verdict:
    """Accept the path whose tokens equal the target's choice at every node; chosen[i] belongs to node fresh + i.

    log_p [n, V] are warped log-probabilities; None means that the choice has probability 1 (greedy).
    """
    node, warped = forest.roots[0], {}
    while True:
        row = node - forest.fresh
        x = chosen[row]
        warped[node, x] = 0.0 if log_p is None else float(log_p[row, x])
        child = forest.child.get((node, x))
        if child is None:
            return end_of_path(forest, node, x, warped)
        node = child


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf
