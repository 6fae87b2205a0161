"""Small vocabularies, and what a language allows, written out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from tokenizers import Tokenizer as FastBackend
from tokenizers import decoders, models, pre_tokenizers

from draftwood import TabularModel
from draftwood.models.text.tokenizer import Tokenizer


def words(texts: Sequence[str], merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """Token 0 ends a text, token i is the i-th text."""
    backend = FastBackend(models.BPE({text: i for i, text in enumerate(texts, 1)} | {"<end>": 0}, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, "words")


LETTERS = words("abc")


class Language:
    """All texts of the letters a, b, c that a regular expression matches, up to a length."""

    def __init__(self, regex: str, longest: int = 10) -> None:
        texts = ("".join(text) for size in range(longest + 1) for text in itertools.product("abc", repeat=size))
        self.texts = {text for text in texts if re.fullmatch(regex, text)}
        self.starts = {text[:end] for text in self.texts for end in range(len(text) + 1)}

    def allowed(self, output: Sequence[int]) -> set[int]:
        """Tokens of LETTERS that may follow generated ones."""
        if 0 in output:
            return {0, 1, 2, 3}
        text = "".join(" abc"[token] for token in output)
        found = {token for token in (1, 2, 3) if text + " abc"[token] in self.starts}
        return found | {0} if text in self.texts else found


def masked(model: TabularModel, language: Language, prompt: int) -> TabularModel:
    """The model with chance 0 for what the language forbids behind a prompt of so many tokens."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        allowed = language.allowed(prefix[prompt:]) if len(prefix) >= prompt else {0, 1, 2, 3}
        return [weight * (token in allowed) for token, weight in enumerate(model.law(prefix))]

    return TabularModel(law, model.vocab_size, n_layers=model.n_layers)
