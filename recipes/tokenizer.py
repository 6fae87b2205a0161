"""The byte-level BPE of the embedded pair: how it is trained and saved.

Digits stand alone, every byte has a token, and the words of the corpus are fed
often enough that each of them becomes one token.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from draftwood.corpus import DOMAINS, documents, names
from draftwood.corpus.tables import SCHEMAS
from recipes.rows import EOS

# No contractions, unlike GPT-2: a quote before a word never swallows a letter,
# so 'Vela' and Vela have the same token in common. One digit is one piece.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_SQL = (
    "SELECT FROM WHERE COUNT SUM AVG MIN MAX GROUP ORDER BY ASC DESC LIMIT SQL Table "
    "Question Answer Passage Problem Steps Story Report Summary Notes Again"
)

# Times that each word of the corpus is repeated: more often than any common
# pair of letters of the sample, so that its merges are learnt first.
_WORD_WEIGHT = 400


def _words() -> list[str]:
    """Return the words that are to be one token, with and without a space."""
    capital = [*names.PEOPLE, *names.PLACES, *names.DAYS, *names.MONTHS]
    small = [
        *names.THINGS, *names.GOODS, *names.ANIMALS, *names.JOBS, *names.COLOURS,
        *names.SPOTS, *names.WEATHER, *names.FEELINGS, *names.EVENTS,
    ]  # fmt: skip
    columns = [word for schema in SCHEMAS for word in (schema.table, schema.key, schema.group, schema.number)]
    # In tables and quotes these stand without a space before them.
    bare = [*names.PEOPLE, *names.PLACES, *names.JOBS, *names.THINGS, *names.COLOURS]
    spaced = [*capital, *small, *columns, *_SQL.split()]
    return sorted({*bare, *(f" {word}" for word in spaced), *_SQL.split(), *columns})


def _sample(count: int) -> Iterator[str]:
    for domain in (*DOMAINS, "retellings"):
        for document in itertools.islice(documents(domain, "train", seed=1), count):
            yield document.text
    for word in _words():
        yield from itertools.repeat(word, _WORD_WEIGHT)


def train_tokenizer(vocab_size: int = 2048, sample: int = 3000) -> Tokenizer:
    """Train the tokenizer on ``sample`` train documents of each domain.

    Deterministic: the same library version gives the same merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(sample), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into a checkpoint directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
