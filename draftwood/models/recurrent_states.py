"""The states of layers that read the past through a state: what a cache keeps for them beside keys and values.

The state of a recurrent layer behind a token is a fold over the tokens up to it. A row of a forward sees a list of
slots; its state is found by starting at the last slot of its list whose state was kept (a checkpoint) and folding the
inputs of the slots behind it once more (a replay). Where checkpoints lie is a matter of speed and memory alone: the
fold goes token by token in one order, so that a row has the same bits wherever it started.

Of the final tokens (the trunk) the last checkpoint but for the newest token stays, so that this token can be asked
for again; the inputs of the tokens behind it are kept until another checkpoint is ahead of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from draftwood.errors import OutOfMemory
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Extent
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.recurrent_walk import Walk

LONG_REPLAY = 16  # steps of a replay behind which a checkpoint is worth its memory
STATES = 4  # states that every request has memory for: of the trunk, of two rounds, and one that is being made
END_ROWS = 8  # tokens of the trunk that are read before a prompt's last one where that is worth a checkpoint
UNUSED = 1  # checkpoints below the trunk that are kept though the last forward did not start there
MIN_INTERVAL = 256  # tokens of a prompt between checkpoints for other requests, at least
ROWS_STEP = 32  # tokens by which the memory for inputs grows


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """What a recurrent layer needs: the number of the layer, and numbers of values of an input and of a state."""

    layer: int
    inputs: int
    state: int


@dataclass(slots=True, eq=False)
class State:
    """Memory for the states of all recurrent layers behind one token; requests that share a prefix share it."""

    data: Tensor  # [values]
    users: int = 0


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The state behind the token in a slot, at some position of its sequence."""

    slot: int
    position: int
    state: State
    layers: int = 0  # the recurrent layers whose state is there, a bit each
    for_others: bool = False  # kept for requests that begin alike


@dataclass(slots=True)
class KeptInputs:
    """Where the inputs of a token lie, to be folded once more."""

    row: int
    position: int
    layers: int = 0  # the recurrent layers whose inputs are there, a bit each


@dataclass(slots=True, eq=False)
class ExtentStates:
    """What is kept for the slots of one extent."""

    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # by slot
    inputs: dict[int, KeptInputs] = field(default_factory=dict)  # by slot
    tip: int = 0  # tokens of the trunk that rows have seen
    wish: int = 0  # tokens of the trunk behind which other requests would have begun
    end: int = -1  # slot of the checkpoint at the end of what was read of the prompt
    states: int = 0  # states that there is memory for
    rows: int = 0  # tokens whose inputs there is memory for
    taken: int = 0  # states that a forward under way fills

    @property
    def own_states(self) -> int:
        """States that are not kept for others."""
        return self.taken + sum(not one.for_others for one in self.checkpoints.values())


@dataclass(slots=True)
class Plan:
    """One forward: how each segment's rows are reached from states that were kept, and what is kept of them."""

    walks: list[Walk] = field(default_factory=list)
    layers: int = 0  # the recurrent layers that are computed, a bit each
    saved: list[int] = field(default_factory=list)  # rows of the batch whose inputs are kept
    places: list[int] = field(default_factory=list)  # where
    made: list[tuple[Segment, Walk, list[Checkpoint]]] = field(default_factory=list)


