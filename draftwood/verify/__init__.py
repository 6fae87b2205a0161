"""Verification rules: pure maths on small arrays, no model and no cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify.coupled import Coupled
from draftwood.verify.initialised import Initialised
from draftwood.verify.kseq import KSeq
from draftwood.verify.layers import BeamSampling, BeamSearching
from draftwood.verify.longest import LongestPath
from draftwood.verify.traversal import Traversal
from draftwood.verify.tree import Rejection
from draftwood.verify.typical import GreedyText, Typical

__all__ = [
    "BeamSampling",
    "BeamSearching",
    "Coupled",
    "GreedyText",
    "Initialised",
    "KSeq",
    "LongestPath",
    "Rejection",
    "Traversal",
    "Typical",
    "Verifier",
    "VerifierProxy",
]


class Verifier(Protocol):
    """Chooses the next roots of a forest from the target's distributions after its nodes; pure but for `streams`.

    `coupled` says that drafts must share the target's Gumbel noise (verify/coupled.py).
    """

    name: str
    lossless: bool
    coupled: bool

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict: ...


@dataclass(slots=True)
class VerifierProxy:
    """Stands in for a verifier, to watch it: has its name and its properties, and calls it in a subclass."""

    verify: Verifier
    name: str = field(init=False)
    lossless: bool = field(init=False)
    coupled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.lossless, self.coupled = self.verify.name, self.verify.lossless, self.verify.coupled
