"""A skip set for a grown target: what self-drafting costs and how often it is right, at the larger shape.

Added layers say nothing, so skipping all of them would be free, which is so of no real model: as large a share of them
is skipped as of the source's own.
"""

from __future__ import annotations

from pathlib import Path

from draftwood.models.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.grow import Growth
from draftwood.models.grow_exit import grown_fingerprint
from draftwood.models.identity import fingerprint
from draftwood.models.skip import BESIDE, Skipped, write_skipped


def grow_skipped(skipped: Skipped, growth: Growth) -> Skipped:
    """The same sublayers of the grown target, and evenly spaced ones of the added layers in the same proportion."""
    layers = growth.before.num_hidden_layers
    added, first = growth.config.num_hidden_layers - layers, min(growth.keep_first, layers)

    def grown(known: tuple[int, ...]) -> tuple[int, ...]:
        moved = [layer if layer < first else layer + added for layer in known]
        count = round(added * len(known) / layers)
        return (*moved, *(first + int((place + 0.5) * added / count) for place in range(count)))

    return Skipped(grown(skipped.attention), grown(skipped.mlp))


def write_grown_skipped(skipped: Skipped, model: Decoder, growth: Growth, directory: Path, dtype: str) -> None:
    """Write the set of `model`, grown, beside the grown weights in `directory`."""
    whose, layers = grown_fingerprint(model, growth, DTYPES[dtype]), growth.config.num_hidden_layers
    write_skipped(directory / BESIDE, grow_skipped(skipped, growth), whose, layers, {"grown_from": fingerprint(model)})
