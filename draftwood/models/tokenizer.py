"""Text to ids and back. Knows tokenizer.json; refuses to know models.

Loading runs no code from a checkpoint: only the `tokenizers` file format is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from draftwood.errors import ModelError
from draftwood.models.files import read_json

INCOMPLETE = "\ufffd"  # what a decoder shows for bytes that are not a whole character (yet)


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
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{path} is not a readable tokenizer file ({error}); fetch or save it again") from error
        backend.no_truncation()  # a file may carry the limits of the run that saved it
        backend.no_padding()
        config = directory / "tokenizer_config.json"
        return cls(backend, str(directory), read_json(config) if config.is_file() else {})

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

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; ids that only pad the model's vocabulary have none."""
        return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special))

    def agrees_with(self, other: Tokenizer) -> bool:
        """Whether each id stands for the same text in both: equal vocabularies, added tokens included.

        Merges may differ: only the target's tokenizer reads text, drafts are handed ids.
        """
        return self.backend.get_vocab(True) == other.backend.get_vocab(True)

    def stream(self, context: Sequence[int] = ()) -> TokenStream:
        """A decoder that is fed one id at a time; its text continues that of the ids in `context`."""
        return TokenStream(self, context)


class TokenStream:
    """Incremental detokenisation; text appears once its characters are complete.

    An id's text depends on its neighbours (spaces at the start, characters of several ids), so a window of ids is
    decoded: those of the last piece, then the new ones. The pieces join to the decoded whole; only bytes that turn out
    to be no character at all may look different.
    """

    LONGEST = 64  # new ids that may wait for the end of a character; more are no text

    CONTEXT = 8  # ids before the first that decide whether it begins with a space

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = list(context[-self.CONTEXT :])
        self._old = len(self._window)  # ids of the window whose text was given out
        self._shown = len(tokenizer.decode(self._window).rstrip(INCOMPLETE))  # its characters that were given out

    def step(self, token: int) -> str:
        """Text that this id completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if text.endswith(INCOMPLETE) and len(self._window) - self._old <= self.LONGEST:
            text = text.rstrip(INCOMPLETE)
            piece = text[self._shown :]
            self._shown += len(piece)
            return piece
        piece = text[self._shown :]
        if piece:  # a special token without text is no context for the next one
            del self._window[: self._old]
            self._old = len(self._window)
            self._shown = len(self._tokenizer.decode(self._window))
        return piece
