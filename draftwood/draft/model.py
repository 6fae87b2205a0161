"""Drafting with draft models: chains, k-configuration trees and expansions, one or several models, and with lookup.

A chain is the tree 1,1,1,...; MCSD's k-configuration and SpecInfer's expansion configuration are widths per layer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.core.row_tops import RowTops
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import Drafter, Drafting, Proposer, Source
from draftwood.draft.suffix import EarlierAnswers, SuffixLookup
from draftwood.runtime.session import Answer, Run
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import element


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

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        if depth.rests:
            propose.complete(forest)
            return
        chain = propose.certain(forest, forest.roots)
        copies = self._copies(forest, depth, limit, chain[0])
        frontiers: list[list[int]] = [[] for _ in self.sources]  # of each source, the ends of what it goes on from
        last = _Layer()
        for layer in range(limit):
            if layer == len(copies):
                frontiers = [list(chain) for _ in self.sources]
            drawing = any(frontiers)
            copied = [copies[layer - 1][1]] if 0 < layer <= len(copies) else ()
            ahead = () if drawing else [chance for _, chance in copies[layer:]]
            if not (drawing or ahead) or not depth.deeper(last.state(layer, copied, ahead)):
                break
            width = depth.width(self.widths[min(layer, len(self.widths) - 1)])
            last = _Layer()
            for i, source in enumerate(self.sources):
                children = yield from self._drawn(forest, source, frontiers[i], width, depth.needs, propose, last)
                frontiers[i] = propose.certain(forest, children)
                last.nodes += children
            if layer < len(copies):
                chain = propose.follow(forest, chain[0], copies[layer][0])
                last.nodes += chain
                if not chain or not forest.grows(chain[0]):
                    del copies[layer + 1 :]
            if not last.nodes:
                break
        propose.complete(forest)

    def _copies(self, forest: Forest, depth: DepthController, limit: int, node: int) -> list[tuple[int, float]]:
        """(token, chance) of each token that lookup drafts below a node; it drafts them before the sources begin."""
        if self.lookup is None or not forest.grows(node):
            return []
        copy = self.lookup.continuation(forest, limit, forest.path(node))
        if copy and self.sources:
            del copy[depth.copies([chance for _, chance in copy]) :]
        return copy

    def _drawn(
        self,
        forest: Forest,
        source: Source,
        frontier: Sequence[int],
        width: int,
        needs: frozenset[str],
        propose: Proposer,
        layer: _Layer,
    ) -> Generator[Run, Answer, list[int]]:
        """Append `width` children below each node of a source's frontier, and return them.

        What the depth controller `needs` to know of them is noted in `layer`.
        """
        nodes = [node for node in frontier if forest.grows(node)]
        if not nodes or max(map(forest.position, nodes)) >= source.context:
            return []
        answer = yield from source.answer(forest, nodes, "hidden" in needs)
        best = width - 1 if self.greedy else 0
        tops = answer.tops if answer.logits.shape[-1] == propose.vocab_size else None  # else logits are cut or padded
        children = propose(forest, nodes, answer.logits, width, self.replacement, best, tops)
        if needs - LOAD:
            layer.note(forest, nodes, children, propose.fit(answer.logits), answer.hidden.values(), tops)
        return children

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        for source in self.sources:
            source.commit(trunk, kept, forest)

    def share(self, earlier: EarlierAnswers) -> None:
        if self.lookup is not None:
            self.lookup.share(earlier)

    def finish(self, forest: Forest) -> None:
        if self.lookup is not None:
            self.lookup.finish(forest)


@dataclass(slots=True)
class _Layer:
    """A drafted layer, as depth controllers are told of it: see `DraftState`."""

    nodes: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # [n, V] of each source
    hidden: list[Tensor] = field(default_factory=list)  # [n, D] of each source
    tops: list[RowTops | None] = field(default_factory=list)  # of each source's logits
    picked: list[tuple[int, int]] = field(default_factory=list)
    drawn: list[float] = field(
        default_factory=list
    )  # probabilities that picked tokens were drawn with, where they were

    def note(
        self,
        forest: Forest,
        nodes: Sequence[int],
        children: Sequence[int],
        logits: Tensor,
        hidden: Iterable[Tensor],
        tops: RowTops | None,
    ) -> None:
        """Add what one source drew below `nodes` from its logits [n, V]."""
        rows = {node: row for row, node in enumerate(nodes, sum(map(len, self.logits)))}
        for child in children:
            if child not in forest.finished:
                parent, token = forest.parent[child], forest.token[child]
                self.picked.append((rows[parent], token))
                if (q := forest.proposals[parent][-1].q) is not None:
                    self.drawn.append(element(q, token))
        self.logits.append(logits)
        self.hidden += hidden
        self.tops.append(tops)

    def state(self, depth: int, copied: Sequence[float], ahead: Sequence[float]) -> DraftState:
        """The state after this layer, the last of `depth`; chances of lookup as `DraftState` has them."""
        drawn = self.drawn if len(self.drawn) == len(self.picked) else ()
        logits, hidden = _joined(self.logits), _joined(self.hidden)
        tops = self.tops[0] if len(self.tops) == 1 else None
        return DraftState(depth, self.nodes, logits, self.picked, hidden, copied, ahead, drawn, tops)


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The rows of all parts."""
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0] if parts else None
