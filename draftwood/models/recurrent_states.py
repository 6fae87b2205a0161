"""The states of layers that read the past through a state: what a cache keeps for them beside keys and values.

The state of a recurrent layer behind a token is a fold over the tokens up to it. A row of a forward sees a list of
slots; its state is found by starting at the last slot of its list whose state was kept (a checkpoint) and folding the
inputs of the slots behind it once more (a replay). Where checkpoints lie is a matter of speed and memory alone: the
fold goes token by token in one order, so that a row has the same bits wherever it started.

Of the final tokens (the trunk) the last checkpoint but for the newest token stays, so that this token can be asked
for again; the inputs of the tokens behind it are kept until another checkpoint is ahead of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from draftwood.models.base import Batch, Segment
from draftwood.models.extents import Extent
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.recurrent_memory import Checkpoint, ExtentStates, KeptInputs, StateMemory
from draftwood.models.recurrent_walk import Walk

LONG_REPLAY = 16  # steps of a replay behind which a checkpoint is worth its memory
STATES = 4  # states that every request has memory for: of the trunk, of two rounds, and one that is being made
END_ROWS = 8  # tokens of the trunk that are read before a prompt's last one where that is worth a checkpoint
UNUSED = 1  # checkpoints below the trunk that are kept though the last forward did not start there
MIN_INTERVAL = 256  # tokens of a prompt between checkpoints for other requests, at least


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The number of a recurrent layer, and how many values an input and a state of it have."""

    layer: int
    inputs: int
    state: int


