"""Decoders of a larger shape in memory."""

from __future__ import annotations

import torch

from benchmarks.grow.growth import Growth
from draftwood.models.decoder import Decoder


def grow(model: Decoder, layers: int, width: int, **shape: int) -> Decoder:
    """A decoder of so many layers and this width that computes what `model` computes, its head untied."""
    growth = Growth.plan(model, layers, width, **shape)
    with torch.device("meta"):
        grown = Decoder(growth.config)
    state = {name: make(model.dtype).to(model.device) for name, _, make in growth.parameters(model)}
    grown.load_state_dict(state, assign=True)
    return grown.eval().requires_grad_(False)
