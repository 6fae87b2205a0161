"""Texts as they grow, token by token, and a model that writes a given one."""

from __future__ import annotations

from collections.abc import Sequence

from draftwood import TabularModel
from draftwood.models.text.tokenizer import REPLACEMENT, Tokenizer


def certain(words: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The beginning of the decoded text that is certain after 0, 1, ... of its tokens, by decoding each beginning."""
    whole, found = words.decode(ids), [""]
    for end in range(1, len(ids) + 1):
        text = words.decode(ids[:end])
        text = text if whole.startswith(text) else text.rstrip(REPLACEMENT)
        found.append(max(text if whole.startswith(text) else "", found[-1], key=len))
    return found


def following(ids: Sequence[int], end: int, vocab_size: int) -> TabularModel:
    """A model that continues each beginning of some ids as they go on."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        token = ids[len(prefix)] if len(prefix) < len(ids) else end
        return [0.98 if other == token else 0.02 / vocab_size for other in range(vocab_size)]

    return TabularModel(law, vocab_size)