class RecurrentStates:
    """The states of a cache's recurrent layers; their memory counts against the cache's budget."""

    def __init__(
        self,
        shapes: Sequence[RecurrentShape],
        layers: int,
        device: torch.device,
        dtype: torch.dtype,
        budget: MemoryBudget,
        slot_bytes: int,
    ) -> None:
        """`layers`: of the model. `slot_bytes`: bytes of a token's keys and values, which checkpoints compare to."""
        self.shapes, self.layers, self.device, self.dtype, self.budget = list(shapes), layers, device, dtype, budget
        self.input_ends = _ends(shape.inputs for shape in shapes)
        self.state_ends = _ends(shape.state for shape in shapes)
        self.row_bytes = self.input_ends[-1] * dtype.itemsize
        self.state_bytes = self.state_ends[-1] * dtype.itemsize
        self.all = (1 << len(self.shapes)) - 1
        self.interval = max(MIN_INTERVAL, -(-self.state_bytes // max(1, slot_bytes)))
        self.pool = torch.zeros(0, self.input_ends[-1], dtype=dtype, device=device)  # inputs of tokens
        self._free_rows: list[int] = []  # heap
        self._free_states: list[State] = []
        self._allocated = 0  # states
        self._of: dict[Extent, ExtentStates] = {}

    @property
    def bytes(self) -> int:
        """The bytes that count against the budget."""
        return len(self.pool) * self.row_bytes + self._allocated * self.state_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes of what is kept now."""
        rows = len(self.pool) - len(self._free_rows)
        return rows * self.row_bytes + (self._allocated - len(self._free_states)) * self.state_bytes

    @property
    def extent_bytes(self) -> int:
        """Bytes that a request needs, whatever its length."""
        return STATES * self.state_bytes + LONG_REPLAY * self.row_bytes

    # Memory

    def reserve(self, extent: Extent, trunk: int, nodes: int) -> None:
        """Memory for a forward of so many tokens of the trunk and nodes; raises OutOfMemory where there is none."""
        held = self._held(extent)
        held.states = STATES
        held.rows = len(held.inputs) + nodes + min(trunk, 2 * LONG_REPLAY)
        self._allocate()

    def _held(self, extent: Extent) -> ExtentStates:
        held = self._of.get(extent)
        if held is None:
            held = self._of[extent] = ExtentStates()
        return held

    def _allocate(self, more_rows: int = 0, more_states: int = 0) -> None:
        """Have free memory for what extents were promised, and more."""
        rows, states = self._promised()
        rows = len(self.pool) + max(0, rows + more_rows - len(self._free_rows))
        rows = -(-rows // ROWS_STEP) * ROWS_STEP
        states = self._allocated + max(0, states + more_states - len(self._free_states))
        if (rows, states) == (len(self.pool), self._allocated):
            return
        self.budget.take(self, rows * self.row_bytes + states * self.state_bytes)
        try:
            self._resize(rows)
            with torch.inference_mode(False):
                while self._allocated < states:
                    data = torch.empty(self.state_ends[-1], dtype=self.dtype, device=self.device)
                    self._free_states.append(State(data))
                    self._allocated += 1
        except (RuntimeError, MemoryError) as error:
            self.budget.take(self, self.bytes)
            raise OutOfMemory(f"this machine has no memory for the states of recurrent layers ({error})") from error

    def _promised(self) -> tuple[int, int]:
        """Inputs and states that extents were promised and have not taken."""
        helds = self._of.values()
        return sum(max(0, held.rows - len(held.inputs)) for held in helds), sum(
            max(0, held.states - held.own_states) for held in helds
        )

    def _resize(self, rows: int) -> None:
        """Have memory for the inputs of `rows` tokens; what lies in rows below that stays."""
        before = self.pool
        if rows == len(before):
            return
        with torch.inference_mode(False):
            pool = torch.zeros(rows, before.shape[1], dtype=self.dtype, device=self.device)
            count = min(rows, len(before))
            pool[:count] = before[:count]
        self.pool = pool
        self._free_rows = sorted([row for row in self._free_rows if row < rows] + [*range(len(before), rows)])

    def trim(self) -> None:
        """Give back the memory that no request uses or was promised."""
        rows, states = self._promised()
        used = 1 + max((kept.row for held in self._of.values() for kept in held.inputs.values()), default=-1)
        rows += len(self.pool) - len(self._free_rows)
        self._resize(min(len(self.pool), -(-max(rows, used) // ROWS_STEP) * ROWS_STEP))
        while len(self._free_states) > states:
            self._free_states.pop()
            self._allocated -= 1
        self.budget.take(self, self.bytes)

    def _new_row(self, held: ExtentStates) -> int:
        if len(held.inputs) >= held.rows:
            self._allocate(more_rows=1)
        return heapq.heappop(self._free_rows)

    def _new_state(self, held: ExtentStates, promised: bool) -> State | None:
        """Memory for a state, out of what an extent was promised, or beyond that; None where it is short."""
        if not (promised and held.own_states < held.states):
            try:
                self._allocate(more_states=1)
            except OutOfMemory:
                return None
        held.taken += 1
        return self._free_states.pop()

    def _drop_checkpoint(self, held: ExtentStates, slot: int) -> None:
        checkpoint = held.checkpoints.pop(slot, None)
        if checkpoint is not None:
            self._give_back(checkpoint.state)

    def _give_back(self, state: State) -> None:
        state.users -= 1
        if state.users <= 0:
            self._free_states.append(state)

    def _drop_inputs(self, held: ExtentStates, slot: int) -> None:
        kept = held.inputs.pop(slot, None)
        if kept is not None:
            heapq.heappush(self._free_rows, kept.row)

    # Extents

    def release(self, extent: Extent) -> None:
        """An extent is given back."""
        held = self._of.pop(extent, None)
        if held is not None:
            self._forget(held, [*held.checkpoints, *held.inputs])
            self.trim()

    def free(self, extent: Extent, slots: Iterable[int]) -> None:
        """Slots hold nothing any more."""
        held = self._of.get(extent)
        if held is not None:
            self._forget(held, slots)

    def _forget(self, held: ExtentStates, slots: Iterable[int]) -> None:
        for slot in slots:
            self._drop_checkpoint(held, slot)
            self._drop_inputs(held, slot)

    def clear(self, extent: Extent, first: int) -> None:
        """The slots of an extent from `first` on hold nothing any more."""
        held = self._of.get(extent)
        if held is not None:
            self._forget(held, [slot for slot in [*held.checkpoints, *held.inputs] if slot >= first])
            held.tip = min(held.tip, first)

    def settle(self, extent: Extent) -> None:
        """No request uses an extent any more: it stays as it is, for others to begin with."""
        held = self._of.get(extent)
        if held is not None:
            for slot in list(held.inputs):
                self._drop_inputs(held, slot)
            for slot, checkpoint in list(held.checkpoints.items()):
                if checkpoint.slot != checkpoint.position or checkpoint.layers != self.all:
                    self._drop_checkpoint(held, slot)
            held.rows = held.states = 0
            self.trim()

    def held_bytes(self, extent: Extent) -> int:
        """Bytes of the states of an extent's slots."""
        return self.state_bytes * len(self._held(extent).checkpoints)

    def reusable(self, extent: Extent, tokens: int) -> int:
        """How many of the first `tokens` tokens, in slots 0, 1, ..., another request can begin behind."""
        held = self._of.get(extent)
        if held is None:
            return 0
        return max((checkpoint.position + 1 for checkpoint in self._begin(held, tokens)), default=0)

    def _begin(self, held: ExtentStates, tokens: int) -> list[Checkpoint]:
        return [
            checkpoint
            for checkpoint in held.checkpoints.values()
            if checkpoint.slot == checkpoint.position < tokens and checkpoint.layers == self.all
        ]

    def wish(self, extent: Extent, tokens: int) -> None:
        """Other requests begin with the same tokens, up to here: they could go on behind them."""
        self._held(extent).wish = tokens

    def copy(self, source: Extent, target: Extent, tokens: int) -> None:
        """A request begins behind the first `tokens` tokens of another one (`reusable`)."""
        held = self._held(target)
        for checkpoint in self._begin(self._held(source), tokens):
            if checkpoint.position == tokens - 1:
                checkpoint.state.users += 1
                held.checkpoints[checkpoint.slot] = Checkpoint(
                    checkpoint.slot, checkpoint.position, checkpoint.state, checkpoint.layers
                )
        held.tip = tokens

    def first_again(self, extent: Extent, trunk: Sequence[int], position: int) -> int:
        """The first token of the trunk that must be computed once more where the one at a position must be."""
        held, at = self._held(extent), position - 1
        while at >= 0:
            checkpoint, kept = held.checkpoints.get(trunk[at]), held.inputs.get(trunk[at])
            if checkpoint is not None and checkpoint.layers == self.all:
                return position
            if kept is None or kept.layers != self.all:
                break
            at -= 1
        if at < 0:
            return position
        before = [one for one in held.checkpoints.values() if one.position < at and trunk[one.position] == one.slot]
        return 1 + max((one.position for one in before if one.layers == self.all), default=-1)

    # Forwards

    def mask(self, start: int, stop: int) -> int:
        """The recurrent layers in [start, stop), a bit each."""
        return _mask(tuple(shape.layer for shape in self.shapes), start, stop)

    @contextmanager
    def planned(self, batch: Batch) -> Iterator[Plan]:
        """A forward: what it keeps holds when it is through."""
        plan = self.plan(batch)
        try:
            yield plan
        except BaseException:
            self.discard(plan)
            raise
        self.commit(plan)

    def plan(self, batch: Batch) -> Plan:
        """How the rows of a forward are reached. What it writes is invalid from now on; see `commit`."""
        plan = Plan(layers=self.mask(batch.start, self.layers if batch.stop is None else batch.stop))
        first = 0
        try:
            for segment in batch.segments:
                held = self._held(segment.extent)
                if batch.start == 0:
                    self._forget(held, segment.slots)
                if plan.layers:
                    walk = Walk.of(segment, first, held, plan.layers)
                    plan.walks.append(walk)
                    plan.made.append((segment, walk, []))
                    self._plan_segment(plan, held, segment, walk)
                first += len(segment)
        except BaseException:
            self.discard(plan)
            raise
        return plan

    def _plan_segment(self, plan: Plan, held: ExtentStates, segment: Segment, walk: Walk) -> None:
        """Which states of a walk are kept, and which rows' inputs."""
        tip = held.tip = max(held.tip, max(segment.seen))
        anchor = self._anchor(held, segment, plan.layers)
        worth = tip - 2 - anchor >= LONG_REPLAY or (tip > anchor + 2 and walk.ends_prompt(END_ROWS))
        if worth and (step := walk.step_of.get(segment.trunk[tip - 2])) is not None:
            end = self._make(plan, held, step)
            if end is not None:
                if held.end in held.checkpoints:
                    held.checkpoints[held.end].for_others = False
                anchor, held.end, end.for_others = tip - 2, end.slot, True
        for step in walk.common_steps(LONG_REPLAY):
            self._make(plan, held, step)
        for step in walk.read_at(self.interval, held.wish):
            if (one := self._make(plan, held, step, promised=False)) is not None:
                one.for_others = True
        for row, slot in enumerate(segment.slots, walk.first):
            position = walk.positions[walk.step_of[slot]]
            if position > anchor:
                kept = held.inputs.get(slot)
                if kept is None:
                    kept = KeptInputs(self._new_row(held), position)
                    held.inputs[slot] = kept
                kept.layers |= plan.layers
                plan.saved.append(row)
                plan.places.append(kept.row)

    def _make(self, plan: Plan, held: ExtentStates, step: int, promised: bool = True) -> Checkpoint | None:
        """Have the last segment's walk keep the state behind a step; None where there is no memory."""
        _, walk, made = plan.made[-1]
        slot = walk.slots[step]
        if step in walk.stored:
            return next(one for one in made if one.slot == slot)
        checkpoint = held.checkpoints.get(slot)
        if checkpoint is None:
            state = self._new_state(held, promised)
            if state is None:
                return None
            checkpoint = Checkpoint(slot, walk.positions[step], state)
        walk.stored[step] = checkpoint.state
        made.append(checkpoint)
        return checkpoint

    def _anchor(self, held: ExtentStates, segment: Segment, layers: int) -> int:
        """The position of the last checkpoint of the trunk, without its newest token, that has some layers; or -1."""
        trunk, end = segment.trunk, held.tip - 1
        return max(
            (
                one.position
                for one in held.checkpoints.values()
                if one.position < end and trunk[one.position] == one.slot and not layers & ~one.layers
            ),
            default=-1,
        )

    def commit(self, plan: Plan) -> None:
        """The forward of a plan is through: its checkpoints hold, and what they replace is given back."""
        for segment, walk, made in plan.made:
            held = self._held(segment.extent)
            held.taken = 0
            for checkpoint in made:
                if checkpoint.slot not in held.checkpoints:
                    checkpoint.state.users += 1
                    held.checkpoints[checkpoint.slot] = checkpoint
                checkpoint.layers |= plan.layers
            self._drop_replaced(held, segment, walk, made)

    def discard(self, plan: Plan) -> None:
        """The forward of a plan has failed: its checkpoints hold nothing."""
        for segment, _, made in plan.made:
            held = self._held(segment.extent)
            held.taken = 0
            for checkpoint in made:
                if checkpoint.slot not in held.checkpoints:
                    self._free_states.append(checkpoint.state)
                else:
                    self._drop_checkpoint(held, checkpoint.slot)

    def _drop_replaced(self, held: ExtentStates, segment: Segment, walk: Walk, made: Sequence[Checkpoint]) -> None:
        trunk, end = segment.trunk, held.tip - 1
        used = {id(one) for one in (*walk.starts, *made)}
        final: list[Checkpoint] = []
        below: list[Checkpoint] = []
        for one in held.checkpoints.values():
            (final if one.position < end and trunk[one.position] == one.slot else below).append(one)
        covered, behind = 0, -1
        for one in sorted(final, key=_position, reverse=True):
            if one.layers & ~covered:
                covered |= one.layers
                behind = one.position if covered == self.all else -1
            elif not one.for_others and id(one) not in used:  # what is read once more goes on in the next forward
                self._drop_checkpoint(held, one.slot)
        for one in sorted([one for one in below if id(one) not in used], key=_position)[UNUSED:]:
            self._drop_checkpoint(held, one.slot)
        for slot in [
            slot for slot, kept in held.inputs.items() if kept.position <= behind and trunk[kept.position] == slot
        ]:
            self._drop_inputs(held, slot)


def _position(checkpoint: Checkpoint) -> int:
    return checkpoint.position


def _ends(widths: Iterable[int]) -> list[int]:
    """[0, a, a + b, ...] of widths a, b, ..."""
    ends = [0]
    for width in widths:
        ends.append(ends[-1] + width)
    return ends


@lru_cache(maxsize=256)
def _mask(layers: tuple[int, ...], start: int, stop: int) -> int:
    return sum(1 << number for number, layer in enumerate(layers) if start <= layer < stop)
