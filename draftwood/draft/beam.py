"""Drafting beams from any source of logits: layers of the draft's joint of beam and token (DSBD §3, Algorithm 1).

How a joint is made and drawn from is known by verify/joint.py, which the target's side uses too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, DraftedLayer, Forest
from draftwood.core.topology import trunk_node
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import MOST_FORCED, Drafter, Drafting, Proposer, Source
from draftwood.draft.blocks import BlockSource
from draftwood.draft.shared import SharedSession
from draftwood.sampling.distributions import Distributions
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.joint import Joint, Seeded
from draftwood.verify.layers import extended, joint_over


@dataclass(slots=True)
class BeamDrafter(Drafter):
    """`width` draws per layer, W_S of the paper: with replacement, without, or with `search` the best continuations.

    `root_weights` "draft" weighs the round's beams by the draft's own joint q(x), as the paper does; "target" by the
    target's p(x), which is as exact: any positive numbers known before drafting are. Where q(x) is not known, since the
    round before drafted nothing, p(x) takes its place. Beams whose next token a grammar leaves no choice about need no
    forward of the draft; a layer of one such beam alone counts as none.
    """

    source: Source
    width: int
    replacement: bool = True
    warp: Literal["joint", "token"] = "joint"
    root_weights: Literal["draft", "target"] = "draft"
    search: BeamSearch | None = None
    _weight: dict[int, float] = field(init=False, default_factory=dict)  # node -> log q of its generated part
    _row: dict[int, Tensor] = field(init=False, default_factory=dict)  # node -> [V] log q of the tokens after it
    _after: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)  # root -> parent, log q of parent

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        nodes: Sequence[int] = forest.roots
        layer, state = 0, DraftState(0)
        while True:
            live = [node for node in nodes if forest.grows(node)]
            forced = [node for node in live if propose.only(forest, node) is not None]
            alone = len(nodes) == len(forced) == 1 and len(forest.layers) - layer < MOST_FORCED
            if not live or not (alone or (layer < limit and depth.deeper(state))):
                break
            # where the target's own answer is known there is no better draft
            rows = {node: row for node, (row, _) in forest.known.items()}
            asked = [node for node in live if node not in rows and node not in forced]
            if asked and forest.position(live[0]) >= self.source.context:
                break
            if not forest.layers:
                asked += self._unknown(forest)
            if asked:
                answer = yield from self.source.answer(forest, asked)
                rows.update(zip(asked, propose.fit(answer.logits), strict=True))
            if not forest.layers:
                self._weigh(forest, rows)
            for node in forced:  # whatever its row says: one token is left of it
                if node not in rows:
                    rows[node] = next(iter(rows.values()), propose.blank).new_zeros(propose.vocab_size)
            fit = torch.log_softmax(propose.edited(forest, live, torch.stack([rows[node] for node in live])), -1)
            self._row.update(zip(live, fit, strict=True))
            drafted = self._drawn(forest, nodes, live, fit, propose)
            forest.layers.append(drafted)
            weights = extended(drafted.draws, self._weight, live, fit)
            for outcome, weight in weights.items():
                node = forest.add_outcome(*outcome)
                self._weight[node] = weight
                if outcome[0] in forced:
                    forest.forced.add(node)
            nodes = drafted.nodes
            if alone:
                drafted.certain = True
                continue
            layer += 1
            state = DraftState(layer, nodes)
            if depth.needs - LOAD:
                row = {node: row for row, node in enumerate(live)}
                drawn = [node for node in nodes if node not in forest.finished]
                picked = [(row[forest.parent[node]], forest.token[node]) for node in drawn]
                state = DraftState(layer, nodes, fit, picked)

    def _drawn(
        self, forest: Forest, nodes: Sequence[int], live: Sequence[int], log_q: Tensor, propose: Proposer
    ) -> DraftedLayer:
        """Draw the next layer below `nodes`; log_q [live nodes, V]."""
        q: Joint | None = None
        if self.search is None:
            q = joint_over(nodes, self._weight, forest, log_q, propose.params, self.warp)
            draws = q.draws(self.width, Seeded(propose.streams, "draft"), self.replacement)
        else:
            weights = torch.tensor([self._weight[node] for node in live], dtype=torch.float64, device=log_q.device)
            step = self.search.step(weights, log_q, lambda row, token: token in forest.end)
            draws = [(live[row], token) for row, token in step.live]
        return DraftedLayer(q, draws, list(dict.fromkeys(forest.add_outcome(*draw) for draw in draws)))

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        """Carry the roots' weights into the next round's `forest`."""
        self.source.commit(trunk, kept, forest)
        weight, row = self._weight, self._row
        self._weight, self._row, self._after = {}, {}, {}
        for root in forest.roots:
            if root < len(kept):  # a finished one that stays
                if kept[root] in weight:
                    self._weight[root] = weight[kept[root]]
                continue
            parent = forest.parent[root]
            before = trunk[-1] if parent == TRUNK else kept[parent]
            if before not in weight:
                continue
            if before in row:
                self._weight[root] = extended([(before, forest.token[root])], weight, [before], row[before][None])[
                    before, forest.token[root]
                ]
            else:  # a bonus: the draft has not seen its parent
                self._after[root] = parent if parent != TRUNK else trunk_node(len(forest.trunk) - 1), weight[before]

    def _unknown(self, forest: Forest) -> list[int]:
        """Parents whose draft logits are needed to weigh the roots; none where a run would undo what was verified.

        Nor where drafts hang below roots alone.
        """
        without = isinstance(self.source, SharedSession | BlockSource)
        if self.root_weights == "target" or len(forest.roots) == 1 or without:
            return []
        return list(dict.fromkeys(parent for parent, _ in self._after.values()))

    def _weigh(self, forest: Forest, rows: dict[int, Tensor]) -> None:
        """log q of every root; log p of all of them where one is not known, or impossible under the draft."""
        for root, (parent, weight) in self._after.items():
            if parent in rows:
                outcome = (parent, forest.token[root])
                log_q = torch.log_softmax(rows[parent][None], -1)
                self._weight[root] = extended([outcome], {parent: weight}, [parent], log_q)[outcome]
        known = all(self._weight.get(root, -math.inf) > -math.inf for root in forest.roots)
        if self.root_weights == "target" or not known:
            self._weight = {root: forest.score[root] for root in forest.roots}
