"""An engine whose requests are watched."""

from __future__ import annotations

from collections.abc import Callable

from draftwood.engine import Engine
from draftwood.generation import Generation
from draftwood.request import Request

GROUP_SIZE = 8  # requests at once
Watch = Callable[[Generation, int], None]  # (a generation that begins, its number); may change its parts


class Recording(Engine):
    """The same models and tokenizer; `watch` is shown each generation before it begins."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        super().__init__(engine.target, engine.drafts, engine.tokenizer, engine.end_tokens, engine.names)
        self._watch, self._begun = watch, 0

    def _generation(self, request: Request) -> Generation:
        generation = super()._generation(request)
        self._watch(generation, self._begun)
        self._begun += 1
        return generation
