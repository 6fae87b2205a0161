"""Drafting with Medusa heads: a tree of candidates from one hidden state of the target (Cai et al. 2024).

Head k predicts the token k places after the next root from the hidden state that the root was chosen from. It sees
nothing in between, so all nodes of a layer share one distribution; verification is told just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import product
from typing import ClassVar

from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.depth import LOAD, DepthController, DraftState
from draftwood.draft.base import Drafter, Drafting, Proposer
from draftwood.runtime.session import Run, Session
from draftwood.sampling.distributions import Distributions

Choices = Mapping[tuple[int, ...], int]  # path of ranks from the root, () for itself -> children there


def regular(widths: Sequence[int]) -> Choices:
    """The tree of all combinations of the best `widths[k]` of head k: children of every path."""
    paths = [path for layer in range(len(widths)) for path in product(*map(range, widths[:layer]))]
    return {path: widths[len(path)] for path in paths}


def sparse(paths: Sequence[Sequence[int]]) -> Choices:
    """The tree of some paths of ranks, as Medusa gives it; ValueError where a part of a path is not among them."""
    known = {tuple(path) for path in paths}
    counts: dict[tuple[int, ...], int] = {}
    for path in sorted(known):
        if not path or min(path) < 0:
            raise ValueError("a path is one rank or more, from 0, such as 0.0.1")
        before = path[:-1] if path[-1] == 0 else (*path[:-1], path[-1] - 1)
        if before and before not in known:
            text, missing = (".".join(map(str, one)) for one in (path, before))
            raise ValueError(f"the path {text} needs the path {missing} too: ranks are taken in order")
        counts[path[:-1]] = max(counts.get(path[:-1], 0), path[-1] + 1)
    return counts


def likeliest(chances: Sequence[Sequence[float]], nodes: int) -> Choices:
    """The tree of the `nodes` paths that are most often right, where head k's token of rank r is with chances[k][r].

    A path's chance is the product of its ranks' (Cai et al. 2024, "optimized tree construction"): an estimate, since
    heads err together. Chances must not rise with the rank.
    """
    open_paths: list[tuple[float, int, tuple[int, ...]]] = []
    if chances and chances[0]:
        open_paths.append((-chances[0][0], 1, (0,)))
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(nodes):
        if not open_paths:
            break
        chance, depth, path = heappop(open_paths)
        counts[path[:-1]] = path[-1] + 1
        rank, reach = path[-1] + 1, -chance
        before = reach / chances[depth - 1][path[-1]]
        if rank < len(chances[depth - 1]) and chances[depth - 1][rank] > 0:
            heappush(open_paths, (-before * chances[depth - 1][rank], depth, (*path[:-1], rank)))
        if depth < len(chances) and chances[depth][0] > 0:
            heappush(open_paths, (-reach * chances[depth][0], depth + 1, (*path, 0)))
    return counts


@dataclass(slots=True)
class HeadsDrafter(Drafter):
    """Each round's tree hangs on the root; a node of path `p` gets `tree[p]` distinct children of its layer's head.

    A round needs the target's hidden state at the node before its root, so the first one drafts nothing. With `best`
    children are a head's most probable tokens, point masses to verification, in sampling too; otherwise they are drawn.
    `heads` computes all heads in one run per round, as a sequence of one cell, which is forgotten at once.
    """

    heads: Session
    tree: Choices
    best: bool = False
    _hidden: Tensor | None = field(init=False, default=None)  # [D] at the node before the root

    needs: ClassVar[frozenset[str]] = frozenset({"target"})

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        yield from self._draft(forest, depth, limit, propose)
        propose.complete(forest)

    def _draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        state = DraftState(0)
        if self._hidden is None or limit < 1 or not depth.deeper(state):
            return
        if self.best:
            propose = replace(propose, params=propose.params.model_copy(update={"temperature": 0.0}))
        alone = Forest.from_prompt([0])
        answer = yield Run(self.heads, alone, alone.roots, given={alone.roots[0]: self._hidden})
        self.heads.commit([], [], alone)
        logits = answer.logits.view(-1, 1, propose.vocab_size)  # [K, 1, V]
        frontier: list[tuple[int, tuple[int, ...]]] = [(forest.roots[0], ())]
        for layer in range(min(limit, len(logits))):
            if layer and not depth.deeper(state):
                break
            frontier = self._expanded(forest, frontier, logits[layer], propose)
            if not frontier:
                break
            nodes = [node for node, _ in frontier]
            state = DraftState(layer + 1, nodes)
            if depth.needs - LOAD:
                picked = [(0, forest.token[node]) for node in nodes if node not in forest.finished]
                state = DraftState(layer + 1, nodes, propose.fit(logits[layer]), picked, self._hidden[None])

    def _expanded(
        self, forest: Forest, frontier: Sequence[tuple[int, tuple[int, ...]]], row: Tensor, propose: Proposer
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Append the children of a layer's nodes, all from row [1, V]; they and their paths, in the order of nodes."""
        by_count: dict[int, list[int]] = {}
        for node, path in frontier:
            if node not in forest.finished and self.tree.get(path):
                by_count.setdefault(self.tree[path], []).append(node)
        for count, nodes in by_count.items():
            propose(forest, nodes, row.expand(len(nodes), -1), count, False)
        grown = []
        for node, path in frontier:
            for proposal in forest.proposals.get(node, ()):
                grown += [(child, (*path, rank)) for rank, child in enumerate(dict.fromkeys(proposal.nodes))]
        return grown

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        """Take the hidden state of the last node that joined the trunk: the next root hangs on it."""
        if trunk:
            self._hidden = target.hidden(trunk[-1])
