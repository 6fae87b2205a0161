"""The knobs of alternating updates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AltUpConfig:
    """Alternating updates (Baykal et al. 2023, AltUp) and learned augmented residual layers (LAuReL), as in Gemma 3n.

    Rows are `inputs` vectors of the hidden size side by side. A layer computes with number `active` of what it predicts
    from them, and corrects all predictions by the result. `scaled`: what per-layer inputs read is multiplied by a
    learned vector.
    """

    inputs: int
    active: int
    laurel_rank: int
    scaled: bool = True
