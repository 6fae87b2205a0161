"""Which tokens of two vocabularies stand for the same bytes, and how texts go from one tokenizer to the other.

With it a draft model of any tokenizer drafts for a target: token by token among those that both have (token-level
intersection: Timor et al. 2025, arXiv 2502.05202), or as text that the target's tokenizer cuts (their string-level
exact match).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from draftwood.errors import ModelError
from draftwood.models.text.tokenizer import BYTE_TOKEN, UTF_8, Tokenizer

SAMPLE = (  # prose, numbers and code, to say how much of a text is in tokens that both have
    "The committee met on 14 March 2019 to discuss whether the old bridge, built in 1887, could be repaired for less "
    "than $2.5 million. Engineers weren't sure: corrosion had weakened several supports, and traffic has grown since.\n"
    "def average(values: list[float]) -> float:\n    return sum(values) / max(1, len(values))\n"
    "To prepare the sauce, gently melt the butter, add the flour and stir until it's smooth.\n"
)
ENOUGH = 0.7  # of a text's tokens that are shared
LONGEST_CHARACTER = 4  # bytes
TAIL = 4  # tokens before a drafted text that it is cut together with


class Words:
    """A tokenizer's ids as bytes and back, as they stand within a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bytes = tokenizer.token_bytes()
        self.by_bytes: dict[bytes, int] = {}
        for id, spelled in enumerate(self.bytes):
            if spelled and (spelled not in self.by_bytes or self._fallback(self.by_bytes[spelled])):
                self.by_bytes[spelled] = id
        self.longest = max(map(len, self.by_bytes), default=0)

    def _fallback(self, id: int) -> bool:
        """Whether an id is a byte that only spells what no other token does."""
        return len(self.bytes[id]) == 1 and BYTE_TOKEN.fullmatch(self.name(id)) is not None

    def name(self, id: int) -> str:
        """How the vocabulary spells a token."""
        return str(self.tokenizer.backend.id_to_token(id) or "")

    def spelled(self, id: int) -> bytes:
        """The bytes of an id; none of special tokens and of ids that only pad the model's vocabulary."""
        return self.bytes[id] if id < len(self.bytes) else b""

    @cached_property
    def beginning(self) -> list[int]:
        """Tokens that the tokenizer puts before every text."""
        return self.tokenizer.encode("")

    def cut(self, text: bytes, whole: bool = False) -> list[int]:
        """Ids whose bytes are a text's, always the longest that fits.

        Bytes without any token are left out; where `whole`, so is all that is behind them.
        """
        ids, at = [], 0
        while at < len(text):
            end = next((end for end in range(min(len(text), at + self.longest), at, -1) if text[at:end] in self), at)
            if end > at:
                ids.append(self.by_bytes[text[at:end]])
            elif whole:
                break
            at = max(end, at + 1)
        return ids

    def __contains__(self, text: bytes) -> bool:
        return text in self.by_bytes


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """The shared tokens of a target and a draft, `target_ids[i]` and `draft_ids[i]` of the same bytes, and texts.

    Special tokens are shared where both have one of that name; the tokens that end a text are taken for the same.
    """

    target: Words
    draft: Words
    target_ids: list[int]
    draft_ids: list[int]
    _of_target: dict[int, list[int]] = field(default_factory=dict)  # id of the target -> ids of the draft

    @classmethod
    def of(cls, target: Tokenizer, draft: Tokenizer) -> VocabularyMap:
        """The map between two tokenizers; ModelError where they share no token."""
        ours, theirs = Words(target), Words(draft)
        same = {id: theirs.by_bytes[text] for text, id in ours.by_bytes.items() if text in theirs}
        if not same:
            raise ModelError(
                f"the tokenizers of {target.name} and {draft.name} have no token in common, so one cannot draft for "
                "the other; use a draft whose vocabulary overlaps the target's"
            )
        for id, spelled in enumerate(ours.bytes):
            place = None if spelled or not (name := ours.name(id)) else draft.id_of(name)
            if place is not None and not theirs.bytes[place]:
                same[id] = place
        for id in target.end_tokens:
            for end in draft.end_tokens:
                same.setdefault(id, end)
        once = {place: id for id, place in sorted(same.items(), reverse=True)}  # a draft's token means one of ours
        ids = sorted((id, place) for place, id in once.items())
        return cls(ours, theirs, [id for id, _ in ids], [place for _, place in ids], {i: [p] for i, p in same.items()})

    def within(self, target_size: int, draft_size: int) -> VocabularyMap:
        """The map for models that have so many logits: fewer than their tokenizers have tokens, or more."""
        pairs = zip(self.target_ids, self.draft_ids, strict=True)
        some = [(id, place) for id, place in pairs if id < target_size and place < draft_size]
        return replace(self, target_ids=[id for id, _ in some], draft_ids=[place for _, place in some])

    @cached_property
    def coverage(self) -> float:
        """The share of a sample text's tokens of the target that the draft has too."""
        ids = self.target.tokenizer.encode(SAMPLE, add_special=False)
        return len([id for id in ids if id in self._shared]) / max(1, len(ids))

    @cached_property
    def _shared(self) -> frozenset[int]:
        return frozenset(self.target_ids)

    @property
    def better(self) -> Literal["shared", "text"]:
        """How to draft: by shared tokens where a text mostly consists of these."""
        return "shared" if self.coverage >= ENOUGH else "text"

    @property
    def overlap(self) -> str:
        """How much they share, for people."""
        return (
            f"{len(self.target_ids):,} of the target's {len(self.target.bytes):,} tokens, {self.coverage:.0%} of those "
            "in a sample text"
        )

    def text(self, tokens: Sequence[int]) -> list[int]:
        """A whole text of the target in the draft's tokens, from its beginning on."""
        if self.target_ids == self.draft_ids:  # one with tokens added
            return [id for token in tokens for id in self.pieces(token)]
        first = self.target.beginning
        if first and list(tokens[: len(first)]) == first:
            tokens = tokens[len(first) :]
        whole = len(tokens) - self._unfinished(tokens)
        ids = self.draft.tokenizer.encode(self.target.tokenizer.decode(tokens[:whole], skip_special=False))
        return ids + [id for token in tokens[whole:] for id in self.pieces(token)]

    def _unfinished(self, tokens: Sequence[int]) -> int:
        """How many of the last tokens belong to a character that is not complete."""
        decoder = UTF_8("ignore")
        decoder.decode(b"".join(map(self.target.spelled, tokens[-LONGEST_CHARACTER:])))
        left, count = len(decoder.getstate()[0]), 0
        while left > 0:
            count += 1
            left -= len(self.target.spelled(tokens[-count]))
        return count

    def pieces(self, token: int) -> list[int]:
        """A token of the target within a text in the draft's tokens: one where both have it, or those of its bytes."""
        known = self._of_target.get(token)
        if known is None:
            spelled = self.target.spelled(token) or self.target.name(token).encode()
            known = self._of_target[token] = self.draft.cut(spelled)
        return known

    def shared(self, token: int) -> list[int]:
        """The target's token that a token of the draft is; none where the target lacks it."""
        return [id for id, place in zip(self.target_ids, self.draft_ids, strict=True) if place == token]

    def cut_by_target(self, before: Sequence[int], text: bytes) -> list[int]:
        """A drafted text in the target's tokens, as they would stand behind its tokens `before`.

        What would make a character only with bytes to come is left out.
        """
        decoder = UTF_8("replace")
        decoder.decode(text)
        text = text[: len(text) - len(decoder.getstate()[0])]
        tail = b""
        for id in reversed(before[-TAIL:]):
            spelled = self.target.spelled(id)
            if not spelled:
                break
            tail = spelled + tail
        try:
            ids = self.target.tokenizer.encode((tail + text).decode(), add_special=False)
        except UnicodeDecodeError:
            ids = []
        drafted: list[int] = []
        left = len(text)
        while ids and left > 0:
            drafted.insert(0, ids.pop())
            left -= len(self.target.spelled(drafted[0]))
        if b"".join(map(self.target.spelled, drafted)) == text:
            return drafted
        return self.target.cut(text, whole=True)  # a token spans its beginning, or it has bytes that no token has
