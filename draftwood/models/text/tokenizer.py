"""Text and conversations to ids and back.

Loading runs no code from a checkpoint: only data is read, tokenizer.json by `tokenizers`, else tokenizer.model by
sentencepiece (extra sentencepiece).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastBackend

from draftwood.errors import ModelError, RequestError
from draftwood.models.checkpoints import gguf_tokenizer
from draftwood.models.checkpoints.files import read_json
from draftwood.models.checkpoints.gguf_file import GGUF_SUFFIX
from draftwood.models.text import chat, grammar_words, sentencepiece
from draftwood.util.safe_parsing import short_repr

LONG_INPUT = 1 << 14  # characters or ids, for which `tokenizers` is called so that it gives back the interpreter's lock
REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are not a whole character (yet)

UTF_8 = codecs.getincrementaldecoder("utf-8")
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # a byte, where vocabularies fall back to bytes
PRINTED_BYTES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
OTHER_BYTES = [byte for byte in range(0x100) if byte not in PRINTED_BYTES]
BYTE_OF_CHARACTER = {chr(byte): byte for byte in PRINTED_BYTES}  # in byte-level vocabularies
BYTE_OF_CHARACTER |= {chr(0x100 + i): byte for i, byte in enumerate(OTHER_BYTES)}


class Backend(Protocol):
    """The part of the interface of `tokenizers.Tokenizer` that is used; sentencepiece models have it too."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_to_id(self, token: str) -> int | None: ...

    def id_to_token(self, id: int) -> str | None: ...

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]: ...

    def get_vocab_size(self, with_added_tokens: bool = True) -> int: ...


