"""Where a text ends and which part of it may be shown: EOS, limits, stop strings across token borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from draftwood.core.records import Kind


class TextDecoder(Protocol):
    """Incremental detokenisation: feed one id, get the text that is complete by now."""

    def step(self, token: int) -> str: ...


@dataclass(frozen=True)
class StopStrings:
    """Whether generated tokens end with a stop string, also those of hypotheses that are never emitted."""

    stop: Sequence[str]
    stream: Callable[[Sequence[int]], TextDecoder]  # a decoder of what follows some tokens
    context: int  # tokens that such a decoder looks back at

    @cached_property
    def span(self) -> int:
        """Tokens that a stop string can span, and a few before them: a token has at least a byte."""
        return max(len(stop.encode()) for stop in self.stop) + 4

    @property
    def reach(self) -> int:
        """Tokens that are looked at."""
        return self.span + self.context

    def __call__(self, tokens: Sequence[int], new: int) -> bool:
        before = len(tokens) - min(new, self.span)
        decoder = self.stream(tokens[:before])
        tail = "".join(map(decoder.step, tokens[before:]))
        return any(stop in tail for stop in self.stop)


@dataclass(slots=True)
class Ending:
    """Follows one request's output and says where it ends.

    `text` is everything before a stop string, unless `include_stop` is set; `shown` counts its characters that may be
    streamed already: a tail that could still become a stop string is held back.
    """

    max_new_tokens: int
    end: frozenset[int]
    stop: Sequence[str] = ()
    decoder: TextDecoder | None = None
    cancelled: Callable[[], bool] | None = None
    min_new_tokens: int = 0  # stop strings are looked for behind so many tokens
    include_stop: bool = False  # whether `text` has the stop string, or the token that ended it, too
    text: str = ""
    count: int = 0
    reason: str | None = None
    _streamed: int = field(init=False, default=0)
    _first: int = field(init=False, default=0)  # where a stop string may begin

    def feed(self, tokens: Sequence[int]) -> int:
        """Take a round's tokens; how many of them belong to the output. `reason` is set when the text has ended."""
        for kept, token in enumerate(tokens, 1):
            self.count += 1
            if token in self.end:
                self.reason = "eos"
                if self.include_stop and self.decoder is not None:
                    self.text += self.decoder.step(token)
                return kept
            if self.decoder is not None:
                piece = self.decoder.step(token)
                if piece:
                    before = len(self.text)
                    self.text += piece
                    if self.count <= self.min_new_tokens:
                        self._first = len(self.text)
                    elif self.stop and self._cut(before):
                        self.reason = "stop"
                        return kept
            if self.count >= self.max_new_tokens:
                self.reason = "length"
                return kept
        return len(tokens)

    def interrupted(self) -> bool:
        """Whether the user wants to stop here; asked once per round."""
        return self.cancelled is not None and self.cancelled()

    def new_text(self) -> str:
        """Text that became certain since the last call."""
        safe = len(self.text)
        if self.reason is None and not self.include_stop:
            safe -= self._held_back()
        piece = self.text[self._streamed : safe]
        self._streamed = max(self._streamed, safe)
        return piece

    def _cut(self, before: int) -> bool:
        """Cut the text at the first stop string that ends after place `before`; whether there was one."""
        places = []
        for stop in self.stop:
            place = self.text.find(stop, max(self._first, before - len(stop) + 1))
            if place >= 0:
                places.append((place, place + len(stop) if self.include_stop else place))
        if places:
            self.text = self.text[: min(places)[1]]
        return bool(places)

    def _held_back(self) -> int:
        """Length of the longest tail that is a proper beginning of a stop string."""
        longest = 0
        for stop in self.stop:
            for length in range(min(len(stop) - 1, len(self.text) - self._first), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


@dataclass(slots=True)
class Pieces:
    """Tells which token each piece of a text came from.

    `Round.text` says which text is certain; text behind a stop string, or one that may still become a stop string,
    is in no piece.
    """

    decoder: TextDecoder
    _waiting: list[tuple[str, Kind]] = field(init=False, default_factory=list)  # not yet certain

    def split(self, text: str, tokens: Sequence[int], kinds: Sequence[Kind]) -> list[tuple[str, Kind]]:
        """The pieces of `text`, which became certain by the `tokens` of a round, with the kinds of their tokens."""
        for token, kind in zip(tokens, kinds, strict=True):
            if piece := self.decoder.step(token):
                self._waiting.append((piece, kind))
        pieces: list[tuple[str, Kind]] = []
        while text:
            piece, kind = self._waiting.pop(0) if self._waiting else (text, "plain")
            if len(piece) > len(text):
                self._waiting.insert(0, (piece[len(text) :], kind))
                piece = piece[: len(text)]
            pieces.append((piece, kind))
            text = text[len(piece) :]
        return pieces
