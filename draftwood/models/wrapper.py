"""What models that wrap a decoder have of it, and the bytes of weights that modules read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from draftwood.models.cache import Budget, Cache

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder


class AroundDecoder:
    """A `CausalModel` around a decoder: what it does not say of itself is the decoder's."""

    decoder: Decoder

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

    def cells(self, count: int) -> int:
        return self.decoder.cells(count)

    def new_cache(self, slots: int = 0, budget: Budget | None = None) -> Cache:
        return self.decoder.new_cache(slots, budget)


def bytes_of(module: nn.Module, recurse: bool = True) -> int:
    """Bytes of a module's weights: of packed ones what they take, else of its parameters."""
    held: int | None = getattr(module, "weight_bytes", None)
    parts = module.parameters(recurse)
    return held if held is not None else sum(part.numel() * part.element_size() for part in parts)