class TokenText(NamedTuple):
    """The text of one token id inside a text: as after a letter, not as at the beginning."""

    text: str  # of special tokens their name
    part: bytes | None  # the bytes, where they are not whole characters
    ordinary: bool  # False for special tokens, which have no text in an answer


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
        if place.suffix == GGUF_SUFFIX and place.is_file():
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
        id = self.backend.token_to_id(token)
        return None if id is None else int(id)

    @property
    def end_tokens(self) -> frozenset[int]:
        """The id of its own end token, where it has one."""
        named = self.config.get("eos_token")
        end = self.id_of(sentencepiece.content(named)) if named else None
        return frozenset() if end is None else frozenset((end,))

    @cached_property
    def longest(self) -> int:
        """Characters (of byte-level tokens: bytes) of the longest token."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def letter(self) -> tuple[int, ...]:
        """Ids of a letter: behind it tokens have the text that they have within a text."""
        return tuple(self.encode("a", add_special=False))

    @cached_property
    def known(self) -> Callable[[int], TokenText]:
        """The text that an id stands for within a text."""
        start = len(self.decode(self.letter))

        def known(token: int) -> TokenText:
            ids = [*self.letter, token]
            text = self.decode(ids, skip_special=False)[start:]
            ordinary = bool(self.decode(ids)[start:])
            spelled = self.backend.id_to_token(token) if REPLACEMENT in text else None
            return TokenText(text, _part(spelled) if spelled else None, ordinary)

        return lru_cache(1 << 18)(known)

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that an id stands for within a text, also where they are no whole character; None: it has none."""
        known = self.known(token)
        return known.part or known.text.encode() or None

    def token_bytes(self) -> list[bytes]:
        """Of every id the bytes that it stands for within a text; none of special tokens."""
        ids, start = range(max(self.backend.get_vocab(True).values(), default=-1) + 1), len(self.decode(self.letter))
        if not isinstance(self.backend, FastBackend):
            return [(self.bytes_of(id) or b"") if self.known(id).ordinary else b"" for id in ids]
        whole = self.backend.decode_batch([[*self.letter, id] for id in ids], skip_special_tokens=True)
        spelled = [text[start:] for text in whole]
        parts = [_part(self.backend.id_to_token(id) or "") if REPLACEMENT in spelled[id] else None for id in ids]
        return [text.encode() if part is None else part for text, part in zip(spelled, parts, strict=True)]

    @cached_property
    def remembered(self) -> Callable[[tuple[int, ...]], str]:
        """`decode` of few ids, as streams ask for them again and again."""
        return lru_cache(1 << 14)(self.decode)

    def encode(self, text: str, add_special: bool = True, max_tokens: int | None = None) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer itself adds (such as a beginning-of-text token).

        RequestError for what is no text, and at once for a text too long to have `max_tokens` tokens or fewer.
        """
        if not isinstance(text, str):
            raise RequestError(f"a text is a string, not {short_repr(text)}")
        if max_tokens is not None:
            self._check_length(len(text), max_tokens)
        check_text(text, "the prompt")
        if len(text) > LONG_INPUT and isinstance(self.backend, FastBackend):
            return list(self.backend.encode_batch([text], add_special_tokens=add_special)[0].ids)
        return list(self.backend.encode(text, add_special_tokens=add_special).ids)

    def _check_length(self, characters: int, max_tokens: int) -> None:
        if characters > max_tokens * self.longest:
            raise RequestError(
                f"the prompt has {characters:,} characters, more than {max_tokens:,} tokens, the model's context, "
                "can be; shorten it"
            )

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; ids that only pad the model's vocabulary have none."""
        try:
            if len(tokens) > LONG_INPUT and isinstance(self.backend, FastBackend):
                return str(self.backend.decode_batch([list(tokens)], skip_special_tokens=skip_special)[0])
            return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special))
        except (TypeError, OverflowError):
            raise RequestError(f"token ids are a list of whole numbers from 0 on, not {short_repr(tokens)}") from None

    def chat_text(self, messages: Sequence[chat.Message], **variables: Any) -> str:
        """A conversation as the text that the model was trained on, by the checkpoint's chat template.

        Messages are mappings with a role and a content. TokenText variables: add_generation_prompt (the text ends
        where the assistant's reply begins; the default), continue_final_message (the text ends inside the last message
        instead), tools; all others go to the template as they are.
        """
        if not self.templates:
            raise RequestError(
                f"the model {self.name!r} has no chat template: it continues text and knows no conversations; "
                "give the prompt as text, or use a chat model (its checkpoint has a chat_template)"
            )
        named = {
            name: sentencepiece.content(self.config[name])
            for name in sentencepiece.NAMED_TOKENS
            if self.config.get(name)
        }
        return chat.render(self.templates, messages, **{**named, **variables})

    def chat(self, messages: Sequence[chat.Message], max_tokens: int | None = None, **variables: Any) -> list[int]:
        """Ids of `chat_text`, whose template writes all special tokens itself; `max_tokens` as in `encode`.

        A conversation that cannot have as few tokens is refused before the template is asked.
        """
        if max_tokens is not None:
            if len(messages) > max_tokens:
                raise RequestError(
                    f"the conversation has {len(messages):,} messages, more than the model's context of {max_tokens:,} "
                    "tokens can hold; leave out the first ones"
                )
            contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
            self._check_length(sum(len(content) for content in contents if isinstance(content, str)), max_tokens)
        return self.encode(self.chat_text(messages, **variables), False, max_tokens)

    def agrees_with(self, other: Tokenizer) -> bool:
        """True if each id has the same text in both tokenizers: their vocabularies with added tokens are equal.

        Merges may differ: only the target's tokenizer reads text, drafts are handed ids.
        """
        return self.backend.get_vocab(True) == other.backend.get_vocab(True)

    def for_grammars(self, end: int) -> sentencepiece.VocabularyBytes:
        """Its tokens as bytes, where a text is that of its tokens one behind the other; `end` ends it."""
        if isinstance(self.backend, sentencepiece.SentencePiece):
            return self.backend.for_grammars(end)
        last = max(self.backend.get_vocab(True).values(), default=0)
        special = [token for token in range(last + 1) if not self.known(token).ordinary]
        spelled = [self.bytes_of(token) or b"" for token in range(last + 1)]
        return sentencepiece.VocabularyBytes(spelled, special, end, partial(self.encode, add_special=False))

    def for_llguidance(self, end: int) -> tuple[Any, sentencepiece.VocabularyBytes | None]:
        """Its tokens as an `LLTokenizer` whose texts end with token `end`, and as they were given to it, if they were.

        Needs the extra structured; ModelError where the tokens of a text are not joined as they are.
        """
        return grammar_words.words_of(self.name, self.backend, self.size, end, self.for_grammars)

    def stream(self, context: Sequence[int] = (), special: bool = False) -> TokenStream:
        """A decoder that is fed one id at a time; its text continues that of the ids in `context`."""
        try:
            return TokenStream(self, context, special)
        except (TypeError, KeyError):
            raise RequestError(f"token ids are a list of whole numbers from 0 on, not {short_repr(context)}") from None


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
    try:
        _register(backend, sentencepiece.declared(config))
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{directory}: tokenizer_config.json or its neighbours declare tokens that {path.name} cannot have "
            f"({error}); save the tokenizer again"
        ) from error
    return backend


