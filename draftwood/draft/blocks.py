"""Drafting with blocks: one pass of a head gives a distribution for each of the next places below a root.

All nodes of a depth below a root have the same one, whatever lies between (in DSpark the token of the node counts,
too); verification is told just that. So a chain or a tree below a root costs one pass, and any drafter that asks layer
by layer works with them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node
from draftwood.draft.states import HeadSession, HeadSource
from draftwood.runtime.session import Answer, ForwardJob, Run, TokenRow

FIRST_BLOCK_SLOT = -2  # the largest key of slots that are no node's, see `BlockSession`


@dataclass(slots=True, eq=False)
class BlockSession(HeadSession):
    """A session of a head that drafts blocks: each node that is asked for gets slots for the rest of its block too.

    They are kept until the next commit, under keys below those of nodes.
    """

    def rows(self, run: Run) -> list[TokenRow]:
        rows = HeadSession.rows(self, run)
        keys = [key for node in run.nodes for key in self._keys(node) if key not in self._node_slot]
        assert self.extent is not None
        self.cache.reserve(self.extent, max(self.span, self.live_slots + len(keys)))
        for key in keys:
            self._node_slot[key] = self._slots.take()
        self.peak = max(self.peak, self.live_slots)
        return rows

    def job(self, run: Run, rows: list[TokenRow], start: int, stop: int) -> ForwardJob:
        job, asked = HeadSession.job(self, run, rows, start, stop), set(run.nodes)
        paths = [
            (*path, *map(self._node_slot.__getitem__, self._keys(row.node))) if row.node in asked else path
            for row, path in zip(rows, job.segment.paths, strict=True)
        ]
        job.segment = replace(job.segment, paths=paths)
        return job

    def _keys(self, node: int) -> range:
        """The keys of the slots of a node's block, but for its own."""
        model: Any = self.model
        first, more = FIRST_BLOCK_SLOT - node * (model.block - 1), model.block - 1
        return range(first, first - more, -1)


@dataclass(slots=True)
class BlockSource(HeadSource):
    """Draft logits of a head that drafts blocks, a `models.heads.block_head.BlockDrafter` over a target's states."""

    _blocks: dict[int, tuple[Tensor, Tensor | None]] = field(
        init=False, default_factory=dict
    )  # root -> its block's logits [count, V], and states [count, D] where they were asked for
    _end: int = field(init=False, default=0)  # position at which no draft hangs any more

    @property
    def context(self) -> int:
        return min(self.target.context, self._end)

    def begin(self, forest: Forest) -> None:
        model: Any = self.reader.model
        first = forest.position(forest.live[0])
        self._blocks = {}
        self._end = first + model.count if self._taken and first + model.block <= model.context else 0

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] after each node, from the block of the root that it hangs on."""
        model: Any = self.reader.model
        follows, roots = getattr(model, "markov", None) is not None, set(forest.live)
        anchors = [next(one for one in reversed(forest.path(node)) if one in roots) for node in nodes]
        if new := sorted(set(anchors) - self._blocks.keys()):
            answer = yield from self.ask(forest, new, (model.n_layers,) if hidden or follows else ())
            seen = answer.hidden.get(model.n_layers)
            for row, (root, logits) in enumerate(zip(new, answer.logits, strict=True)):
                states = None if seen is None else seen[row].view(model.count, -1)
                self._blocks[root] = logits.view(model.count, -1), states
        places = [(root, forest.depth[node] - forest.depth[root]) for root, node in zip(anchors, nodes, strict=True)]
        made = Answer(torch.stack([self._blocks[root][0][place] for root, place in places]))
        if hidden or follows:
            rows = [states[place] for root, place in places if (states := self._blocks[root][1]) is not None]
            made.hidden[model.n_layers] = torch.stack(rows)
        if follows:
            made.logits = model.follow(made.logits, made.hidden[model.n_layers], [forest.token[node] for node in nodes])
        return made

    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        """As for any head where its rows read states of tokens before; else roots, whose own are not known, get none.

        What a root leaves in the cache is then no context.
        """
        if self.before:
            return HeadSource.given(self, forest, nodes)
        model: Any = self.reader.model
        nothing = torch.zeros(model.states, dtype=model.dtype, device=model.device)
        for node in nodes:
            self._right.update(forest.path(node)[:-1])
        return {**self._trunk, **self._nodes, **dict.fromkeys(nodes, nothing)}


@dataclass(slots=True)
class MedusaSource(BlockSource):
    """Draft logits of Medusa heads (`models.heads.medusa.Heads`): head k says what hangs k places below a root.

    They read the target's state at the token before the root.
    """

    @property
    def before(self) -> int:
        return 1

    def begin(self, forest: Forest) -> None:
        model: Any = self.reader.model
        self._blocks = {}
        self._end = forest.position(forest.live[0]) + model.count if self._taken else 0

    def lacks(self) -> int:
        """Nothing: the run that verified the last token brought the state that is read."""
        return 0

    def ask(self, forest: Forest, nodes: Sequence[int], hidden: tuple[int, ...]) -> Generator[Run, Answer, Answer]:
        """A run of the heads for some roots, as tokens of a text of their own, which is forgotten at once."""
        self._sort()
        end = trunk_node(len(forest.trunk) - 1)
        before = [end if forest.parent[root] == TRUNK else forest.parent[root] for root in nodes]
        if unknown := sorted({*before} - self._trunk.keys() - self._nodes.keys()):
            answer = yield Run(self.target, forest, unknown, logits=False, hidden=self.reads)
            for node, state in zip(unknown, answer.hidden[self.reads[0]], strict=True):
                self._keep(node, state)
        self._trunk = {node: state for node, state in self._trunk.items() if node == end}
        states = [self._trunk[node] if node < TRUNK else self._nodes[node] for node in before]
        alone = Forest([])
        cells = [alone.add(TRUNK, number) for number in range(len(states))]
        answer = yield Run(self.reader, alone, cells, given=dict(zip(cells, states, strict=True)))
        self.reader.commit([], [], alone)
        model: Any = self.reader.model
        answer.hidden = dict.fromkeys(hidden, torch.stack(states).repeat(1, model.count))  # of each head what it reads
        return answer
