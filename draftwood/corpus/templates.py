"""Sentences from templates: what is in braces is a given word, or a word of one of the pools."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from draftwood.corpus.document import article
from draftwood.corpus.names import POOLS

_FIELD = re.compile(r"{(a )?(\w+)}")


def filled(rng: random.Random, templates: Sequence[str], **words: object) -> list[str]:
    """All templates, with words in place of what is in braces: {who} that word, {a X} X with its article.

    {DAYS} is a word of that pool, drawn anew each time, in the order of the templates, whichever of these is used.
    """

    def word(field: re.Match[str]) -> str:
        name = field[2]
        text = str(words[name] if name in words else rng.choice(POOLS[name]))
        return article(text) if field[1] else text

    return [_FIELD.sub(word, template) for template in templates]


def written(rng: random.Random, templates: Sequence[str], **words: object) -> str:
    """One of the templates, drawn and filled as by `filled`."""
    return rng.choice(filled(rng, templates, **words))
