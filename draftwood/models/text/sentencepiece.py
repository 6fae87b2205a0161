"""sentencepiece's tokenizer.model, behind the few calls of a `tokenizers.Tokenizer` that are made here.

Ids come from sentencepiece itself (extra sentencepiece), not from a conversion, so they are those of the training.
What sentencepiece leaves to its callers is done here: special and added tokens in a text, and the tokens at its ends,
as tokenizer_config.json of the Llama family declares them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Splitter

from draftwood.errors import ConfigurationError, ModelError

# A protobuf message in which a field appears twice is merged, the last value counts: appended to a model,
# this sets normalizer_spec (3) { add_dummy_prefix (3) = false, remove_extra_whitespaces (4) = false }.
NO_PREFIX_SPACE = b"\x1a\x04\x18\x00\x20\x00"

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")


class Encoded(NamedTuple):
    """The part of a `tokenizers.Encoding` that is used."""

    ids: list[int]


@dataclass(frozen=True)
class VocabularyBytes:
    """Tokens as bytes, with the names that llguidance asks for."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    encode: Callable[[str], list[int]]
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str) -> list[int]:
        """The tokenizer's own ids, or where they spell another text, those of the longest tokens from the left."""
        wanted, ids, at = text.encode(), self.encode(text), 0
        if b"".join(self.tokens[i] for i in ids) == wanted:
            return ids
        ids = []
        while at < len(wanted):
            stop = next((stop for stop in range(at + self.longest, at, -1) if wanted[at:stop] in self.spelled), 0)
            if not stop:
                break  # nothing spells the rest
            ids.append(self.spelled[wanted[at:stop]])
            at = stop
        return ids

    def towards(self, text: bytes, mask: bytes) -> bytes:
        """A mask, a bit for each token, without those that neither begin a text nor go on behind it."""
        left = bytearray(len(mask))
        for end in range(1, min(len(text), self.longest) + 1):
            begin = text[:end]
            place = bisect_left(self._sorted, (begin,))
            while place < len(self._sorted):
                spelled, token = self._sorted[place]
                if spelled != begin and not (begin == text and spelled.startswith(text)):
                    break
                left[token >> 3] |= mask[token >> 3] & 1 << (token & 7)
                place += 1
        return bytes(left)

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((spelled, token) for token, spelled in enumerate(self.tokens) if spelled)

    @cached_property
    def spelled(self) -> dict[bytes, int]:
        """The ids of texts."""
        special = set(self.special_token_ids)
        return {token: i for i, token in enumerate(self.tokens) if token and i not in special}

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.spelled), default=0)


