"""An exit layer for a grown target, grown alike: the same drafts at the larger shape's cost.

Knows which layer it is behind afterwards; what the single weights become is for replicas.py to know.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from draftwood.models.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.exit import BESIDE, ExitLayer, save
from draftwood.models.grow import Growth
from draftwood.models.identity import fingerprint
from draftwood.models.replicas import Copies, maker


def grown_fingerprint(model: Decoder, growth: Growth, dtype: torch.dtype) -> str:
    """The fingerprint of `model`, grown, without growing all of it."""
    with torch.device("meta"):
        grown = Decoder(growth.config)
    for name, _, make in growth.parameters(model):  # what a fingerprint is made of
        if name == "norm":
            grown.norm = nn.Parameter(make(dtype))
        elif name == "embed.weight":
            grown.embed.weight = nn.Parameter(make(dtype))
    return fingerprint(grown)


def grown_layers(layers: int, growth: Growth) -> int:
    """Which layer of the grown target says what layer `layers` said: added ones lie behind the first that are kept."""
    added = growth.config.num_hidden_layers - growth.before.num_hidden_layers
    return layers if layers <= growth.keep_first else layers + added


def grow_exit(exit: ExitLayer, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown exit, by name; its noise is another than the target's."""
    copies = Copies.of(growth.before, growth.config)
    return {name: maker(copies, name, weight, False, growth.seed + 1)(dtype) for name, weight in exit.weights().items()}


def write_exit(exit: ExitLayer, model: Decoder, growth: Growth, directory: Path, dtype: str) -> None:
    """Write the exit of `model`, grown, beside the grown weights in `directory`."""
    kind = DTYPES[dtype]
    layers = grown_layers(exit.layers, growth)
    weights = grow_exit(exit, growth, kind)
    whose = grown_fingerprint(model, growth, kind)
    save(weights, directory / BESIDE, whose, growth.config, layers, kind, grown_from=exit.target)
