"""The shape of a k-configuration: how many drafts each layer of a regular tree has (MCSD §3.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A k-configuration: `initial` tokens of the target, tree[0] drafts below each, tree[1] below each of those, ..."""

    tree: tuple[int, ...]
    initial: int = 1

    def __post_init__(self) -> None:
        if self.initial < 1 or any(width < 1 for width in self.tree):
            raise ValueError("the numbers of a k-configuration are 1 or more; leave a layer out to have none")

    @property
    def layers(self) -> list[int]:
        """Rows of each layer, the initial tokens first."""
        rows = [self.initial]
        for width in self.tree:
            rows.append(rows[-1] * width)
        return rows

    @property
    def rows(self) -> int:
        """Tokens that the target verifies at once."""
        return sum(self.layers)
