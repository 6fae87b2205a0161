"""Drafting with an EAGLE head: each token's draft from the target's state before it, or from the head's own.

Accepted drafts are read again, since the target's states of them are known then; the head's keys and values are
always those of a run over verified tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.draft.states import StateSource
from draftwood.models.base import Segment
from draftwood.runtime.session import Answer, Job, Row, Run, Session


@dataclass(slots=True, eq=False)
class EagleSession(Session):
    """A session of a head: no state comes before the first token of all, so that no other one sees it."""

    def job(self, run: Run, rows: list[Row], start: int, stop: int) -> Job:
        job = Session.job(self, run, rows, start, stop)
        of = job.segment
        seen = [max(0, count - 1) for count in of.seen]
        paths = [path or (() if see else (slot,)) for slot, see, path in zip(of.slots, seen, of.paths, strict=True)]
        job.segment = Segment(of.extent, of.slots, of.trunk[1:], seen, paths)
        return job


@dataclass(slots=True)
class EagleSource(StateSource):
    """Draft logits of a head, `reader`, over a target's states after several layers.

    A node is drafted below when its own state is known, so what lies between a node and the root is read first, layer
    by layer.
    """

    _own: dict[int, Tensor] = field(init=False, default_factory=dict)  # draft -> [W] what the head made of it

    before: ClassVar[int] = 1

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] after each node, layer by layer of the forest."""
        todo = set(nodes)
        for node in nodes:
            while (node := forest.parent[node]) != TRUNK and node not in self._own:
                todo.add(node)
        norm = self.reader.model.n_layers
        logits: dict[int, Tensor] = {}
        seen: dict[int, Tensor] = {}
        for depth in sorted({forest.depth[node] for node in todo}):
            layer = sorted(node for node in todo if forest.depth[node] == depth)
            answer = yield from self.ask(forest, layer, (norm - 1, norm) if hidden else (norm - 1,))
            like = next(iter(self._trunk.values()))
            own = answer.hidden[norm - 1].to(like.dtype)
            padded = torch.nn.functional.pad(own, (0, len(like) - own.shape[-1]), value=torch.nan)
            self._own.update(zip(layer, padded, strict=True))
            logits.update(zip(layer, answer.logits, strict=True))
            if hidden:
                seen.update(zip(layer, answer.hidden[norm], strict=True))
        rows = {norm: torch.stack([seen[node] for node in nodes])} if hidden else {}
        return Answer(torch.stack([logits[node] for node in nodes]), rows)

    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        """Verified tokens, and those behind them, get the target's state of the token before; others the head's."""
        given = {trunk_node(trunk_position(node) + 1): state for node, state in self._trunk.items()}
        last = self._trunk[trunk_node(len(forest.trunk) - 1)]
        given[trunk_node(0)] = torch.zeros_like(last)
        for node in nodes:
            while node != TRUNK and node not in given:
                parent = forest.parent[node]
                given[node] = last if parent == TRUNK else self._own[parent]
                node = parent
        return given

    def read(self, forest: Forest, nodes: Sequence[int]) -> Generator[Run, Answer, None]:
        """Have the target read verified tokens, whose states alone are needed."""
        if cells := self.missing(len(forest.trunk)):
            answer = yield Run(self.target, forest, cells, logits=False, hidden=self.reads)
            states = torch.cat([answer.hidden[layer] for layer in self.reads], -1)
            self._trunk.update(zip(cells, states, strict=True))

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`: the root's row stays, those of accepted drafts go, since they were read with own states."""
        self._own = {}
        self.reader.commit(trunk[:1], (), forest)
