"""Depth rules that learn nothing, and what every depth controller looks like.

Refuses to know drafters. A controller only decides whether to draft one layer more: a token that was drafted stays
in the forest, since dropping it would bias the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from draftwood.sampling import Streams
from draftwood.trace import Round


@dataclass(frozen=True, slots=True)
class Growth:
    """What has been drafted when a controller is asked: layers so far, the last layer's nodes and logits."""

    depth: int
    nodes: Sequence[int] = ()
    logits: Tensor | None = None  # [n, V] that the last layer was drawn from; given when the controller needs 'logits'


class DepthController(Protocol):
    """Asked before each layer whether to draft it."""

    needs: frozenset[str]

    def start(self, streams: Streams) -> None:
        """A round begins; use only the stream 'depth'."""

    def deeper(self, growth: Growth) -> bool:
        """Whether to draft the layer after `growth`."""

    def observe(self, news: Round) -> None:
        """A round ended."""


@dataclass(slots=True)
class Fixed:
    """Draft `depth` layers in every round."""

    depth: int
    needs: frozenset[str] = frozenset()

    def start(self, streams: Streams) -> None:
        pass

    def deeper(self, growth: Growth) -> bool:
        return growth.depth < self.depth

    def observe(self, news: Round) -> None:
        pass
