"""Recurrent layers in the native library: the mixers as it wants them, and the walks of a forward."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from struct import Struct

from torch import Tensor

from draftwood.models.layers.recurrent import Recurrence
from draftwood.models.recurrent_config import CONV, DELTA, SSM
from draftwood.models.recurrent_states import RecurrentStates, StatePlan
from draftwood.models.recurrent_walk import Walk

KINDS = {DELTA: 0, SSM: 1, CONV: 2}
# dw_walks: walks, branches, starts, kept, saved, rows of the pool; 8 places from end to pool; its stride; saved, places
_WALKS = Struct("@6i8Pq2P")


class NativeRecurrence(Structure):
    """dw_recurrence of native/src/abi.h."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "kernel", "channels", "inputs")),
        *(
            (name, c_int32)
            for name in ("key_heads", "key_dim", "value_heads", "value_dim", "norm_groups", "gate_first")
        ),
        *((name, c_float) for name in ("eps", "step_least", "step_most")),
        *((name, c_int64) for name in ("input_at", "state_at")),
        *((name, c_void_p) for name in ("conv", "conv_bias", "decay", "step_bias", "norm", "skip", "scale")),
        ("tiled", c_int32),
    ]


def native_recurrence(
    part: Recurrence, inputs_before: int, state_before: int, vector: Callable[[Tensor | None], int | None]
) -> NativeRecurrence:
    """A mixer's steps; `vector` keeps a tensor as floats and gives its address."""
    c, own = part.recurrent, NativeRecurrence()
    own.kind, own.kernel, own.channels, own.inputs = KINDS[c.kind], c.kernel, part.channels, part.inputs
    own.key_heads, own.key_dim, own.value_heads, own.value_dim = c.key_heads, c.key_dim, c.value_heads, c.value_dim
    own.norm_groups, own.gate_first, own.eps = c.norm_groups, c.gate_first and c.kind != DELTA, part.eps
    own.step_least, own.step_most = c.step_limit
    own.input_at, own.state_at, own.tiled = inputs_before, state_before, c.tiled
    own.conv, own.conv_bias = vector(part.conv.flatten()), vector(part.conv_bias)
    if c.kind != CONV:
        own.decay, own.step_bias = vector(-part.decay_log.detach().float().exp()), vector(part.step_bias)
        own.norm = vector(part.gated_norm if c.gated_norm else None)
    own.scale = vector(part.scale())
    own.skip = vector(part.skip if c.kind == SSM else None)
    return own


class NativeWalks:
    """The walks of a plan in the library's words; they hold what `call` points to."""

    def __init__(self, states: RecurrentStates, plan: StatePlan) -> None:
        ends, parents, sources, keep, branch = (array("i") for _ in range(5))
        starts, kept = array("Q"), array("Q")
        most = 0
        for walk in plan.walks:
            first, first_start, count = len(parents), len(starts), len(walk.parents)
            parents.extend(parent + first if parent >= 0 else parent - first_start for parent in walk.parents)
            sources.extend(walk.sources)
            starts.extend(0 if one is None else one.state.data.data_ptr() for one in walk.starts)
            stored = array("i", [-1]) * count
            for step, state in walk.stored.items():
                stored[step] = len(kept)
                kept.append(state.data.data_ptr())
            keep.extend(stored)
            branches, deepest = _branches(walk)
            branch.extend(branches)
            most = max(most, deepest)
            ends.append(len(parents))
        saved, places = array("i", plan.saved), array("i", plan.places)
        self._kept = ends, parents, sources, keep, branch, starts, kept, saved, places
        at = [_start(part) for part in self._kept]
        self.call = _WALKS.pack(
            *(len(ends), most, len(starts), len(kept), len(saved), len(states.memory.pool)),
            *(*at[:7], states.memory.pool.data_ptr(), states.memory.pool.shape[1], *at[7:]),
        )


def _branches(walk: Walk) -> tuple[Sequence[int], int]:
    """Which steps another one than the next goes on from (1, else 0), and the most of them on any path."""
    count = len(walk.parents)
    branch = array("i", [0]) * count
    for step, parent in enumerate(walk.parents):
        if parent >= 0 and parent != step - 1:
            branch[parent] = 1
    above = [0] * count
    for step, parent in enumerate(walk.parents):
        above[step] = branch[step] + (above[parent] if parent >= 0 else 0)
    return branch, max(above, default=0)


def _start(values: array[int]) -> int:
    return values.buffer_info()[0]
