"""A draft model whose tokenizer is not the target's: the model, and the map between both vocabularies."""

from __future__ import annotations

from draftwood.models.base import CausalModel
from draftwood.models.delegate import Delegate
from draftwood.models.text.vocabulary_map import VocabularyMap


class OtherVocabulary(Delegate):
    """A model in its own tokens, all of it the model's own; `vocabulary_map` says what the target's tokens are in them.

    Drafting goes from one to the other (`draft.translated.TranslatedSession`).
    """

    def __init__(self, model: CausalModel, vocabulary_map: VocabularyMap) -> None:
        super().__init__(model)
        self.vocabulary_map = vocabulary_map
