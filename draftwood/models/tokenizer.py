"""Text and conversations to ids and back.

Loading runs no code from a checkpoint: only data is read, tokenizer.json by `tokenizers`, else tokenizer.model by
sentencepiece (extra sentencepiece).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as FastBackend

from draftwood.errors import ModelError, RequestError
from draftwood.models import chat, gguf_tokenizer, sentencepiece
from draftwood.models.files import read_json
from draftwood.models.gguf import SUFFIX

INCOMPLETE = "\ufffd"  # what a decoder shows for bytes that are not a whole character (yet)


class Backend(Protocol):
    """What is used of a `tokenizers.Tokenizer`, and what takes its place."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_to_id(self, token: str) -> int | None: ...

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]: ...

    def get_vocab_size(self, with_added_tokens: bool = True) -> int: ...


class Tokenizer:
    """A tokenizer of a checkpoint.

    `config` is what tokenizer_config.json says; `templates` are its chat templates by name, by default those that
    `config` holds under chat_template.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        config: Mapping[str, Any] | None = None,
        templates: Mapping[str, chat.ChatTemplate] | None = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.config = dict(config or {})
        self.templates = chat.declared(self.config, name) if templates is None else dict(templates)

    @classmethod
    def load(cls, place: Path, name: str | None = None) -> Tokenizer:
        """Read the tokenizer, its configuration and chat templates from a checkpoint directory or a GGUF file.

        In a directory these are tokenizer.json, else tokenizer.model, and what belongs to it. `name` is what users call
        the model; by default the place.
        """
        if place.suffix == SUFFIX and place.is_file():
            backend, config = gguf_tokenizer.read(place)
            return cls(backend, name or str(place), config)
        config = _config(place)
        own = _backend(place, config)
        if isinstance(own, sentencepiece.SentencePiece):
            config = own.config
        return cls(own, name or str(place), config, chat.templates(place, config))

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact text, or None."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)

    @cached_property
    def longest(self) -> int:
        """Characters (of byte-level tokens: bytes) of the longest token."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def remembered(self) -> Callable[[tuple[int, ...]], str]:
        """`decode` of few ids, as streams ask for them again and again."""
        return lru_cache(1 << 14)(self.decode)

    def encode(self, text: str, add_special: bool = True, most: int | None = None) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer itself adds (such as a beginning-of-text token).

        A text that cannot have as few as `most` tokens, by its length, is refused with a RequestError at once.
        """
        if most is not None and len(text) > most * self.longest:
            raise RequestError(
                f"the prompt has {len(text):,} characters, more than {most:,} tokens, the model's context, can be; "
                "shorten it"
            )
        return list(self.backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; ids that only pad the model's vocabulary have none."""
        return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special))

    def chat_text(self, messages: Sequence[chat.Message], **variables: Any) -> str:
        """A conversation as the text that the model was trained on, by the checkpoint's chat template.

        Messages are mappings with a role and a content. Known variables: add_generation_prompt (the text ends
        where the assistant's reply begins; the default), continue_final_message (the text ends inside the last message
        instead), tools; all others go to the template as they are.
        """
        if not self.templates:
            raise RequestError(
                f"the model {self.name!r} has no chat template: it continues text and knows no conversations; "
                "give the prompt as text, or use a chat model (its checkpoint has a chat_template)"
            )
        named = {
            name: sentencepiece.content(self.config[name]) for name in sentencepiece.NAMED if self.config.get(name)
        }
        return chat.render(self.templates, messages, **{**named, **variables})

    def chat(self, messages: Sequence[chat.Message], most: int | None = None, **variables: Any) -> list[int]:
        """Ids of `chat_text`, whose template writes all special tokens itself; `most` as in `encode`."""
        return self.encode(self.chat_text(messages, **variables), False, most)

    def agrees_with(self, other: Tokenizer) -> bool:
        """Whether each id stands for the same text in both: equal vocabularies, added tokens included.

        Merges may differ: only the target's tokenizer reads text, drafts are handed ids.
        """
        return self.backend.get_vocab(True) == other.backend.get_vocab(True)

    def stream(self, context: Sequence[int] = ()) -> TokenStream:
        """A decoder that is fed one id at a time; its text continues that of the ids in `context`."""
        return TokenStream(self, context)


def _backend(directory: Path, config: Mapping[str, Any]) -> Backend:
    path, model = directory / "tokenizer.json", directory / "tokenizer.model"
    if not path.is_file():
        if model.is_file():
            return sentencepiece.load(model, config)
        raise ModelError(
            f"{directory} has no tokenizer.json and no tokenizer.model; save the tokenizer with the model (fast format)"
        )
    try:
        backend = FastBackend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} is not a readable tokenizer file ({error}); fetch or save it again") from error
    backend.no_truncation()  # a file may carry the limits of the run that saved it
    backend.no_padding()
    return backend


def _config(directory: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; older checkpoints say a part of it in files of their own."""

    def part(name: str) -> dict[str, Any]:
        return read_json(path) if (path := directory / f"{name}.json").is_file() else {}

    config = part("tokenizer_config")
    if not config.get("added_tokens_decoder"):
        config |= part("special_tokens_map")
        if added := part("added_tokens"):
            config["added_tokens_decoder"] = {place: {"content": text} for text, place in added.items()}
    return config


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
        text = self._tokenizer.remembered(tuple(self._window))
        if text.endswith(INCOMPLETE) and len(self._window) - self._old <= self.LONGEST:
            text = text.rstrip(INCOMPLETE)
            piece = text[self._shown :]
            self._shown += len(piece)
            return piece
        piece = text[self._shown :]
        if piece:  # a special token without text is no context for the next one
            latest = self._window[self._old :]
            shown = self._tokenizer.remembered(tuple(latest))
            if shown:  # a space may have no text on its own, and then does not show what the next one means
                self._window, text = latest, shown
            self._old, self._shown = len(self._window), len(text)
        return piece
