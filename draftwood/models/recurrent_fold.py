"""Folding tokens into the state of a recurrent layer, one by one: over the walks of a forward, or over whole texts.

PyTorch's operations get the same shapes for every token, whatever the forward, so that a row has the same bits in a
prompt, a chain, a tree, a beam and a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from draftwood.models.recurrent_states import RecurrentStates, StatePlan

FoldStep: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # state [B, S], input [B, I] -> state, output


class StateStore(Protocol):
    """The states of one recurrent layer, as its mixer uses them."""

    def fold(self, step: FoldStep, inputs: Tensor, state: int) -> Tensor:
        """Outputs [B, N, O] of inputs [B, N, I], folded into states of `state` values."""
        ...


class WholeTexts:
    """Whole texts, token by token from no state: differentiable."""

    def fold(self, step: FoldStep, inputs: Tensor, state: int) -> Tensor:
        states = inputs.new_zeros(len(inputs), state)
        outputs = []
        for token in inputs.unbind(1):
            states, output = step(states, token)
            outputs.append(output)
        return torch.stack(outputs, 1)


@dataclass(slots=True)
class CachedStates:
    """The states of recurrent layer number `number` of a cache, in one forward."""

    states: RecurrentStates
    plan: StatePlan
    number: int

    def fold(self, step: FoldStep, inputs: Tensor, state: int) -> Tensor:
        ends, bounds, plan = self.states.input_ends, self.states.state_ends, self.plan
        rows, own = inputs[0], slice(bounds[self.number], bounds[self.number + 1])
        pool = self.states.memory.pool[:, ends[self.number] : ends[self.number + 1]]
        if plan.saved:
            places, saved = (torch.tensor(part, device=rows.device) for part in (plan.places, plan.saved))
            pool.index_copy_(0, places, rows[saved])
        outputs: list[Tensor] = []
        for walk in plan.walks:
            made: dict[int, Tensor] = {}  # states that later steps go on from
            output_of: dict[int, Tensor] = {}
            last = walk.last_children()
            parents = zip(walk.parents, walk.sources, last, strict=True)
            for number, (parent, source, done) in enumerate(parents):
                if parent >= 0:
                    before = made.pop(parent) if done else made[parent]
                else:
                    start = walk.starts[-1 - parent]
                    before = rows.new_zeros(1, state) if start is None else start.state.data[None, own]
                token = rows[source : source + 1] if source >= 0 else pool[-1 - source, None]
                after, output = step(before, token)
                made[number] = after
                if source >= 0:
                    output_of[source] = output[0]
                if (kept := walk.stored.get(number)) is not None:
                    kept.data[own] = after[0]
            outputs += [output_of[row] for row in range(walk.first, walk.first + walk.count)]
        outputs += outputs[-1:] * (len(rows) - len(outputs))  # padding repeats the last row
        return torch.stack(outputs)[None]
