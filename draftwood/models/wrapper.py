"""The part of `CausalModel` that a model around a decoder takes from it."""

from __future__ import annotations

import torch

from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder
from draftwood.models.memory_budget import MemoryBudget


class DecoderWrapper:
    """A `CausalModel` that adds to a decoder; members that it does not define are the decoder's."""

    decoder: Decoder
    acceptance: float | None = None  # of drafts that were trained, `Artifact.acceptance`

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def kernels(self) -> str:
        return self.decoder.kernels

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward reads."""
        return self.decoder.weight_bytes

    @property
    def routed(self) -> tuple[int, float]:
        """Bytes of experts among them, and the share of these that one row reads."""
        return self.decoder.routed

    def padded_rows(self, count: int) -> int:
        return self.decoder.padded_rows(count)

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        return self.decoder.new_cache(slots, budget)
