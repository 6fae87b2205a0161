"""The drafts of a target: those that are named, else those that lie next to the target's weights."""

from __future__ import annotations

import filecmp
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.models.checkpoints import checkpoint, gguf_tokenizer
from draftwood.models.heads import foreign_heads, mtp
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.models.text.vocabulary_map import VocabularyMap

THROUGH_TRANSFORMERS = "hf:"  # prefix of a source

log = logging.getLogger(__name__)


def draft_sources(target: Any, draft: Any, processes: int) -> tuple[list[Any], bool]:
    """The drafts to load, and whether they were not named, but found next to the target's weights."""
    if draft is not None:
        several = isinstance(draft, Sequence) and not isinstance(draft, str)
        return (list(draft) if several else [draft]), False
    beside = checkpoint.draft_beside(target) if isinstance(target, str | Path) else None
    if beside is not None and drafts_for_itself(target, processes):
        log.warning(
            "%s is left alone: the target's own layer of multi-token prediction drafts; name it as draft to take it",
            beside,
        )
        return [], False
    return ([] if beside is None else [beside]), beside is not None


def drafts_for_itself(target: str | Path, processes: int) -> bool:
    """Whether a target's checkpoint has a layer that drafts, which comes before what lies next to the weights."""
    return processes == 1 and mtp.present(checkpoint.locate(target))


def check_own_options(options: Mapping[str, Any], drafts: Sequence[tuple[Any, str | None]]) -> None:
    """Raise ConfigurationError where options of draft models are given, but no draft is a model of its own.

    `drafts` are sources, each with its `head_kind`.
    """
    option = next((name for name, value in options.items() if value is not None), None)
    if option is None or any(kind is None for _, kind in drafts):
        return
    if not drafts:
        raise ConfigurationError(f"{option} is for draft models, and there is none; leave it out, or name a draft")
    raise ConfigurationError(
        f"{option} is for draft models that stand alone, but {drafts[0][0]} is computed as its target is; leave it out"
    )


@contextmanager
def left_alone(sources: Sequence[Any], beside: bool) -> Iterator[None]:
    """Log what is wrong with drafts found `beside` the target, which is loaded without; of named ones it is raised."""
    try:
        yield
    except (ModelError, ConfigurationError, RequestError) as error:
        if not beside:
            raise
        log.warning("%s is left alone: %s", sources[0], error)


def vocabulary_map(words: Tokenizer, home: Path | None, draft: Path | None) -> VocabularyMap | None:
    """The map to a draft's vocabulary; None where each id means the same, or where the draft is no checkpoint.

    `words` were read from `home`; a copy of that file is not read.
    """
    if draft is None:
        return None
    if draft.is_file() and words.backend.get_vocab(True) == gguf_tokenizer.vocabulary(draft):
        return None
    if home is not None and not draft.is_file():
        known, file = home / "tokenizer.json", draft / "tokenizer.json"
        if known.is_file() and file.is_file() and filecmp.cmp(known, file, shallow=False):
            return None
    other = Tokenizer.load(draft)
    return None if other.agrees_with(words) else VocabularyMap.of(words, other)


def head_kind(source: Any) -> str | None:
    """The kind of head in a directory or file, or under a hub id: a key of HEADS; None: it is something else."""
    if not isinstance(source, str | Path) or str(source).startswith(THROUGH_TRANSFORMERS):
        return None
    return foreign_heads.kind_of(checkpoint.locate(source))


def count_of_models(drafts: Sequence[Any]) -> int:
    """How many draft models there are among some sources, as `methods.base.without_heads` has them."""
    heads = sum(head_kind(source) is not None for source in drafts) if len(drafts) > 1 else 0
    return len(drafts) - heads or min(1, len(drafts))
