"""The tokens of a tokenizer as llguidance reads them (extra structured)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as FastBackend

from draftwood.errors import ModelError
from draftwood.models.text.sentencepiece import VocabularyBytes
from draftwood.sampling.grammar import library, one_line

OWN = {"ByteLevel", "ByteFallback"}  # decoders that the library itself knows
JOINED = {"Metaspace", "Replace", "Fuse", "Strip"}  # those whose text is that of the tokens one behind the other


def words_of(
    name: str, backend: Any, size: int, end: int, pieces_of: Callable[[int], VocabularyBytes]
) -> tuple[Any, VocabularyBytes | None]:
    """The `size` tokens of a tokenizer as an `LLTokenizer` whose texts end with `end`; its pieces where they were read.

    `pieces_of(end)` gives the tokens as bytes. ModelError, which names the tokenizer, where a text is not its tokens
    one behind the other.
    """
    llguidance = library()
    steps = _decoders(backend)
    if not steps & OWN and not steps <= JOINED:
        how = ", ".join(sorted(steps - JOINED))
        raise ModelError(
            f"the tokenizer of {name!r} joins tokens by {how}, which structured output cannot follow; "
            "it needs tokens that are joined as they are (byte-level, sentencepiece, Metaspace)"
        )
    try:
        pieces = None if steps & OWN else pieces_of(end)
        words = backend.to_str() if pieces is None else pieces
        return llguidance.LLTokenizer(words, max(size, end + 1), end), pieces
    except Exception as error:  # the library raises whatever its parts do
        raise ModelError(
            f"the tokenizer of {name!r} cannot be used for structured output ({one_line(str(error))})"
        ) from error


def _decoders(backend: Any) -> set[str]:
    """The steps that make a text of tokens, as `tokenizers` calls them; none of sentencepiece itself."""
    if not isinstance(backend, FastBackend):
        return set()
    if backend.decoder is None:
        return {"spaces"}
    step = json.loads(backend.decoder.__getstate__())
    return {one["type"] for one in step.get("decoders", [step])}