def _register(backend: FastBackend, declared: Mapping[AddedToken, int | None]) -> None:
    """Add the tokens that stand in the configuration alone; ValueError where one would have another id than it says."""
    there = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [(place, token) for token, place in declared.items() if token.content not in there]
    for place, token in sorted(missing, key=lambda each: (each[0] is None, each[0] or 0)):
        backend.add_tokens([token])
        if place is not None and backend.token_to_id(token.content) != place:
            raise ValueError(f"{token.content!r} would be {backend.token_to_id(token.content)}, not {place}")


def check_text(text: str, what: str) -> None:
    """Raise RequestError where a string is no text: it has half of a surrogate pair, which no byte stands for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} is not valid Unicode: character {error.start + 1} is half of a surrogate pair; "
            "decode it from UTF-8 or UTF-16 as a whole"
        ) from None


def _part(spelled: str) -> bytes | None:
    """The bytes of a token that is no whole character, as byte fallback or byte-level vocabularies spell it."""
    if byte := BYTE_TOKEN.fullmatch(spelled):
        return bytes.fromhex(byte[1])
    return bytes(BYTE_OF_CHARACTER[letter] for letter in spelled) if BYTE_OF_CHARACTER.keys() >= set(spelled) else None


def _config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, completed from the separate files that older checkpoints have."""

    def part(name: str) -> dict[str, Any]:
        return read_json(path) if (path := directory / f"{name}.json").is_file() else {}

    config = part("tokenizer_config")
    if not config.get("added_tokens_decoder"):
        config |= part("special_tokens_map")
        if added := part("added_tokens"):
            config["added_tokens_decoder"] = {place: {"content": text} for text, place in added.items()}
    return config


class TokenStream:
    """Incremental detokenisation: the text of ids behind a `context`. A character appears once it is complete.

    Ids that are parts of characters are decoded as bytes, whatever stands around them; one U+FFFD stands for bytes that
    are no character. The text of all others depends on their neighbours (spaces at the start), so a window of ids is
    decoded: those of the last piece, then the new ones. A character that begins in the context belongs to this text.
    Special tokens have no text, or, where `special` is set, their own.
    """

    CONTEXT = 8  # ids that are looked back at, until a whole one; an unfinished character has 3 at most

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = (), special: bool = False) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._window: tuple[int, ...] = ()
        self._old = self._shown = 0  # ids of the window whose text was given out, and its characters
        self._bytes = UTF_8("replace")
        self._unfinished = self._foreign = False  # whether a character is, and whether it begins in the context
        first, least = len(context), max(0, len(context) - self.CONTEXT)
        complete = False
        while first > least and not complete:
            first -= 1
            known = tokenizer.known(context[first])
            complete = known.ordinary and known.part is None
        for token in context[first:]:
            self.step(token)
        self._foreign = self._unfinished

    def step(self, token: int) -> str:
        """Text that this id completes; empty while a character is incomplete."""
        known = self._tokenizer.known(token)
        if known.part is not None:
            self._window = self._tokenizer.letter
            self._old, self._shown = len(self._window), len(self._tokenizer.remembered(self._window))
            return self._decoded(known.part)
        if not known.ordinary and not self._special:
            return ""
        before = self.rest() if self._unfinished else ""
        return before + (self._beside(token) if known.ordinary else known.text)

    def rest(self) -> str:
        """U+FFFD for a character that stays unfinished, if there is one."""
        return self._decoded(b"", True)

    def _decoded(self, part: bytes, final: bool = False) -> str:
        text = self._bytes.decode(part, final)
        self._unfinished = bool(self._bytes.getstate()[0])
        if text and self._foreign:
            self._foreign = False
            return text.removeprefix(REPLACEMENT)  # what the context itself broke off is none of this text
        return text

    def _beside(self, token: int) -> str:
        """Text of an id beside those before it."""
        remembered = self._tokenizer.remembered
        window = self._window = (*self._window, token)
        text = remembered(window)
        piece = text[self._shown :]
        if piece:
            latest = window[self._old :]
            shown = remembered(latest)
            if shown:  # a space may have no text on its own, and then does not show what the next one means
                self._window, text = latest, shown
            self._old, self._shown = len(self._window), len(text)
        return piece
