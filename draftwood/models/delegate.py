"""A model around another one, all of which is the other's but for what a subclass changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.memory_budget import MemoryBudget


class Delegate:
    """A `CausalModel` that hands everything on to `_model`."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.vocab_size, self.context, self.n_layers = model.vocab_size, model.context, model.n_layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def device(self) -> torch.device:
        return self._model.device

    def padded_rows(self, count: int) -> int:
        return self._model.padded_rows(count)

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        return self._model.new_cache(slots, budget)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        return self._model.forward(batch, cache)


def undelegated(model: CausalModel) -> CausalModel:
    """The model to which all is handed on in the end; one that hands nothing on is that itself."""
    while isinstance(model, Delegate):
        model = model._model
    return model
