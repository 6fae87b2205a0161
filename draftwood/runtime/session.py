"""One request on one model: which slot of its extent holds which token, and up to which layer it was computed.

The only file that knows where keys and values live. Slots of dead branches are reused; a shared prefix is never
copied. Knows nothing of sampling, verification and other requests.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.row_tops import RowTops
from draftwood.core.topology import trunk_node, trunk_position
from draftwood.errors import RequestError
from draftwood.models.base import CausalModel, Segment
from draftwood.models.cache import Cache
from draftwood.models.extents import Extent
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.slots import Slots

Event = TypeVar("Event")
LayerOutputs: TypeAlias = Sequence[tuple[int, Sequence[int], Tensor]]  # (layer, nodes, output [n, D])
RECENT_TOKENS = 8  # tokens that a model may well be behind by: few rows more
SMALL_SHARE = 256  # a request's part of the memory that is taken at once


@dataclass(slots=True)
class Run:
    """A request of decoding code, which yields it, to a model; it is sent an `Answer` with one row per node.

    Nodes may be tokens of the trunk (`topology.trunk_node`). Ancestors and trunk tokens that the model has not seen are
    computed on the way.

    `logits` says whether logits are wanted, `hidden` the output of which layers, 1 to n_layers, the last one after the
    final norm, `reads` the same of every row that is computed, on the way too, `leading` how many of the most probable
    tokens `Answer.tops` should have. With `upto` = N, layers [0, N) alone are computed and their output is the answer;
    a later run resumes at N from what was kept. N = 0 computes nothing, but gives slots to what has none.

    `given` holds the input of models that read another model's hidden states in place of tokens: [D] for each node
    that such a model has not seen yet. A run `needs_cached_state` where it cannot do without keys and values that other
    runs left: if they are gone, because the request was put back for want of memory, the answer is `EVICTED`, and the
    run may be asked for once more.
    """

    session: Session
    forest: Forest
    nodes: Sequence[int]
    upto: int | None = None
    given: Mapping[int, Tensor] | None = None
    logits: bool = True
    hidden: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    leading: int = 0
    needs_cached_state: bool = False

    @property
    def drafts(self) -> bool:
        """Whether the run serves drafting: on a draft model, or on the target's first layers only."""
        return self.session.role != "target" or self.upto is not None


@dataclass(slots=True)
class Answer:
    """The output of a model at a run's nodes; `seconds` is the run's share of the forwards that it took.

    `rows` counts what was computed in rows of full depth: layer ranges count by their share. `read` holds what
    `Run.reads` asks for, as forwards showed it.
    """

    logits: Tensor  # [n, V], float32 or float64; [n, 0] where none were wanted
    hidden: dict[int, Tensor] = field(default_factory=dict)  # layer -> [n, D]
    read: LayerOutputs = ()
    seconds: float = 0.0
    rows: float = 0.0
    forwards: int = 0
    tops: RowTops | None = None  # of the logits, where the model knows them


EVICTED = Answer(torch.empty(0, 0))

Decoding: TypeAlias = Generator[Run | Event, Answer | None, None]  # yields runs and events, is sent answers


class TokenRow(NamedTuple):
    """One token to compute: of a node, or of the trunk (`topology.trunk_node`)."""

    node: int
    token: int
    slot: int
    position: int
    path: tuple[int, ...] = ()  # slots of its ancestors that are nodes, and its own, downwards; none in the trunk


@dataclass(slots=True)
class ForwardJob:
    """The rows of one session that one forward computes: layers [start, stop), and what each row sees."""

    session: Session
    rows: list[TokenRow]
    tokens: Sequence[int]  # of the rows
    positions: Sequence[int]
    start: int
    stop: int
    segment: Segment
    hidden: Tensor | None = None  # [n, D] input of layer `start` when start > 0, or of a model without tokens


