"""How nodes and tokens of the trunk are called: nodes 0, 1, ..., tokens of the trunk by numbers below those."""

from __future__ import annotations

TRUNK = -1  # parent of a node that hangs directly on the trunk


def trunk_node(position: int) -> int:
    """The number, below TRUNK, by which the trunk's token at a position is called among nodes."""
    return TRUNK - 1 - position


def trunk_position(node: int) -> int:
    """The position of the trunk's token that is called `node`; the inverse of `trunk_node`."""
    return TRUNK - 1 - node
