"""Traversal verification (Weng et al., arXiv 2505.12398); on a chain it is block verification (Sun et al., 2403.10444).

Token-level rejection throws a path away where one token of it fails. Traversal judges whole paths, the deepest first,
and keeps what the target's and the draft's probabilities of a path say together: it never accepts less on a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.sampling.rows import element, excess
from draftwood.verify.tree import acceptance, end_of_path, follow, next_token, without

Note = Callable[[int, float, float, float], None]  # (child, P(x), Q(x), acceptance of the path down to it)


def traverse(
    forest: Forest,
    node: int,
    p: Callable[[int], Tensor],
    accept: Callable[[int, float], bool],
    note: Note = lambda child, p, q, chance: None,
    prob: Callable[[int, int], float] | None = None,
) -> tuple[list[int], Tensor | None] | None:
    """The accepted path from `node` down and weights of the token after it [V], of any sum, or None: nothing here.

    No weights: the token follows p at the path's end.

    The reach of a node, a, is the acceptance of the path down to it; 1 at `node` itself, which always accepts. Whatever
    the tree below looks like, a path is returned with probability a, and then what it says and the token after it
    follow the target. So later siblings are as they were drawn, and the shape of a tree may depend on all that was
    drawn before: on depth controllers, on the drafts of other models, on ends of text.

    P, Q are the target's and the draft's distributions after `node`. A child x is visited with reach
    min(1, a P(x)/Q(x)); if it accepts nothing, P becomes max(0, a P - Q) / D, D its sum, and a becomes D / (D + 1 - a).
    Without replacement Q loses x. p(node) is T∘p, asked for where a draft was rejected; prob(node, x) is one number of
    it, by default read there; `accept(node, a)` tosses the coin.
    """
    if prob is None:
        prob = lambda node, token: element(p(node), token)  # noqa: E731
    path, visits = [node], [_visit(forest, node, p, prob, note, 1.0)]
    while visits:  # no recursion: a chain without a cap may be deeper than Python's stack
        try:
            child, chance = next(visits[-1])
        except StopIteration as left:
            if left.value is not None:
                rest, reach = left.value
                if accept(path[-1], reach):
                    return path, rest
            path.pop()
            visits.pop()
        else:
            path.append(child)
            visits.append(_visit(forest, child, p, prob, note, chance))
    return None


def _visit(
    forest: Forest,
    node: int,
    p: Callable[[int], Tensor],
    prob: Callable[[int, int], float],
    note: Note,
    reach: float,
) -> Generator[tuple[int, float], None, tuple[Tensor | None, float] | None]:
    """Yield a node's children with the reach to visit each with; it goes on where nothing was accepted there.

    Returns P, of any sum (None: p(node) itself), and the reach that are left; None where no reach is.
    """
    rest: Tensor | None = None
    total = 1.0  # P = rest / total
    proposals = forest.proposals.get(node, ())
    for proposal in proposals:
        q = proposal.q
        for child in proposal.nodes:
            x = forest.token[child]
            if proposal.q is not None and q is None:
                break  # the support is exhausted; such a draw cannot exist
            p_x = prob(node, x) if rest is None else element(rest, x) / total
            q_x = 1.0 if q is None else element(q, x)
            chance = acceptance(reach * p_x, q_x)
            note(child, p_x, q_x, chance)
            if chance > 0:
                yield child, chance
            left, mass = excess(p(node) if rest is None else rest, q, reach / total, x)
            if mass > 0:
                rest, total = left, mass
            if reach < 1:
                reach = mass / (mass + (1 - reach))
            if reach == 0:
                return None
            if not proposal.replacement and q is not None:
                q = without(q, x)
    return rest, reach


def first_path(forest: Forest) -> list[int]:
    """The root, its first child and so on, to the last that has drafts: all are visited if nothing is impossible."""
    path = [forest.roots[0]]
    while proposals := forest.proposals.get(path[-1]):
        path.append(proposals[0].nodes[0])
    return path[:-1] or path


class Traversal:
    """Visit paths from the first drawn leaf on; the first that is accepted ends the round, with one token more.

    Lossless for every tree that `Rejection` verifies. At temperature 0 the text is greedy's.
    """

    name = "traversal"
    lossless = True
    coupled = False

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        """Verdict for a forest with one root."""
        if target.params.greedy:
            return follow(forest, target.best, None)
        path, rest = self._ending(forest, target, streams)
        return end_of_path(forest, path, next_token(path[-1], rest, target, streams), target.log_prob)

    def _ending(self, forest: Forest, target: Distributions, streams: Streams) -> tuple[list[int], Tensor | None]:
        """As `traverse` from the root."""
        root = forest.roots[0]
        if not forest.proposals:  # plain decoding
            return [root], None
        target.prepare(first_path(forest))
        ending = traverse(
            forest, root, target.probs, lambda node, chance: streams.uniform("accept") < chance, prob=target.prob
        )
        assert ending is not None  # the root's reach is 1
        return ending
