"""A draft model on another device than the target, whose logits are moved to the device of the target's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.memory_budget import MemoryBudget


class OnOtherDevice:
    """A model whose logits and returned states are moved to the device `answers`; all else is the model's own."""

    def __init__(self, model: CausalModel, answers: torch.device) -> None:
        self._model, self._answers = model, answers
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
        """The model's forward; only forwards of all layers, as drafts are made, are supported."""
        out = self._model.forward(batch, cache).to(self._answers)
        batch.kept = {layer: states.to(self._answers) for layer, states in batch.kept.items()}
        return out