@dataclass(slots=True)
class StatePlan:
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
        self.shapes, self.layers = list(shapes), layers
        self.input_ends = _ends(shape.inputs for shape in shapes)
        self.state_ends = _ends(shape.state for shape in shapes)
        self.memory = StateMemory(self.input_ends[-1], self.state_ends[-1], device, dtype, budget)
        self.all = (1 << len(self.shapes)) - 1
        self.interval = max(MIN_INTERVAL, -(-self.memory.state_bytes // max(1, slot_bytes)))

    @property
    def bytes(self) -> int:
        """The bytes that count against the budget."""
        return self.memory.bytes

    @property
    def used_bytes(self) -> int:
        """The bytes of what is kept now."""
        return self.memory.used_bytes

    @property
    def extent_bytes(self) -> int:
        """Bytes that a request needs, whatever its length."""
        return STATES * self.memory.state_bytes + LONG_REPLAY * self.memory.row_bytes

    def reserve(self, extent: Extent, trunk: int, nodes: int) -> None:
        """Memory for a forward of so many tokens of the trunk and nodes; raises OutOfMemory where there is none."""
        held = self.memory.of(extent)
        held.states = STATES
        held.rows = len(held.inputs) + nodes + min(trunk, 2 * LONG_REPLAY)
        self.memory.allocate()

    def release(self, extent: Extent) -> None:
        """An extent is given back."""
        held = self.memory.extents.pop(extent, None)
        if held is not None:
            self.memory.forget(held, [*held.checkpoints, *held.inputs])
            self.memory.trim()

    def free(self, extent: Extent, slots: Iterable[int]) -> None:
        """Slots hold nothing any more."""
        held = self.memory.extents.get(extent)
        if held is not None:
            self.memory.forget(held, slots)

    def clear(self, extent: Extent, first: int) -> None:
        """The slots of an extent from `first` on hold nothing any more."""
        held = self.memory.extents.get(extent)
        if held is not None:
            self.memory.forget(held, [slot for slot in [*held.checkpoints, *held.inputs] if slot >= first])
            held.tip = min(held.tip, first)

    def settle(self, extent: Extent) -> None:
        """No request uses an extent any more: it stays as it is, for others to begin with."""
        held = self.memory.extents.get(extent)
        if held is not None:
            for slot in list(held.inputs):
                self.memory.drop_inputs(held, slot)
            for slot, checkpoint in list(held.checkpoints.items()):
                if checkpoint.slot != checkpoint.position or checkpoint.layers != self.all:
                    self.memory.drop_checkpoint(held, slot)
            held.rows = held.states = 0
            self.memory.trim()

    def held_bytes(self, extent: Extent) -> int:
        """Bytes of the states of an extent's slots."""
        return self.memory.state_bytes * len(self.memory.of(extent).checkpoints)

    def reusable(self, extent: Extent, tokens: int) -> int:
        """How many of the first `tokens` tokens, in slots 0, 1, ..., another request can begin behind."""
        held = self.memory.extents.get(extent)
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
        self.memory.of(extent).wish = tokens

    def copy(self, source: Extent, target: Extent, tokens: int) -> None:
        """A request begins behind the first `tokens` tokens of another one (`reusable`)."""
        held = self.memory.of(target)
        for checkpoint in self._begin(self.memory.of(source), tokens):
            if checkpoint.position == tokens - 1:
                checkpoint.state.users += 1
                held.checkpoints[checkpoint.slot] = Checkpoint(
                    checkpoint.slot, checkpoint.position, checkpoint.state, checkpoint.layers
                )
        held.tip = tokens

    def first_again(self, extent: Extent, trunk: Sequence[int], position: int) -> int:
        """The first token of the trunk that must be computed once more where the one at a position must be."""
        held, at = self.memory.of(extent), position - 1
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

    def mask(self, start: int, stop: int) -> int:
        """The recurrent layers in [start, stop), a bit each."""
        return _mask(tuple(shape.layer for shape in self.shapes), start, stop)

    @contextmanager
    def planned(self, batch: Batch) -> Iterator[StatePlan]:
        """A forward: what it keeps holds when it is through."""
        plan = self.plan(batch)
        try:
            yield plan
        except BaseException:
            self.discard(plan)
            raise
        self.commit(plan)

    def plan(self, batch: Batch) -> StatePlan:
        """How the rows of a forward are reached. What it writes is invalid from now on; see `commit`."""
        plan = StatePlan(layers=self.mask(batch.start, self.layers if batch.stop is None else batch.stop))
        first = 0
        try:
            for segment in batch.segments:
                held = self.memory.of(segment.extent)
                if batch.start == 0:
                    self.memory.forget(held, segment.slots)
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

    def _plan_segment(self, plan: StatePlan, held: ExtentStates, segment: Segment, walk: Walk) -> None:
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
                    kept = KeptInputs(self.memory.new_row(held), position)
                    held.inputs[slot] = kept
                kept.layers |= plan.layers
                plan.saved.append(row)
                plan.places.append(kept.row)

    def _make(self, plan: StatePlan, held: ExtentStates, step: int, promised: bool = True) -> Checkpoint | None:
        """Have the last segment's walk keep the state behind a step; None where there is no memory."""
        _, walk, made = plan.made[-1]
        slot = walk.slots[step]
        if step in walk.stored:
            return next(one for one in made if one.slot == slot)
        checkpoint = held.checkpoints.get(slot)
        if checkpoint is None:
            state = self.memory.new_state(held, promised)
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

    def commit(self, plan: StatePlan) -> None:
        """The forward of a plan is through: its checkpoints hold, and what they replace is given back."""
        for segment, walk, made in plan.made:
            held = self.memory.of(segment.extent)
            held.taken = 0
            for checkpoint in made:
                if checkpoint.slot not in held.checkpoints:
                    checkpoint.state.users += 1
                    held.checkpoints[checkpoint.slot] = checkpoint
                checkpoint.layers |= plan.layers
            self._drop_replaced(held, segment, walk, made)

    def discard(self, plan: StatePlan) -> None:
        """The forward of a plan has failed: its checkpoints hold nothing."""
        for segment, _, made in plan.made:
            held = self.memory.of(segment.extent)
            held.taken = 0
            for checkpoint in made:
                if checkpoint.slot not in held.checkpoints:
                    self.memory.give_back(checkpoint.state)
                else:
                    self.memory.drop_checkpoint(held, checkpoint.slot)

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
                self.memory.drop_checkpoint(held, one.slot)
        for one in sorted([one for one in below if id(one) not in used], key=_position)[UNUSED:]:
            self.memory.drop_checkpoint(held, one.slot)
        for slot in [
            slot for slot, kept in held.inputs.items() if kept.position <= behind and trunk[kept.position] == slot
        ]:
            self.memory.drop_inputs(held, slot)


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
