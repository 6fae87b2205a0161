"""Drafting from the target's states after some of its layers, which the target's own run of each round brings.

A round without drafts costs what a plain one costs, prompts included; what drafting may read of it is kept. An exit
(EESD §3.1) shares the first layers with verification, which resumes above them: each is computed once for each token,
when it is first asked for. A head (EAGLE, multi-token prediction) drafts a token from the target's state before it, or
from its own; accepted drafts are read again with the target's, so its keys and values are always those of a run over
verified tokens. That holds for the nodes of beams too, which are verified but not yet shared by all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.draft.base import Drafting, Source
from draftwood.models.base import Segment
from draftwood.runtime.session import EVICTED, Answer, ForwardJob, LayerOutputs, Run, Session, TokenRow


@dataclass(slots=True)
class StateSource(Source):
    """Draft logits of `reader`, a session that reads the target's states after its layers `reads`, side by side [W].

    At a token it reads the state of the token that lies `before` places before. States of what it has not read yet are
    kept as they come. What never came, as where another request computed the token, the target is asked for once more.
    """

    in_target_pass: ClassVar[bool] = False  # whether verification goes on from the layers that are run for drafts

    target: Session
    reader: Session
    reads: tuple[int, ...]
    _trunk: dict[int, Tensor] = field(init=False, default_factory=dict)  # token of the trunk -> [W]
    _nodes: dict[int, Tensor] = field(init=False, default_factory=dict)  # node of the forest -> [W]
    _brought: list[tuple[dict[int, int], LayerOutputs]] = field(
        init=False, default_factory=list
    )  # with nodes' new names
    _taken: bool = field(init=False, default=False)  # whether a round of the target has brought states
    _done: int = field(init=False, default=0)  # leading tokens of the trunk whose states are not needed any more

    @property
    def before(self) -> int:
        """How many places before a token lies the state that is read at it."""
        return int(getattr(self.reader.model, "before", 0))

    @property
    def context(self) -> int:
        """As of any source; 0 before the target's first round, which brings the states of the whole prompt.

        To draft in that one, too, the target would have to read the prompt in a pass of its own, which costs one token.
        """
        return min(self.target.context, self.reader.context) if self._taken or self.in_target_pass else 0

    def begin(self, forest: Forest) -> None:
        """A round begins."""
        return None

    @abstractmethod
    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        """The states that the reader reads at some nodes, and at all nodes before them that it has not seen."""

    def read(self, forest: Forest, nodes: Sequence[int]) -> Drafting:
        """Have the target compute states that are needed for some nodes, as far as they are not known.

        Those of verified tokens alone are needed.
        """
        if cells := self.missing(len(forest.trunk)):
            answer = yield Run(self.target, forest, cells, logits=False, hidden=self.reads)
            states = torch.cat([answer.hidden[layer] for layer in self.reads], -1)
            self._trunk.update(zip(cells, states, strict=True))

    def ask(self, forest: Forest, nodes: Sequence[int], hidden: tuple[int, ...]) -> Generator[Run, Answer, Answer]:
        """A run of the reader, and before it of the target where a state is missing.

        At first, and after the request was put back, the reader takes what others with the same tokens left.
        """
        self._sort()
        answer = EVICTED
        while answer is EVICTED:
            yield from self.reuse(forest, nodes)
            yield from self.read(forest, nodes)
            if self.reader.begun:
                given = self.given(forest, nodes)
                answer = yield Run(self.reader, forest, nodes, given=given, hidden=hidden, needs_cached_state=True)
        self._done = max(0, len(forest.trunk) - 1)  # beams may ask for the end of the trunk once more
        self._trunk = {node: state for node, state in self._trunk.items() if trunk_position(node) >= self._done}
        return answer

    def reuse(self, forest: Forest, nodes: Sequence[int]) -> Drafting:
        """Have the reader take what others left, if it has not begun."""
        if not self.reader.begun:
            yield Run(self.reader, forest, nodes, upto=0)
            self._done = max(0, self.reader.reused - self.before)

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
        self._taken = True
        if not (read or self._nodes):
            return
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
            by_nodes: dict[tuple[int, ...], dict[int, Tensor]] = {}  # what a forward ended at brings its rows together
            for layer, nodes, output in read:
                by_nodes.setdefault(tuple(nodes), {})[layer] = output
            for nodes, outputs in by_nodes.items():
                if not outputs.keys() >= set(self.reads):
                    continue  # they are missing, and asked for once more
                states = torch.cat([outputs[layer] for layer in self.reads], -1)
                for node, state in zip(nodes, states.unbind(), strict=True):
                    if node < TRUNK or node in names:
                        self._keep(names.get(node, node), state)
        self._brought.clear()

    def _keep(self, name: int, state: Tensor) -> None:
        (self._trunk if name < TRUNK else self._nodes)[name] = state


@dataclass(slots=True)
class ExitSource(StateSource):
    """Draft logits from an exit, `reader`, after the first N layers of the target, the only one of `reads`."""

    in_target_pass: ClassVar[bool] = True

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] of the exit after each node: a run of the first layers, then one of the exit."""
        return (yield from self.ask(forest, nodes, (self.reader.model.n_layers,) if hidden else ()))

    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        return {**self._trunk, **self._nodes}

    def lacks(self) -> int:
        """Rows through all layers that take as long as the missing ones through the first layers."""
        return -(-StateSource.lacks(self) * self.reads[0] // self.target.model.n_layers)

    def read(self, forest: Forest, nodes: Sequence[int]) -> Drafting:
        """Run the first layers over `nodes` and what lies before, as far as that was not done yet."""
        paths = chain.from_iterable(forest.path(node) if node >= 0 else (node,) for node in nodes)
        wanted = sorted({*self.missing(len(forest.trunk)), *paths} - self._trunk.keys() - self._nodes.keys())
        if wanted:
            (layer,) = self.reads
            answer = yield Run(self.target, forest, wanted, upto=layer, logits=False)
            for node, state in zip(wanted, answer.hidden[layer], strict=True):
                self._keep(node, state)

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`. What joins the trunk waits there: the exit, which never saw the leaves, lags behind."""
        self.reader.commit(trunk, kept, forest)


@dataclass(slots=True, eq=False)
class HeadSession(Session):
    """A session of a head. Where it reads states of tokens before, there is none for the first, which no other sees."""

    def job(self, run: Run, rows: list[TokenRow], start: int, stop: int) -> ForwardJob:
        job = Session.job(self, run, rows, start, stop)
        if not getattr(self.model, "before", 1):
            return job
        of = job.segment
        seen = [max(0, count - 1) for count in of.seen]
        paths = [path or (() if see else (slot,)) for slot, see, path in zip(of.slots, seen, of.paths, strict=True)]
        job.segment = Segment(of.extent, of.slots, of.trunk[1:], seen, paths)
        return job


@dataclass(slots=True)
class HeadSource(StateSource):
    """Draft logits of a head, `reader` (`models.heads.state_head`), over a target's states after some of its layers.

    A node is drafted below when its own state is known, so what lies between a node and the last verified one above it
    is read first, layer by layer.
    """

    _own: dict[int, Tensor] = field(init=False, default_factory=dict)  # draft -> [D] what the head made of it
    _nans: Tensor | None = field(init=False, default=None)  # see `_widened`
    _right: set[int] = field(init=False, default_factory=set)  # nodes that were read with the target's states

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] after each node, those behind verified tokens first, then layer by layer."""
        self._sort()
        model: Any = self.reader.model
        norm, carried = model.n_layers, model.carried
        logits: dict[int, Tensor] = {}
        seen: dict[int, Tensor] = {}
        for layer in self._layers(forest, nodes):
            answer = yield from self.ask(forest, layer, tuple(sorted({carried, norm})) if hidden else (carried,))
            self._own.update(zip(layer, answer.hidden[carried], strict=True))
            if layer == nodes and not hidden:
                return Answer(answer.logits, tops=answer.tops)
            logits.update(zip(layer, answer.logits, strict=True))
            if hidden:
                seen.update(zip(layer, answer.hidden[norm], strict=True))
        rows = {norm: torch.stack([seen[node] for node in nodes])} if hidden else {}
        return Answer(torch.stack([logits[node] for node in nodes]), rows)

    def _layers(self, forest: Forest, nodes: Sequence[int]) -> list[list[int]]:
        """`nodes`, and those above them that the head must read before, by how many of these are."""
        ranks: dict[int, int] = {}
        for node in nodes:
            path = [node]
            while not self._verified(forest, path[-1]) and (above := forest.parent[path[-1]]) not in self._own:
                path.append(above)
            for one in reversed(path):
                known = self._verified(forest, one) or forest.parent[one] in self._own
                ranks[one] = 0 if known else ranks[forest.parent[one]] + 1
        return [sorted(node for node in ranks if ranks[node] == rank) for rank in range(max(ranks.values()) + 1)]

    def _verified(self, forest: Forest, node: int) -> bool:
        """Whether the target's state before a node is known, as it is in the trunk."""
        return node < TRUNK or (above := forest.parent[node]) == TRUNK or above in self._nodes

    def given(self, forest: Forest, nodes: Sequence[int]) -> Mapping[int, Tensor]:
        """Verified tokens, and those behind them, get the target's state of the token before; others the head's."""
        given = {trunk_node(trunk_position(node) + 1): state for node, state in self._trunk.items()}
        last = self._trunk[trunk_node(len(forest.trunk) - 1)]
        if not self._done or trunk_node(0) in nodes:
            given[trunk_node(0)] = torch.zeros_like(last)
        for node in nodes:
            while node > TRUNK and node not in given:
                parent = forest.parent[node]
                if self._verified(forest, node):
                    given[node] = last if parent == TRUNK else self._nodes[parent]
                    self._right.add(node)
                else:
                    given[node] = self._widened(self._own[parent], last)
                node = parent
        return given

    def _widened(self, own: Tensor, like: Tensor) -> Tensor:
        """An own state [D] as long as one of the target's [W], with NaN behind it."""
        if self._nans is None:
            self._nans = like.new_full((len(like) - len(own),), torch.nan)
        return torch.cat((own.to(like.dtype), self._nans))

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`: rows that had the target's states stay, as the root's; those that had own ones go."""
        right, self._own = self._right, {}
        joined = list(takewhile(right.__contains__, trunk))
        self.reader.commit(joined, [node if node in right else TRUNK for node in kept], forest)
        self._right = {new for new, node in enumerate(kept) if node in right}


@dataclass(slots=True)
class AssistantSource(HeadSource):
    """Draft logits of an assistant, `reader`, which reads the target's keys and values, and one state of it."""

    def reuse(self, forest: Forest, nodes: Sequence[int]) -> Drafting:
        """Nothing: it begins with the target."""
        return
        yield  # a generator that yields nothing

    def lacks(self) -> int:
        """Nothing: the run that verified the last token brought the state that is read."""
        return 0

    def read(self, forest: Forest, nodes: Sequence[int]) -> Drafting:
        """Have the target read the verified tokens before some nodes, as far as their states or slots are missing."""
        before = {trunk_node(len(forest.trunk) - 1)}
        for node in nodes:
            while not self._verified(forest, node):
                node = forest.parent[node]
            if node > TRUNK and forest.parent[node] != TRUNK:
                before.add(forest.parent[node])
            elif trunk_node(0) > node:
                before.add(node + 1)
        known = self._trunk.keys() | self._nodes.keys()
        if cells := sorted(node for node in before if node not in known or not self.target.computed([node])):
            answer = yield Run(self.target, forest, cells, logits=False, hidden=self.reads)
            states = torch.cat([answer.hidden[layer] for layer in self.reads], -1)
            for node, state in zip(cells, states, strict=True):
                self._keep(node, state)
