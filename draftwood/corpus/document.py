"""The documents of the corpus, and the split that a combination of words belongs to."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "held-out"]

SPLITS: tuple[Split, ...] = ("train", "held-out")

# One combination in sixteen is held out.
_HELD_OUT_SHARE = 16


@dataclass(frozen=True)
class Document:
    """A text of the corpus, cut into what is given and what is to be written.

    The completion starts with white space, so that both parts tokenise alone as they do joined. ``reference`` holds
    what the scorer of the domain needs.
    """

    domain: str
    prompt: str
    completion: str
    reference: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Prompt and completion joined."""
        return self.prompt + self.completion


def stream(domain: str, split: Split, seed: int) -> random.Random:
    """Return the random stream of one domain, split and seed: the same in every process."""
    digest = hashlib.blake2b(f"{domain}/{split}/{seed}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))


def split_of(*combination: str) -> Split:
    """Return the split that a combination of words belongs to, for ever."""
    digest = hashlib.blake2b("/".join(combination).encode(), digest_size=4).digest()
    return "held-out" if int.from_bytes(digest, "big") % _HELD_OUT_SHARE == 0 else "train"


def lead(rng: random.Random, split: Split, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
    """Draw the two words that a document is about; it shows them at a fixed place, so no text is in two splits."""
    while True:
        pair = rng.choice(first), rng.choice(second)
        if split_of(*pair) == split:
            return pair


def others(rng: random.Random, pool: Sequence[str], count: int, *taken: str) -> list[str]:
    """Draw ``count`` different words of a pool, none of them in ``taken``."""
    return rng.sample([word for word in pool if word not in taken], count)


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
