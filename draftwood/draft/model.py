"""Drafting with draft models: chains, k-configuration trees and expansions, one or several models.

A chain is the tree 1,1,1,...; MCSD's k-configuration and SpecInfer's expansion configuration are widths per layer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.depth import LOAD, NOTHING, DepthController, Growth
from draftwood.draft.base import Proposer, Source
from draftwood.runtime.session import Answer, Run
from draftwood.sampling import Distributions


@dataclass(slots=True)
class ModelDrafter:
    """Each source, mostly a draft model, grows its own tree of `widths[l]` children per node in layer l.

    Equal sequences are one node. The last width repeats when the depth controller asks for more layers. With several
    models (SpecInfer's merge-based trees) a node's children are the draws of the first model, then of the second, ...
    """

    sources: Sequence[Source]
    widths: tuple[int, ...]
    replacement: bool = True

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        frontiers = [forest.roots for _ in self.sources]
        hidden = "hidden" in depth.needs
        growth = Growth(0)
        layer = 0
        while layer < limit and depth.deeper(growth):
            width = depth.width(self.widths[min(layer, len(self.widths) - 1)])
            shown: list[int] = []
            looked: list[Tensor] = []
            read: list[Tensor] = []
            picked: list[tuple[int, int]] = []
            for i, source in enumerate(self.sources):
                nodes = [node for node in frontiers[i] if node not in forest.finished]
                if nodes and forest.position(nodes[0]) < source.context:
                    answer = yield from source.answer(forest, nodes, hidden)
                    frontiers[i] = propose(forest, nodes, answer.logits, width, self.replacement)
                    if depth.needs - LOAD:
                        rows = {node: sum(map(len, looked)) + row for row, node in enumerate(nodes)}
                        picked += [
                            (rows[forest.parent[node]], forest.token[node])
                            for node in frontiers[i]
                            if node not in forest.finished
                        ]
                        looked.append(propose.fit(answer.logits))
                        read += answer.hidden.values()
                else:
                    frontiers[i] = []
                shown += frontiers[i]
            if not shown:
                break
            layer += 1
            growth = Growth(
                layer, shown, torch.cat(looked) if looked else None, picked, torch.cat(read) if read else None
            )

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        for source in self.sources:
            source.commit(trunk, kept, forest)
