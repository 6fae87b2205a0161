"""An engine whose requests are watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.decode import Request
from draftwood.engine import Engine

Watch = Callable[[Request, int], None]  # (a request that begins, its number); may put another controller in its place


class Recording(Engine):
    """The same models and tokenizer; `watch` is shown each request before it begins."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        super().__init__(engine.target, engine.drafts, engine.tokenizer, engine.end_tokens, engine.names)
        self._watch, self._begun = watch, 0

    def _begin(self, plan: Any) -> Any:
        work = super()._begin(plan)
        self._watch(work.request, self._begun)
        self._begun += 1
        return work
