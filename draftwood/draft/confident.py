"""Trees that grow where the draft is confident (EAGLE-2, Li et al. 2024, arXiv 2406.16858), layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import Drafter, Drafting, Proposer, Source
from draftwood.sampling.distributions import Distributions


@dataclass(slots=True)
class ConfidentDrafter(Drafter):
    """The confidence of a path is the product, over its nodes, of q's r-th largest chance for the r-th child.

    A layer has the `width` paths of largest confidence, of those that reach `least`, until there are `nodes` of them;
    so each node has as many children as of its tokens are among these. At temperature 0, in coupled verification and
    with `best` children are the most probable tokens. Otherwise they are drawn, and exact all the same: how many there
    will be is known from q and from what was drawn above, before they are drawn.
    """

    source: Source
    width: int
    nodes: int
    least: float = 0.0
    best: bool = False

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        if depth.rests:
            propose.complete(forest)
            return
        if self.best:
            propose = replace(propose, params=propose.params.model_copy(update={"temperature": 0.0}))
        frontier = propose.certain(forest, forest.roots)
        reach = dict.fromkeys(frontier, 1.0)
        state, hidden, left = DraftState(0), "hidden" in depth.needs, self.nodes
        for layer in range(limit):
            nodes = [node for node in frontier if forest.grows(node)]
            if not nodes or not left or max(map(forest.position, nodes)) >= self.source.context:
                break
            if not depth.deeper(state):
                break
            answer = yield from self.source.answer(forest, nodes, hidden)
            grown = self._grow(forest, nodes, answer.logits, reach, left, propose)
            left -= len(grown)
            state = DraftState(layer + 1, list(grown))
            if depth.needs - LOAD:
                row = {node: place for place, node in enumerate(nodes)}
                picked = [
                    (row[forest.parent[node]], forest.token[node]) for node in grown if node not in forest.finished
                ]
                read = next(iter(answer.hidden.values()), None)
                state = DraftState(layer + 1, list(grown), propose.fit(answer.logits), picked, read)
            ends = [propose.certain(forest, [node])[0] for node in grown]
            frontier, reach = ends, dict(zip(ends, grown.values(), strict=True))
        propose.complete(forest)

    def _grow(
        self,
        forest: Forest,
        nodes: Sequence[int],
        logits: Tensor,
        reach: dict[int, float],
        left: int,
        propose: Proposer,
    ) -> dict[int, float]:
        """Append a layer below `nodes`, of which `reach` is the confidence; its nodes, with theirs."""
        chances: dict[int, list[float]] = {}

        def counts(free: Sequence[int], q: Tensor) -> list[int]:
            top = q.topk(min(self.width, q.shape[-1]), -1).values  # [n, width]
            path = top * torch.tensor([[reach[node]] for node in free], dtype=top.dtype, device=top.device)
            chances.update(zip(free, path.tolist(), strict=True))
            ranked = sorted((value for row in chances.values() for value in row), reverse=True)
            place = min(self.width, left, len(ranked))
            bar = max(self.least, ranked[place - 1], 1e-30)
            counted, room = [], place
            for node in free:
                count = min(room, sum(value >= bar for value in chances[node]))
                room -= count
                counted.append(count)
            return counted

        propose(forest, nodes, logits, counts, False)
        grown: dict[int, float] = {}
        for node in nodes:
            below = dict.fromkeys(child for proposal in forest.proposals.get(node, ()) for child in proposal.nodes)
            grown.update(zip(below, chances.get(node, [reach[node]]), strict=False))
        return grown

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.source.commit(trunk, kept, forest)
