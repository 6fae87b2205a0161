"""Numbers for nodes of the draft tree (0, 1, ...) and for tokens of the trunk (below TRUNK)."""

from __future__ import annotations

TRUNK = -1  # parent of a node that hangs directly on the trunk


def trunk_node(position: int) -> int:
    """The number, below TRUNK, of the trunk's token at a position."""
    return TRUNK - 1 - position


def trunk_position(node: int) -> int:
    """The position of the trunk's token with number `node`; the inverse of `trunk_node`."""
    return TRUNK - 1 - node
