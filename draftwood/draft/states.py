"""Drafting from the target's states after some of its layers, which the target's own run of each round brings.

A round without drafts costs what a plain one costs, prompts included; what drafting may read of it is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.depth import DepthController
from draftwood.draft.base import Drafter, Proposer, Source
from draftwood.draft.suffix import EarlierAnswers
from draftwood.runtime.session import EVICTED, Answer, LayerOutputs, Run, Session
from draftwood.sampling.distributions import Distributions


@dataclass(slots=True)
class StateSource(Source):
    """Draft logits of `reader`, a session that reads the target's states after its layers `reads`, side by side [W].

    At a token it reads the state of the token that lies `before` places before. States of what it has not read yet are
    kept as they come. What never came, as where another request computed the token, the target is asked for once more.
    """

    target: Session
    reader: Session
    reads: tuple[int, ...]
    _trunk: dict[int, Tensor] = field(init=False, default_factory=dict)  # token of the trunk -> [W]
    _nodes: dict[int, Tensor] = field(init=False, default_factory=dict)  # node of the forest -> [W]
    _brought: list[tuple[dict[int, int], LayerOutputs]] = field(
        init=False, default_factory=list
    )  # with nodes' new names
    _done: int = field(init=False, default=0)  # leading tokens of the trunk whose states are not needed any more

    before: ClassVar[int] = 0

    @property
    def context(self) -> int:
        return min(self.target.context, self.reader.context)

    @abstractmethod
    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        """The states that the reader reads at some nodes, and at all nodes before them that it has not seen."""

    @abstractmethod
    def read(self, forest: Forest, nodes: Sequence[int]) -> Generator[Run, Answer, None]:
        """Have the target compute states that are needed for some nodes, as far as they are not known."""

    def ask(self, forest: Forest, nodes: Sequence[int], hidden: tuple[int, ...]) -> Generator[Run, Answer, Answer]:
        """A run of the reader, and before it of the target where a state is missing.

        At first, and after the request was put back, the reader takes what others with the same tokens left.
        """
        self._sort()
        answer = EVICTED
        while answer is EVICTED:
            if not self.reader.begun:
                yield Run(self.reader, forest, nodes, upto=0)
                self._done = max(0, self.reader.reused - self.before)
            yield from self.read(forest, nodes)
            if self.reader.begun:
                given = self.given(forest, nodes)
                answer = yield Run(self.reader, forest, nodes, given=given, hidden=hidden, needs_cached_state=True)
        self._done = max(0, len(forest.trunk) - 1)  # beams may ask for the end of the trunk once more
        self._trunk = {node: state for node, state in self._trunk.items() if trunk_position(node) >= self._done}
        return answer

    def missing(self, end: int) -> list[int]:
        """Tokens of the trunk before `end` whose states are needed, but not known."""
        return [node for node in map(trunk_node, range(self._done, end)) if node not in self._trunk]

    def lacks(self) -> int:
        """How many tokens the target has computed whose states it must compute once more."""
        self._sort()
        if not self.reader.begun:
            self._done = 0
        return len(self.missing(self.target.cached))

    def take(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, read: LayerOutputs) -> None:
        """Follow `advance`: keep what a run of the target brought, as it is until somebody needs it."""
        names = {node: new for new, node in enumerate(kept)}
        names.update((node, trunk_node(i)) for i, node in enumerate(trunk, len(forest.trunk) - len(trunk)))
        nodes, self._nodes = self._nodes, {}
        for node in names.keys() & nodes.keys():
            self._keep(names[node], nodes[node])
        self._brought.append((names, read))
        if kept:  # the names of nodes are good for a round
            self._sort()

    def _sort(self) -> None:
        """Put what was brought where it is found by name."""
        for names, read in self._brought:
            found: dict[int, dict[int, Tensor]] = {}
            for layer, nodes, output in read:
                for node, state in zip(nodes, output.unbind(), strict=True):
                    if node < TRUNK or node in names:
                        found.setdefault(names.get(node, node), {})[layer] = state
            for name, states in found.items():
                if states.keys() >= set(self.reads):
                    self._keep(name, torch.cat([states[layer] for layer in self.reads]))
        self._brought.clear()

    def _keep(self, name: int, state: Tensor) -> None:
        (self._trunk if name < TRUNK else self._nodes)[name] = state


@dataclass(slots=True)
class StateDrafter(Drafter):
    """Any drafter that drafts from states of the target."""

    drafter: Drafter
    source: StateSource

    @property
    def needs(self) -> frozenset[str]:
        return self.drafter.needs

    @property
    def reads(self) -> tuple[int, ...]:
        return self.source.reads

    def draft(
        self, forest: Forest, depth: DepthController, limit: int, propose: Proposer
    ) -> Generator[Run, Answer, None]:
        if len(forest.trunk) < self.source.before:  # there is nothing to read
            propose.complete(forest)
        else:
            yield from self.drafter.draft(forest, depth, limit, propose)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        self.source.take(trunk, kept, forest, target.read)
        self.drafter.commit(trunk, kept, forest, target)

    def lacks(self, forest: Forest) -> int:
        return self.source.lacks()

    def share(self, earlier: EarlierAnswers) -> None:
        self.drafter.share(earlier)

    def finish(self, forest: Forest) -> None:
        self.drafter.finish(forest)
