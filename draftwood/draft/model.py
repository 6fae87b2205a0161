"""Drafting with draft models: chains, k-configuration trees and expansions, one or several models, and with lookup.

A chain is the tree 1,1,1,...; MCSD's k-configuration and SpecInfer's expansion configuration are widths per layer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import Drafter, Proposer, Source
from draftwood.draft.suffix import EarlierAnswers, SuffixLookup
from draftwood.runtime.session import Answer, Run
from draftwood.sampling.distributions import Distributions, element


@dataclass(slots=True)
class ModelDrafter(Drafter):
    """Each source, mostly a draft model, grows its own tree of `widths[l]` children per node in layer l.

    Equal sequences are one node. The last width repeats when the depth controller asks for more layers. What a grammar
    leaves no choice about costs neither a layer nor a forward: layers hang on the ends of such chains. With several
    models (SpecInfer's merge-based trees) a node's children are the draws of the first model, then of the second, ...

    What `lookup` finds is a chain of point masses, which costs nothing but rows of the target. The depth controller
    says how much of it is better than what the models would draft; these go on at its end, be that the root.
    """

    sources: Sequence[Source]
    widths: tuple[int, ...] = (1,)
    replacement: bool = True
    lookup: SuffixLookup | None = None
    greedy: bool = False  # all siblings but one are the most probable tokens

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        if depth.rests:
            propose.complete(forest)
            return
        chain = propose.certain(forest, forest.roots)
        found: list[tuple[int, float]] = []
        if self.lookup is not None and forest.grows(chain[0]):
            found = self.lookup.continuation(forest, limit, forest.path(chain[0]))
        if found and self.sources:
            del found[depth.copies([chance for _, chance in found]) :]
        frontiers: list[list[int]] = [[] for _ in self.sources]
        hidden, looks = "hidden" in depth.needs, bool(depth.needs - LOAD)
        shown: Sequence[int] = ()
        looked: list[Tensor] = []
        read: list[Tensor] = []
        picked: list[tuple[int, int]] = []
        drawn: list[float] = []
        for layer in range(limit):
            if layer == len(found):
                frontiers = [list(chain) for _ in self.sources]
            drawing = any(frontiers)
            state = DraftState(
                layer,
                shown,
                _joined(looked),
                picked,
                _joined(read),
                [found[layer - 1][1]] if 0 < layer <= len(found) else (),
                () if drawing else [chance for _, chance in found[layer:]],
                drawn if len(drawn) == len(picked) else (),
            )
            if not (drawing or state.ahead) or not depth.deeper(state):
                break
            width = depth.width(self.widths[min(layer, len(self.widths) - 1)])
            shown, looked, read, picked, drawn = [], [], [], [], []
            for i, source in enumerate(self.sources):
                nodes = [node for node in frontiers[i] if forest.grows(node)]
                children: list[int] = []
                if nodes and max(map(forest.position, nodes)) < source.context:
                    answer = yield from source.answer(forest, nodes, hidden)
                    children = propose(
                        forest, nodes, answer.logits, width, self.replacement, width - 1 if self.greedy else 0
                    )
                    if looks:
                        rows = {node: row for row, node in enumerate(nodes, sum(map(len, looked)))}
                        for node in children:
                            if node not in forest.finished:
                                parent, token = forest.parent[node], forest.token[node]
                                picked.append((rows[parent], token))
                                if (q := forest.proposals[parent][-1].q) is not None:
                                    drawn.append(element(q, token))
                        looked.append(propose.fit(answer.logits))
                        read += answer.hidden.values()
                frontiers[i] = propose.certain(forest, children)
                shown += children
            if layer < len(found):
                chain = propose.follow(forest, chain[0], found[layer][0])
                shown += chain
                if not chain or not forest.grows(chain[0]):
                    del found[layer + 1 :]
            if not shown:
                break
        propose.complete(forest)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        for source in self.sources:
            source.commit(trunk, kept, forest)

    def share(self, earlier: EarlierAnswers) -> None:
        if self.lookup is not None:
            self.lookup.share(earlier)

    def finish(self, forest: Forest) -> None:
        if self.lookup is not None:
            self.lookup.finish(forest)


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The rows of all parts."""
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0] if parts else None
