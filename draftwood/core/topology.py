"""Masks of regular trees, built once and sliced: MCSD's dynamic sliced topology-aware mask (§3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

TRUNK = -1  # parent of a node that hangs directly on the trunk
Mask = npt.NDArray[np.bool_]


def trunk_node(position: int) -> int:
    """The number, below TRUNK, by which the trunk's token at a position is called among nodes."""
    return TRUNK - 1 - position


def trunk_position(node: int) -> int:
    """The position of the trunk's token that is called `node`; the inverse of `trunk_node`."""
    return TRUNK - 1 - node


def ancestor_mask(parents: Sequence[int]) -> Mask:
    """Which nodes each node sees [n, n], itself and its ancestors; parents come before children, TRUNK for roots."""
    mask = np.zeros((len(parents), len(parents)), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent != TRUNK:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask


class Template:
    """The full tree with widths[0] roots, widths[1] children of each of those, ...: a fork is (W, 1, ..., 1).

    Nodes are numbered layer by layer, so that the tree cut after any layer is a leading block of the mask, a view.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        parents: list[int] = []
        ends = [0]
        layer = [TRUNK]
        for width in widths:
            first = len(parents)
            parents += [node for node in layer for _ in range(width)]
            layer = list(range(first, len(parents)))
            ends.append(len(parents))
        self.widths = tuple(widths)
        self.parents = np.array(parents, dtype=np.int64)
        self.ends = ends  # nodes in the first 0, 1, ... layers
        self.mask = ancestor_mask(parents)
        self.mask.setflags(write=False)

    def __len__(self) -> int:
        return len(self.parents)

    def sliced(self, layers: int) -> Mask:
        """The mask [n, n] of the first `layers` layers, without a copy."""
        count = self.ends[layers]
        return self.mask[:count, :count]

    def fits(self, parents: Sequence[int]) -> bool:
        """Whether a forest with these parents is the tree's first nodes, so that the leading block is its mask."""
        return len(parents) <= len(self) and bool(np.array_equal(self.parents[: len(parents)], parents))


@lru_cache(maxsize=64)
def template(widths: tuple[int, ...]) -> Template:
    """The template of a k-configuration, built once."""
    return Template(widths)


def fork(width: int, depth: int) -> Template:
    """W chains of D tokens (MCSD Figure 2)."""
    return template((width, *(1,) * (depth - 1)))
