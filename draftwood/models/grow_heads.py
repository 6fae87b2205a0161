"""Medusa heads for a grown target, grown alike: the same drafts at the larger shape's cost.

What the single weights become is for replicas.py to know.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from draftwood.models.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.grow import Growth
from draftwood.models.grow_exit import grown_fingerprint
from draftwood.models.heads import BESIDE, Heads, save
from draftwood.models.replicas import Copies, maker


def grow_heads(heads: Heads, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown heads, by name; the noise of each is its own."""
    copies = Copies.of(growth.before, growth.config)
    grown = {}
    for name, weight in heads.weights().items():
        part, k, which = name.split(".")
        role = f"layers.{k}.lift.{which}" if part == "lift" else "head.weight"
        grown[name] = maker(copies, role, weight, False, growth.seed + 2 + int(k))(dtype)
    return grown


def write_heads(heads: Heads, model: Decoder, growth: Growth, directory: Path, dtype: str) -> None:
    """Write the heads of `model`, grown, beside the grown weights in `directory`."""
    kind = DTYPES[dtype]
    whose = grown_fingerprint(model, growth, kind)
    weights = grow_heads(heads, growth, kind)
    save(weights, directory / BESIDE, whose, kind, ranks=heads.ranks, grown_from=heads.target)