class SentencePiece:
    """A sentencepiece model with special and added tokens.

    `config` holds what tokenizer_config.json says: add_bos_token (true unless it says otherwise), add_eos_token,
    add_prefix_space, added_tokens_decoder and the named special tokens, by default those of the model. `legacy` (true
    unless it says otherwise) puts a space in front of the text after a special token too.
    """

    def __init__(self, model: bytes, config: Mapping[str, Any]) -> None:
        from sentencepiece import SentencePieceProcessor

        self._bare = SentencePieceProcessor(model_proto=model + NO_PREFIX_SPACE)  # no space in front, none removed
        prefixed = SentencePieceProcessor(model_proto=model)
        self._first = prefixed if config.get("add_prefix_space", True) is not False else self._bare
        self._later = self._first if config.get("legacy", True) is not False else self._bare
        self._size = prefixed.get_piece_size()
        self._vocabulary: dict[str, int] = {prefixed.id_to_piece(i): i for i in range(self._size)}
        self._special: set[int] = set()
        self._contents: dict[int, str] = {}  # texts of the tokens that are no pieces of ordinary text
        self._splitter = Splitter(models.WordLevel({"": 0}, unk_token=""))  # id 0: text between those tokens
        self._places: dict[int, int] = {}  # the splitter's ids of added tokens to ours
        own = {"bos_token": prefixed.bos_id(), "eos_token": prefixed.eos_id(), "unk_token": prefixed.unk_id()}
        self.config = {**{name: prefixed.id_to_piece(i) for name, i in own.items() if i >= 0}, **config}
        self._declare(declared(self.config), prefixed)
        self._spelled = {i: piece for piece, i in self._vocabulary.items()}
        self._begin = self._named("bos_token") if config.get("add_bos_token", True) is not False else []
        self._end = self._named("eos_token") if config.get("add_eos_token", False) else []

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoded:
        ids: list[int] = []
        parts = self._splitter.encode(sequence)
        for token, (start, end) in zip(parts.ids, parts.offsets, strict=True):
            if token:
                ids.append(self._places[token])
            else:
                ids += (self._later if start else self._first).encode(sequence[start:end])
        return Encoded([*self._begin, *ids, *self._end] if add_special_tokens else ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = ""
        known = [i for i in ids if i in self._contents or i < self._size]
        shown = [i for i in known if not (skip_special_tokens and i in self._special)]
        for added, run in groupby(shown, key=self._contents.__contains__):
            if added:
                text += "".join(self._contents[i] for i in run)
            else:
                text += (self._bare if text else self._first).decode(list(run))
        return text

    def for_grammars(self, end: int) -> VocabularyBytes:
        """The tokens as bytes."""
        tokens = [b""] * (1 + max(self._vocabulary.values(), default=0))
        for piece, i in self._vocabulary.items():
            if i in self._contents:
                tokens[i] = self._contents[i].encode()
            elif self._bare.is_byte(i):
                tokens[i] = bytes([int(piece[1:-1], 16)])
            else:
                tokens[i] = piece.replace("\u2581", " ").encode()
        return VocabularyBytes(tokens, sorted(self._special), end, self._bare.encode)

    def token_to_id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def id_to_token(self, id: int) -> str | None:
        return self._spelled.get(id)

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        return dict(self._vocabulary)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return len(self._vocabulary)

    def _declare(self, tokens: Mapping[AddedToken, int | None], pieces: Any) -> None:
        """Make tokens known: the declared ones, and the pieces that the model itself sets apart from text."""
        texts, places = {token.content for token in tokens}, set(tokens.values())
        tokens = dict(tokens)
        for piece, i in self._vocabulary.items():
            apart = pieces.is_control(i) or pieces.is_unknown(i)
            if apart and piece not in texts and i not in places:
                tokens[AddedToken(piece, normalized=False, special=True)] = i
        used = {i: piece for piece, i in self._vocabulary.items()}
        for token, place in tokens.items():
            if place is None:
                place = self._vocabulary.get(token.content, max(used) + 1)
            if place in used and used[place] != token.content:  # a reserved piece that was given a meaning later
                self._vocabulary.pop(used[place], None)
            used[place] = token.content
            self._vocabulary[token.content] = place
            self._contents[place] = token.content
            if token.special:
                self._special.add(place)
            self._splitter.add_tokens([token])
        self._places = {i: self._vocabulary[text] for text, i in self._splitter.get_vocab().items() if i}

    def _named(self, name: str) -> list[int]:
        """The id of a named token, if there is one."""
        return [self._vocabulary[content(self.config[name])]] if self.config.get(name) else []


def load(path: Path, config: Mapping[str, Any]) -> SentencePiece:
    """Read a tokenizer.model; refuses what is no sentencepiece model with a ModelError."""
    try:
        import sentencepiece  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{path} needs the sentencepiece package: install the extra draftwood[sentencepiece], "
            "or save the tokenizer as tokenizer.json"
        ) from error
    try:
        model = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error})") from error
    try:
        return SentencePiece(model, config)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path.parent}: tokenizer_config.json and its neighbours declare tokens in no known form ({error}); "
            "fetch them again"
        ) from error
    except RuntimeError as error:  # sentencepiece's word for all failures
        raise ModelError(
            f"{path} is not a readable sentencepiece model; fetch it again, or save the tokenizer as tokenizer.json "
            "(a tiktoken file must be converted to it)"
        ) from error


def content(token: object) -> str:
    """The text of a special token, which is a string or an object with its content."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise ModelError(f"the tokenizer's configuration names {token!r} as a token, but a token is a text")
    return text


def declared(config: Mapping[str, Any]) -> dict[AddedToken, int | None]:
    """Added and special tokens of the configuration, with their ids; None: the piece's own, else the next free one."""
    tokens: dict[AddedToken, int | None] = {}
    listed: list[object] = [
        token
        for name, token in config.items()
        if name.endswith("_token") and isinstance(token, str | Mapping) and token
    ]
    for name in TOKEN_LISTS:
        listed += values.values() if isinstance(values := config.get(name) or [], Mapping) else values
    special = {content(token) for token in listed}
    known = set()
    for place, token in (config.get("added_tokens_decoder") or {}).items():
        made = _added(token, content(token) in special)
        tokens[made] = int(place)
        known.add(made.content)
    for token in listed:
        if content(token) not in known:
            known.add(content(token))
            tokens[_added(token, True)] = None
    return tokens


def _added(token: object, special: bool) -> AddedToken:
    declared = token if isinstance(token, Mapping) else {}
    rules = {rule: bool(declared.get(rule)) for rule in ("lstrip", "rstrip", "single_word")}
    special = special or bool(declared.get("special"))
    return AddedToken(
        content(token), normalized=bool(declared.get("normalized", not special)), special=special, **rules
    )
