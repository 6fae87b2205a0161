"""Heads that draft a block of tokens in one pass: rows behind an anchor, the last token, whose own rows nobody keeps.

An anchor is a row whose logits are wanted. Its path in a `Segment` ends with the slots of its block: its own and those
of `block` - 1 rows more, in which a mask stands for a token that is not known yet. Other rows are context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from draftwood.models.base import Batch, CausalModel, Segment


@runtime_checkable
class BlockDrafter(CausalModel, Protocol):
    """A draft model whose answer at a row is a block: `count` rows of logits side by side, [count * V].

    The first are of the token after the row's, those of the next rows of the tokens behind it. `block` slots are needed
    for it.
    """

    block: int
    count: int


class Block(NamedTuple):
    """The rows of a block: where its anchor is, what it sees before it, and its slots."""

    row: int  # of the batch
    position: int
    seen: int  # tokens of the trunk
    above: tuple[int, ...]  # slots of nodes between trunk and anchor
    slots: tuple[int, ...]  # [block] of the anchor and of the rows behind it


class BlockMask(NamedTuple):
    """The attention of a block's rows: to rows of the block up to their own or all, and context within a window.

    Of a window of w, the row i places behind the anchor at p sees positions above p + i - w; with `from_anchor` the
    context from p - w on, and as much of the block as without a window.
    """

    causal: bool = False
    window: int | None = None
    from_anchor: bool = False

    def segment(self, segment: Segment, blocks: Sequence[Block]) -> Segment:
        """The rows of some blocks of a request, in order."""
        slots: list[int] = []
        seen: list[int] = []
        paths: list[tuple[int, ...]] = []
        for block in blocks:
            slots += block.slots
            for i in range(len(block.slots)):
                first, own = 0, list(block.slots[: i + 1] if self.causal else block.slots)
                if self.window is not None and self.from_anchor:
                    first = max(0, block.position - self.window)
                elif self.window is not None:
                    first = max(0, block.position + i + 1 - self.window)
                    own = own[max(0, i + 1 - self.window) : i + self.window]
                if first:
                    before = [*segment.trunk[: block.seen], *block.above][first:]
                    seen.append(0)
                    paths.append((*before, *own))
                else:
                    seen.append(block.seen)
                    paths.append((*block.above, *own))
        return Segment(segment.extent, slots, segment.trunk, seen, paths)


def wanted_rows(batch: Batch) -> list[int]:
    """The numbers of the rows whose logits are wanted."""
    if isinstance(batch.wanted, slice):
        return list(range(*batch.wanted.indices(len(batch))))
    rows: list[int] = batch.wanted.tolist()
    return rows


def blocks_of(batch: Batch, size: int) -> list[list[Block]]:
    """The blocks of each segment of a batch, in the order of its rows."""
    anchors, first, blocks = set(wanted_rows(batch)), 0, []
    for segment in batch.segments:
        here = [row for row in range(len(segment)) if first + row in anchors]
        blocks.append(
            [
                Block(
                    first + row,
                    batch.numbers[len(batch) + first + row],
                    segment.seen[row],
                    tuple(segment.paths[row][:-size]),
                    tuple(segment.paths[row][-size:]),
                )
                for row in here
            ]
        )
        first += len(segment)
    return blocks


def answers(rows: Tensor, count: int, batch: Batch) -> Tensor:
    """Rows [n * count, W] of blocks in the order of a batch's rows -> [n, count * W] in that of its wanted rows."""
    anchors = wanted_rows(batch)
    place = {row: i for i, row in enumerate(sorted(anchors))}
    return rows.reshape(len(anchors), count * rows.shape[-1])[[place[row] for row in anchors]]


def repeated(x: Tensor, count: int) -> Tensor:
    """x [n, ...] with its last row repeated until there are `count`, which products need for the same bits."""
    return x if len(x) >= count else torch.cat((x, x[-1:].expand(count - len(x), *x.shape[1:])))
