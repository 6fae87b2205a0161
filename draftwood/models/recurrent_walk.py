"""The steps of a forward's recurrent layers over one segment: which token's inputs are folded into which state.

Steps come in depth-first order, a step behind the one that it goes on from or behind a sibling's descendants: whoever
walks them needs a stack of states for branches alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwood.models.base import Segment
from draftwood.models.recurrent_memory import Checkpoint, ExtentStates, State


@dataclass(slots=True)
class Walk:
    """Steps 0, 1, ...: tokens of the segment's rows (batch rows), and of rows before them that are folded again.

    `parents`: the step that each goes on from; -1 - i: it begins from `starts[i]`, None being the state of no token.
    `sources`: the row of the batch whose inputs are folded; -1 - i: row i of the pool of inputs.
    """

    first: int  # row of the batch that is the segment's first
    count: int  # rows of the segment
    starts: list[Checkpoint | None] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)  # steps of the rows below the trunk; the last row if there is none
    trunk: int = 0  # rows at positions below this one are the trunk's
    step_of: dict[int, int] = field(default_factory=dict)  # by slot
    stored: dict[int, State] = field(default_factory=dict)  # where the state behind a step is kept

    @classmethod
    def of(cls, segment: Segment, first: int, held: ExtentStates, layers: int) -> Walk:
        """The walk over a segment whose first row is row `first` of the batch, in some recurrent layers (bits)."""
        walk = cls(first, len(segment))
        rows = dict(zip(segment.slots, range(first, first + len(segment)), strict=True))
        start_of: dict[int, int] = {}  # by slot; -1: no token
        places: dict[int, int] = {}  # number, in order of addition, of the step of each slot
        added: list[tuple[int, int, int, int]] = []  # parent, source, slot, position of each step in that order
        trunk, checkpoints, inputs = segment.trunk, held.checkpoints, held.inputs
        for seen, path in zip(segment.seen, segment.paths, strict=True):
            back: list[tuple[int, int]] = []  # slots and positions from this row upwards
            position, parent = seen + len(path), -1
            while position > 0:
                position -= 1
                slot = path[position - seen] if position >= seen else trunk[position]
                if (known := places.get(slot)) is not None:
                    parent = known
                    break
                if slot not in rows and (one := checkpoints.get(slot)) is not None and not layers & ~one.layers:
                    parent = walk._start(start_of, slot, one)
                    break
                back.append((slot, position))
            else:
                parent = walk._start(start_of, -1, None)
            for slot, position in reversed(back):
                source = rows.get(slot)
                if source is None:
                    kept = inputs.get(slot)
                    if kept is None or layers & ~kept.layers:
                        raise RuntimeError(f"the inputs of the token at position {position} are not there any more")
                    source = -1 - kept.row
                places[slot] = len(added)
                added.append((parent, source, slot, position))
                parent = places[slot]
        below = [path[-1] for path in segment.paths if path]
        walk._order(added)
        walk.leaves = [walk.step_of[slot] for slot in below or segment.slots[-1:]]
        walk.trunk = max(segment.seen)
        return walk

    def _start(self, start_of: dict[int, int], slot: int, checkpoint: Checkpoint | None) -> int:
        if slot not in start_of:
            start_of[slot] = len(self.starts)
            self.starts.append(checkpoint)
        return -1 - start_of[slot]

    def _order(self, added: list[tuple[int, int, int, int]]) -> None:
        """Take steps over in depth-first order."""
        children: dict[int, list[int]] = {}
        for number, (parent, *_) in enumerate(added):
            children.setdefault(parent, []).append(number)
        waiting = [number for start in range(len(self.starts)) for number in children.get(-1 - start, [])][::-1]
        new: dict[int, int] = {}
        while waiting:
            number = waiting.pop()
            parent, source, slot, position = added[number]
            new[number] = self.step_of[slot] = len(self.parents)
            self.parents.append(parent if parent < 0 else new[parent])
            self.sources.append(source)
            self.slots.append(slot)
            self.positions.append(position)
            waiting += reversed(children.get(number, []))

    def common_steps(self, long: int) -> list[int]:
        """Steps whose state is worth keeping: the last that all leaves share, and ends of replays of `long` steps."""
        count, replayed = len(self.parents), [0] * len(self.parents)
        leaves, ends = [0] * count, [False] * count
        for leaf in self.leaves:
            leaves[leaf] += 1
        for step, (parent, source) in enumerate(zip(self.parents, self.sources, strict=True)):
            replay = source < 0
            if replay:
                ends[step] = True
                replayed[step] = 1 + (replayed[parent] if parent >= 0 else 0)
                if parent >= 0:
                    ends[parent] = False
        for step in range(count - 1, -1, -1):
            if (parent := self.parents[step]) >= 0:
                leaves[parent] += leaves[step]
        shared = [step for step in range(count) if leaves[step] == len(self.leaves)]
        return shared[-1:] + [step for step in range(count) if ends[step] and replayed[step] >= long]

    def ends_prompt(self, rows: int) -> bool:
        """Whether at least so many tokens of the trunk are read here, and what follows them."""
        below = sum(position >= self.trunk for position in self.positions)
        return 0 < below <= self.count - rows

    def read_at(self, interval: int, wish: int) -> list[int]:
        """Steps of the trunk's rows behind which a multiple of `interval` tokens of a text, or `wish`, were read."""
        rows = zip(self.sources, self.slots, self.positions, strict=True)
        return [
            step
            for step, (source, slot, at) in enumerate(rows)
            if source >= 0 and slot == at < self.trunk and ((at + 1) % interval == 0 or at + 1 == wish)
        ]

    def last_children(self) -> list[bool]:
        """Of each step whether no later one goes on from where it does."""
        seen: set[int] = set()
        last = [False] * len(self.parents)
        for step in range(len(last) - 1, -1, -1):
            if self.parents[step] not in seen:
                last[step] = True
                seen.add(self.parents[step])
        return last
