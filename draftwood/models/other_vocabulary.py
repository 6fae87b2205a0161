"""A draft model whose tokenizer is not the target's: the model, and the map between both vocabularies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.text.vocabulary_map import VocabularyMap


class OtherVocabulary:
    """A model in its own tokens, all of it the model's own; `vocabulary_map` says what the target's tokens are in them.

    Drafting goes from one to the other (`draft.translated.TranslatedSession`).
    """

    def __init__(self, model: CausalModel, vocabulary_map: VocabularyMap) -> None:
        self._model, self.vocabulary_map = model, vocabulary_map
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
