"""Verification rules: pure maths on small arrays, no model and no cache."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.sampling import Penalties, SamplingParams, Streams
from draftwood.verify.coupled import Coupled
from draftwood.verify.initialised import Initialised
from draftwood.verify.layers import BeamSampling, BeamSearching
from draftwood.verify.tree import Rejection
from draftwood.verify.typical import GreedyText, Typical

__all__ = [
    "BeamSampling",
    "BeamSearching",
    "Coupled",
    "GreedyText",
    "Initialised",
    "Rejection",
    "Typical",
    "Verifier",
]


class Verifier(Protocol):
    """Chooses the next roots from the target's logits [n, V] of the forest's fresh nodes; pure but for `streams`."""

    name: str
    lossless: bool

    def __call__(
        self, forest: Forest, logits: Tensor, params: SamplingParams, penalties: Penalties | None, streams: Streams
    ) -> Verdict: ...
