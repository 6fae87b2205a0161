"""Memory for the states of recurrent layers: what extents were promised, what they have, and what is free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.errors import OutOfMemory
from draftwood.models.extents import Extent
from draftwood.models.memory_budget import MemoryBudget

ROWS_STEP = 32  # tokens by which the memory for inputs grows


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
    """Checkpoints and inputs that are kept for the slots of one extent."""

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


class StateMemory:
    """Inputs of tokens in a pool, and states; the bytes of both count against a budget."""

    def __init__(
        self, input_width: int, state_width: int, device: torch.device, dtype: torch.dtype, budget: MemoryBudget
    ) -> None:
        """`input_width`, `state_width`: values of all recurrent layers of one token."""
        self.state_width, self.device, self.dtype, self.budget = state_width, device, dtype, budget
        self.row_bytes, self.state_bytes = input_width * dtype.itemsize, state_width * dtype.itemsize
        self.pool = torch.zeros(0, input_width, dtype=dtype, device=device)  # inputs of tokens
        self.extents: dict[Extent, ExtentStates] = {}
        self._free_rows: list[int] = []  # heap
        self._free_states: list[State] = []
        self._allocated = 0  # states

    @property
    def bytes(self) -> int:
        """The bytes that count against the budget."""
        return len(self.pool) * self.row_bytes + self._allocated * self.state_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes of what is kept now."""
        rows = len(self.pool) - len(self._free_rows)
        return rows * self.row_bytes + (self._allocated - len(self._free_states)) * self.state_bytes

    def of(self, extent: Extent) -> ExtentStates:
        """Checkpoints and inputs of an extent, none at first."""
        held = self.extents.get(extent)
        if held is None:
            held = self.extents[extent] = ExtentStates()
        return held

    def allocate(self, more_rows: int = 0, more_states: int = 0) -> None:
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
                    data = torch.empty(self.state_width, dtype=self.dtype, device=self.device)
                    self._free_states.append(State(data))
                    self._allocated += 1
        except (RuntimeError, MemoryError) as error:
            self.budget.take(self, self.bytes)
            raise OutOfMemory(f"this machine has no memory for the states of recurrent layers ({error})") from error

    def _promised(self) -> tuple[int, int]:
        """Inputs and states that extents were promised and have not taken."""
        helds = self.extents.values()
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
        used = 1 + max((kept.row for held in self.extents.values() for kept in held.inputs.values()), default=-1)
        rows += len(self.pool) - len(self._free_rows)
        self._resize(min(len(self.pool), -(-max(rows, used) // ROWS_STEP) * ROWS_STEP))
        while len(self._free_states) > states:
            self._free_states.pop()
            self._allocated -= 1
        self.budget.take(self, self.bytes)

    def new_row(self, held: ExtentStates) -> int:
        """A row of the pool for the inputs of one token."""
        if len(held.inputs) >= held.rows:
            self.allocate(more_rows=1)
        return heapq.heappop(self._free_rows)

    def new_state(self, held: ExtentStates, promised: bool) -> State | None:
        """Memory for a state, out of what an extent was promised, or beyond that; None where it is short."""
        if not (promised and held.own_states < held.states):
            try:
                self.allocate(more_states=1)
            except OutOfMemory:
                return None
        held.taken += 1
        return self._free_states.pop()

    def drop_checkpoint(self, held: ExtentStates, slot: int) -> None:
        """The checkpoint in a slot, if any, is not needed any more."""
        checkpoint = held.checkpoints.pop(slot, None)
        if checkpoint is not None:
            self.give_back(checkpoint.state)

    def give_back(self, state: State) -> None:
        """One request less uses a state, or a new one was not used at all."""
        state.users = max(0, state.users - 1)
        if not state.users:
            self._free_states.append(state)

    def drop_inputs(self, held: ExtentStates, slot: int) -> None:
        """The inputs of the token in a slot, if any, are not needed any more."""
        kept = held.inputs.pop(slot, None)
        if kept is not None:
            heapq.heappush(self._free_rows, kept.row)

    def forget(self, held: ExtentStates, slots: Iterable[int]) -> None:
        """Slots hold nothing any more."""
        for slot in slots:
            self.drop_checkpoint(held, slot)
            self.drop_inputs(held, slot)
