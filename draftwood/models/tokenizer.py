"""Text to ids and back. Knows tokenizer.json; refuses to know models.

Loading runs no code from a checkpoint: only the `tokenizers` file format is read.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from draftwood.errors import ModelError


class Tokenizer:
    """A tokenizer of a checkpoint directory."""

    def __init__(self, backend: Backend, name: str, config: dict[str, object] | None = None) -> None:
        self.backend = backend
        self.name = name
        self.config = config or {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read tokenizer.json (and tokenizer_config.json, if there is one)."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{directory} has no tokenizer.json; save the tokenizer with the model (fast format)")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:
            raise ModelError(f"{path} is not a readable tokenizer file: {error}") from error
        config_path = directory / "tokenizer_config.json"
        config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
        return cls(backend, str(directory), config)

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact text, or None."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer itself adds (such as a beginning-of-text token)."""
        return list(self.backend.encode(text).ids)

    def decode(self, tokens: list[int], skip_special: bool = True) -> str:
        """Text of ids."""
        return str(self.backend.decode(tokens, skip_special_tokens=skip_special))

    def agrees_with(self, other: Tokenizer) -> bool:
        """Whether the same text has the same ids in both: equal vocabularies, added tokens included."""
        return self.backend.get_vocab(True) == other.backend.get_vocab(True)

    def stream(self) -> TokenStream:
        """A decoder that is fed one id at a time."""
        return TokenStream(self.backend)


class TokenStream:
    """Incremental detokenisation; text appears once its characters are complete."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        """Text that this id completes; empty while a character is incomplete."""
        return self._stream.step(self._backend, token) or ""
