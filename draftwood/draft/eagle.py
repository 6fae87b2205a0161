"""Drafting with an EAGLE head: each token's draft from the target's state before it, or from the head's own.

Accepted drafts are read again, since the target's states of them are known then; the head's keys and values are
always those of a run over verified tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.depth import DepthController
from draftwood.draft.base import Drafter, Proposer
from draftwood.models.base import Segment
from draftwood.runtime.session import LOST, Answer, Job, Row, Run, Session
from draftwood.sampling import Distributions


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
class EagleSource:
    """Draft logits of a head over a target's states after its layers `reads`; a `Source` over two sessions.

    A node is drafted below when its own state is known, so what lies between a node and the root is read first, layer
    by layer.
    """

    target: Session
    head: Session
    reads: tuple[int, ...]
    _state: dict[int, Tensor] = field(init=False, default_factory=dict)  # node -> [W] what is read at the next token
    _done: int = field(init=False, default=0)  # leading tokens that the head has read with the target's states

    @property
    def context(self) -> int:
        """As of both, but 0 where no state is known: a prompt of a single token."""
        return min(self.target.context, self.head.context) if self._state else 0

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] after each node, layer by layer of the forest."""
        todo = set(nodes)
        for node in nodes:
            while (node := forest.parent[node]) != TRUNK and node not in self._state:
                todo.add(node)
        norm = self.head.model.n_layers
        logits: dict[int, Tensor] = {}
        read: dict[int, Tensor] = {}
        for depth in sorted({forest.depth[node] for node in todo}):
            layer = sorted(node for node in todo if forest.depth[node] == depth)
            answer = yield from self._run(forest, layer, (norm - 1, norm) if hidden else (norm - 1,))
            like = next(iter(self._state.values()))
            own = answer.hidden[norm - 1].to(like.dtype)
            padded = torch.nn.functional.pad(own, (0, len(like) - own.shape[-1]), value=torch.nan)
            self._state.update(zip(layer, padded, strict=True))
            logits.update(zip(layer, answer.logits, strict=True))
            if hidden:
                read.update(zip(layer, answer.hidden[norm], strict=True))
        rows = {norm: torch.stack([read[node] for node in nodes])} if hidden else {}
        return Answer(torch.stack([logits[node] for node in nodes]), rows)

    def _run(self, forest: Forest, nodes: Sequence[int], hidden: tuple[int, ...]) -> Generator[Run, Answer, Answer]:
        """A run of the head; after the request was put back the target reads the verified tokens again first."""
        while True:
            yield from self.read(forest)
            run = Run(self.head, forest, nodes, given=self._given(forest, nodes), hidden=hidden, leans=True)
            if (answer := (yield run)) is not LOST:
                self._done = len(forest.trunk) + 1
                return answer

    def read(self, forest: Forest) -> Generator[Run, Answer, None]:
        """Have the target's states of the trunk, where the head needs them: it takes what others left of its tokens."""
        if not self.head.begun:
            yield Run(self.head, forest, forest.roots, upto=0)
            self._done = self.head.reused
        cells = [trunk_node(position) for position in range(max(0, self._done - 1), len(forest.trunk))]
        cells = [cell for cell in cells if cell not in self._state]
        if cells:
            answer = yield Run(self.target, forest, cells, logits=False, hidden=self.reads)
            self._state.update(zip(cells, beside(answer.hidden, self.reads), strict=True))

    def _given(self, forest: Forest, nodes: Sequence[int]) -> dict[int, Tensor]:
        """What is read at the trunk's tokens that the head has not seen, and on the paths to some nodes."""
        last = len(forest.trunk) - 1
        given = {
            trunk_node(position): self._state[trunk_node(position - 1)]
            for position in range(max(1, self._done), last + 1)
        }
        if self._done == 0:
            given[trunk_node(0)] = torch.zeros_like(next(iter(self._state.values())))
        for node in nodes:
            while node != TRUNK and node not in given:
                parent = forest.parent[node]
                given[node] = self._state[trunk_node(last) if parent == TRUNK else parent]
                node = parent
        return given

    def take(self, trunk: Sequence[int], forest: Forest, target: Distributions) -> None:
        """Note the target's states of the nodes that join the trunk of the next `forest`; drafts are forgotten."""
        first = len(forest.trunk) - len(trunk)
        needed = (node for node in self._state if node < TRUNK and trunk_position(node) >= self._done - 1)
        self._state = {node: self._state[node] for node in needed}
        for position, node in enumerate(trunk, first):
            states = [target.state(node, layer) for layer in self.reads]
            self._state[trunk_node(position)] = torch.cat([state for state in states if state is not None])

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`: the root's row stays, those of accepted drafts go, since they were read with own states."""
        self.head.commit(trunk[:1], (), forest)


def beside(hidden: dict[int, Tensor], reads: Sequence[int]) -> Tensor:
    """The states after some layers side by side [n, W]."""
    return torch.cat([hidden[layer] for layer in reads], -1)


@dataclass(slots=True)
class EagleDrafter(Drafter):
    """Any drafter that drafts from an EAGLE head."""

    drafter: Drafter
    source: EagleSource

    @property
    def needs(self) -> frozenset[str]:
        return self.drafter.needs

    @property
    def reads(self) -> tuple[int, ...]:
        return self.source.reads

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        if forest.trunk and limit > 0:
            yield from self.source.read(forest)
        yield from self.drafter.draft(forest, depth, limit, propose)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.source.take(trunk, forest, target)
        self.drafter.commit(trunk, kept, forest, target)
