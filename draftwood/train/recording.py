"""An engine whose requests are watched, and the prompts that recordings are made with.

Refuses to know what is recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwood.corpus import DOMAINS, documents
from draftwood.decode import Request
from draftwood.engine import Engine
from draftwood.errors import ConfigurationError, RequestError

CORPUS = "corpus"
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


def prompts_of(source: str, count: int, seed: int = 0) -> list[str]:
    """At most `count` prompts: a file's lines, or those of the embedded corpus's train split, every domain alike."""
    if count < 1:
        raise RequestError(f"{count} prompts were asked for, but at least one is needed")
    if source == CORPUS:
        each = [documents(domain, "train", seed) for domain in DOMAINS]
        return [document.prompt for document in itertools.islice(itertools.chain(*zip(*each, strict=False)), count)]
    path = Path(source)
    if not path.is_file():
        raise ConfigurationError(f"the file of prompts {source} does not exist; give one prompt per line, or {CORPUS}")
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeError:
        raise ConfigurationError(f"the file of prompts {source} is not valid UTF-8; convert it first") from None
    prompts = [line for line in lines if line.strip()][:count]
    if not prompts:
        raise ConfigurationError(f"the file of prompts {source} is empty; give one prompt per line")
    return prompts