@dataclass(slots=True, eq=False)
class Session:
    """Slots, levels, positions and masks of one request on one model.

    It is lent an extent of the cache when it first needs one and gives it back when it is closed.
    """

    model: CausalModel
    cache: Cache
    role: str = "target"
    prefixes: PrefixCache | None = None  # where it finds what is computed already, and leaves what it computed
    extent: Extent | None = field(init=False, default=None)
    reused: int = field(init=False, default=0)  # leading tokens that were not computed here
    peak: int = field(init=False, default=0)  # most slots that were live at once
    cached: int = field(init=False, default=0)  # leading tokens of the trunk that have slots
    _trunk_slot: array[int] = field(init=False, default_factory=lambda: array("i"))  # [cached], their slots
    _node_slot: dict[int, int] = field(init=False, default_factory=dict)
    _level: dict[int, int] = field(init=False, default_factory=dict)  # slot -> layers computed, where fewer than all
    _hidden: dict[int, Tensor] = field(init=False, default_factory=dict)  # slot -> [D] at its level
    _partial: list[int] = field(init=False, default_factory=list)  # trunk positions below the last layer
    _slots: Slots = field(init=False, default_factory=Slots)
    _trunk: list[int] = field(init=False, default_factory=list)  # the tokens that the trunk slots are of, and others
    _ordered: int = field(init=False, default=0)  # leading tokens that are known to be in their own slots, computed

    @property
    def context(self) -> int:
        """Positions that the model has room for."""
        return self.model.context

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Ask for logits, and what the head reads, in one run: a session is a source of drafts as it stands."""
        return (yield Run(self, forest, nodes, hidden=(self.model.n_layers,) if hidden else ()))

    def bytes(self, slots: int) -> int:
        """Bytes that so many slots take."""
        states = 0 if self.cache.states is None else self.cache.states.extent_bytes
        return self.cache.slot_bytes * self.cache.capacity(slots) + states

    @property
    def prefix(self) -> list[int]:
        """Tokens that are in slots 0, 1, ... in this order, computed in all layers as in a plain run."""
        slots, n = self._trunk_slot, self._ordered
        while n < self.cached and slots[n] == n and n not in self._level:
            n += 1
        self._ordered = n
        return self._trunk[:n]

    @property
    def begun(self) -> bool:
        """Whether it has an extent."""
        return self.extent is not None

    def close(self) -> None:
        """Give the extent back, or leave it to requests with the same prefix; the session is over."""
        if self.extent is not None and self.prefixes is not None:
            self.prefixes.leave(self)
            self.extent = None
        self.forget()

    def forget(self) -> None:
        """Give the extent back at once. What the session is asked for afterwards is computed anew."""
        if self.extent is not None:
            if self.prefixes is not None:
                self.prefixes.live.remove(self)
            self.cache.release(self.extent)
        self.extent, self._trunk_slot = None, array("i")
        self.cached = self._ordered = 0
        self._slots = Slots()
        for part in (self._node_slot, self._level, self._hidden, self._partial):
            part.clear()

    @property
    def span(self) -> int:
        """Slots [0, span) are in use, holes included."""
        return self._slots.span

    @property
    def live_slots(self) -> int:
        """Slots that hold a token now."""
        return self._slots.live

    def unread(self, tokens: int) -> int:
        """How many of the first `tokens` tokens of the trunk the model has not read, beyond the few latest ones."""
        return max(0, tokens - self.cached - RECENT_TOKENS)

    def level(self, slot: int) -> int:
        """Layers computed for a slot."""
        return self._level.get(slot, self.model.n_layers)

    def computed(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Slots of the first of some nodes, or tokens of the trunk, up to one that is not computed in all layers."""
        slots: list[int] = []
        for node in nodes:
            at = trunk_position(node)
            slot = self._node_slot.get(node) if node > TRUNK else self._trunk_slot[at] if at < self.cached else None
            if slot is None or slot in self._level:
                break
            slots.append(slot)
        return tuple(slots)

    def job(self, run: Run, rows: list[TokenRow], start: int, stop: int) -> ForwardJob:
        """The forward of layers [start, stop) over some rows of a run whose ancestors are computed so far, or here."""
        assert self.extent is not None
        nodes, tokens, slots, positions, paths = zip(*rows, strict=True)
        seen = [position + 1 - len(path) for position, path in zip(positions, paths, strict=True)]
        segment = Segment(self.extent, slots, self._trunk_slot, seen, paths)
        states = [self._hidden[slot] for slot in slots] if start > 0 else []
        if start == 0 and run.given is not None:
            states = [run.given[node] for node in nodes]
        hidden = torch.stack(states) if len(states) > 1 else states[0][None] if states else None
        return ForwardJob(self, rows, tokens, positions, start, stop, segment, hidden)

    def store(self, job: ForwardJob, hidden: Tensor | None) -> None:
        """Note that a job was computed; `hidden` [n, D] is kept where it ended below the last layer."""
        slots = job.segment.slots
        if job.stop == self.model.n_layers:
            for slot in slots:
                self._level.pop(slot, None)
                self._hidden.pop(slot, None)
            return
        assert hidden is not None
        for i, slot in enumerate(slots):
            self._level[slot] = job.stop
            self._hidden[slot] = hidden[i]

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance` to the next `forest`: `trunk` nodes become trunk, `kept` are its nodes 0, 1, ...

        Every other slot is free, those of nodes which only finished hypotheses descend from too.
        """
        if not self._node_slot:
            return
        slots, self._node_slot = self._node_slot, {}
        needed = None
        if kept and forest.finished:
            needed = forest.known.keys() | {node for root in forest.live for node in forest.path(root)}
        joined: list[int] = []
        for node in trunk:
            if node not in slots:
                break  # this model never saw it: it is computed when a descendant is asked for
            slot = slots.pop(node)
            if slot in self._level:
                self._partial.append(self.cached + len(joined))
            joined.append(slot)
        self._extend(joined)
        for new, node in enumerate(kept):
            if node in slots and (needed is None or new in needed):
                self._node_slot[new] = slots.pop(node)
        for slot in slots.values():
            self._level.pop(slot, None)
            self._hidden.pop(slot, None)
        if self.cache.states is not None and self.extent is not None:
            self.cache.states.free(self.extent, slots.values())
        self._slots.give_back(slots.values())

    def allocations(self, run: Run) -> list[tuple[Sequence[int], int]]:
        """Tokens, and slots of the extent that the session takes for a run; nothing where it has one."""
        return [] if self.extent is not None else [(run.forest.trunk, self._room(run.forest, len(run.nodes)))]

    def _room(self, forest: Forest, count: int) -> int:
        """Slots for the trunk and `count` tokens more.

        For the whole request, where that is little memory: it need not move then.
        """
        whole = min(forest.longest, self.model.context) + count
        little = whole * self.cache.slot_bytes <= (self.cache.budget.limit or 0) // SMALL_SHARE
        return max(len(forest.trunk) + count, whole if little else 0)

    def _begin(self, forest: Forest, count: int) -> None:
        """Take an extent, with what is computed already of the trunk, for `count` tokens more than that."""
        room = self._room(forest, count)
        if self.prefixes is None:
            self.extent = self.cache.lend(room)
            return
        self.extent, n = self.prefixes.take(self.cache, forest.trunk, room)
        self.prefixes.live.append(self)
        self._extend(range(n))
        self._slots.span = self.reused = n

    def _extend(self, slots: Sequence[int]) -> None:
        """More of the trunk's tokens have slots."""
        self._trunk_slot.extend(slots)
        self.cached += len(slots)

    def rows(self, run: Run) -> list[TokenRow]:
        """All rows that must be computed for a run, parents before children; tokens without slots are given some.

        They are the run's nodes, and those of their ancestors and of the trunk's tokens that lack slots, or layers
        below the one that the run stops at. Raises RequestError beyond the model's context, OutOfMemory without room.
        """
        forest, stop = run.forest, self.model.n_layers if run.upto is None else run.upto
        if self.extent is None:
            self._begin(forest, len(run.nodes))
        self._trunk = forest.trunk
        again = [trunk_position(node) for node in run.nodes if node < 0]
        rows = self._partial_rows([position for position in again if position < self.cached], stop)
        nodes = self._with_ancestors(forest, [node for node in run.nodes if node >= 0], stop)
        assert self.extent is not None
        self.cache.reserve(self.extent, max(len(forest.trunk) + len(nodes) + len(self._node_slot), self.span))
        if self.cache.states is not None:
            self.cache.states.reserve(self.extent, len(rows) + len(forest.trunk) - self.cached, len(nodes))
        rows += self._new_trunk_rows()
        rows += self._node_rows(forest, nodes, stop)
        self.peak = max(self.peak, self.live_slots)
        return rows

    @property
    def _last_token(self) -> int:
        """The model's last token, which a draft reads in place of a padded token of the target that it lacks."""
        return int(getattr(self.model, "vocabulary", self.model.vocab_size)) - 1  # some draft a whole block at once

    def _partial_rows(self, again: Sequence[int], stop: int) -> list[TokenRow]:
        """Rows of trunk tokens that have slots, but lack layers below `stop`; `again`: positions that are asked for."""
        for position in self._with_states(again):
            slot = self._trunk_slot[position]
            if self.level(slot) >= stop:  # asked for once more: its answer was not kept
                self._level[slot] = 0
                self._hidden.pop(slot, None)
                insort(self._partial, position)
        partial = dict.fromkeys(self._partial)  # each once
        self._partial = [position for position in partial if self._trunk_slot[position] in self._level]
        return [self._trunk_row(position) for position in self._partial if self._level_at(position) < stop]

    def _with_states(self, again: Sequence[int]) -> Sequence[int]:
        """`again` and the positions before it that recurrent layers must read once more to get there."""
        states, trunk = self.cache.states, self._trunk_slot
        if states is None or self.extent is None or not again:
            return again
        return sorted({at for one in again for at in range(states.first_again(self.extent, trunk, one), one + 1)})

    def _level_at(self, position: int) -> int:
        return self.level(self._trunk_slot[position])

    def _trunk_row(self, position: int) -> TokenRow:
        token = min(self._trunk[position], self._last_token)
        return TokenRow(trunk_node(position), token, self._trunk_slot[position], position)

    def _new_trunk_rows(self) -> list[TokenRow]:
        """Rows of the trunk's tokens that had no slots, which are given some."""
        first, end = self.cached, len(self._trunk)
        if first < end:
            self._extend([self._slots.take() for _ in range(first, end)])
            self._level.update(dict.fromkeys(self._trunk_slot[first:end], 0))
            self._partial += range(first, end)
        return [self._trunk_row(position) for position in range(first, end)]

    def _node_rows(self, forest: Forest, nodes: Sequence[int], stop: int) -> list[TokenRow]:
        """Rows of a forest's nodes, parents before children, which are given slots where they have none."""
        token, parent, depth, base = forest.token, forest.parent, forest.depth, len(forest.trunk)
        level, node_slot = self._level, self._node_slot
        full, limit, last = self.model.n_layers, self.model.context, self._last_token
        paths: dict[int, tuple[int, ...]] = {TRUNK: ()}
        rows = []
        for node in nodes:
            slot = node_slot.get(node, -1)
            if slot < 0:
                slot = node_slot[node] = self._slots.take()
                level[slot] = 0
            elif level.get(slot, full) >= stop:  # asked for once more: its answer was not kept
                level[slot] = 0
                self._hidden.pop(slot, None)
            position = base + depth[node]
            if position >= limit:
                raise RequestError(
                    f"position {position} is beyond the {self.role} model's context of {limit} tokens; "
                    "shorten the prompt or lower max_new_tokens"
                )
            upwards, ancestor = [slot], parent[node]
            while ancestor not in paths:
                upwards.append(node_slot[ancestor])
                ancestor = parent[ancestor]
            path = paths[node] = (*paths[ancestor], *upwards[::-1])
            rows.append(TokenRow(node, min(token[node], last), slot, position, path))
        return rows

    def _with_ancestors(self, forest: Forest, nodes: list[int], stop: int) -> list[int]:
        """`nodes` and those of their ancestors that lack slots or layers, in forest order."""
        wanted = {TRUNK, *nodes}
        for node in nodes:  # grows
            parent = forest.parent[node]
            if parent not in wanted:
                slot = self._node_slot.get(parent)
                if slot is None or self.level(slot) < stop:
                    wanted.add(parent)
                    nodes.append(parent)
        return sorted(wanted)[1:]
