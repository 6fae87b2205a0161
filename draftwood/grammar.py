"""Structured output: what a grammar allows after a path of tokens, as an edit of logits like a penalty (spec §13).

Tokens that a grammar forbids after a node's own path get -inf before warping, in target, draft and joint alike, so that
every method follows p restricted and renormalised token by token. Grammars are compiled and followed by llguidance
(extra structured), whose limits bound the work of a compilation and of a mask.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.models.tokenizer import Tokenizer
from draftwood.params import Structured

KEPT = 64  # compiled grammars of an engine
MOST_KNOWN = 256  # masks that a request keeps
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
BIASES = np.where(_BITS, 0, -np.inf).astype(np.float32)  # [256, 8]: what a byte of a mask adds to eight logits
SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}  # as json.dumps writes


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may follow a path: a bit for each of V tokens, `mask` [V/8], rounded up (None: anything).

    `only` is the one token where there is no choice; `failure` says why the grammar cannot be followed here: then
    drafts end.
    """

    mask: NDArray[np.uint8] | None
    only: int | None = None
    failure: str = ""

    def has(self, token: int) -> bool:
        """Whether a token may follow."""
        return self.mask is None or bool(self.mask[token >> 3] >> (token & 7) & 1)


ANYTHING = Allowed(None)


@dataclass(slots=True)
class Grammar:
    """A grammar as one request follows it: each node sees its own path after the prompt.

    One matcher walks from path to path by taking back tokens and adding others. What was found stays known until the
    trunk grows. `end` are the tokens that end a text, allowed exactly where the grammar is complete.
    """

    start: Any  # llguidance.LLMatcher before the first token, which stays there
    end: frozenset[int]
    vocab_size: int
    device: torch.device
    _matcher: Any = field(init=False)
    _trunk: list[int] = field(init=False, default_factory=list)  # generated tokens in the trunk that the matcher has
    _below: list[int] = field(init=False, default_factory=list)  # and those after them
    _known: dict[tuple[int, ...], Allowed] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._matcher = self.start.deep_copy()

    def allowed(self, forest: Forest, node: int) -> Allowed:
        """What may follow a node."""
        generated = len(forest.trunk) - forest.prompt
        path = [forest.token[one] for one in forest.path(node)][max(0, -generated) :]
        if max(0, generated) != len(self._trunk):
            self._follow(forest.trunk[forest.prompt + len(self._trunk) :])
        found = self._known.get(key := tuple(path))
        if found is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            ended = path and path[-1] in self.end
            found = self._known[key] = ANYTHING if ended else self.found(path)
        return found

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """Logits [len(nodes), V] with -inf where a token is forbidden after a node.

        Where all that is allowed was impossible before, it becomes equally likely.
        """
        found = [(row, mask) for row, node in enumerate(nodes) if (mask := self.allowed(forest, node).mask) is not None]
        if not found:
            return logits
        rows, bits = [row for row, _ in found], np.stack([mask for _, mask in found])
        biases = BIASES.take(bits, axis=0).reshape(len(rows), -1)[:, : self.vocab_size]  # adding is vectorised
        added = torch.from_numpy(biases).to(logits.device)
        left = (logits if len(rows) == len(nodes) else logits[rows]) + added
        if (impossible := left.amax(-1) == -torch.inf).any():
            left[impossible] = added[impossible].to(left.dtype)
        if len(rows) == len(nodes):
            return left
        logits = logits.clone()
        logits[rows] = left
        return logits

    def checked(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """The logits as they are; RequestError where the grammar cannot be followed after one of the nodes."""
        failure = next(filter(None, (self.allowed(forest, node).failure for node in nodes)), None)
        if failure is not None:
            raise RequestError(f"structured: {failure}")
        return logits

    def _follow(self, new: list[int]) -> None:
        """The trunk has grown."""
        if self._below[: len(new)] != new:
            self._move(new)
        self._trunk, self._below = self._trunk + new, self._below[len(new) :]
        self._known.clear()

    def found(self, path: list[int]) -> Allowed:
        """What may follow tokens below the trunk, asked of the matcher."""
        self._move(path)
        bits = np.zeros(-(-self.vocab_size // 8), np.uint8)
        known = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: len(bits)]
        failure = _reason(self._matcher) if self._matcher.is_error() else ""
        if not failure:
            bits[: len(known)] = known
            bits[-1] &= 0xFF >> -self.vocab_size % 8
            self._set(bits, self._matcher.is_accepting())
        else:
            self._restart()  # an error is for ever
        number = int.from_bytes(bits.tobytes(), "little")
        if not number:
            if not failure or failure.startswith("NoExtension"):
                failure = "no token of this model goes on where the grammar is not complete; change the grammar"
            self._set(bits, True)
        only = number.bit_length() - 1 if number.bit_count() == 1 else None
        return Allowed(bits, only, failure)

    def _set(self, bits: NDArray[np.uint8], ending: bool) -> None:
        """Whether a text may end."""
        for token in self.end:
            bits[token >> 3] = bits[token >> 3] & 255 - (1 << (token & 7)) | ending << (token & 7)

    def _move(self, path: list[int]) -> None:
        """Have the matcher at a path below the trunk."""
        below, shared = self._below, 0
        while shared < min(len(below), len(path)) and below[shared] == path[shared]:
            shared += 1
        if shared < len(below) and not self._matcher.rollback(len(below) - shared):  # some grammars cannot
            self._restart()
            shared = 0
        if shared < len(path):
            self._matcher.consume_tokens(path[shared:])
        self._below = path

    def _restart(self) -> None:
        """Have a new matcher at the end of the trunk."""
        self._matcher, self._below = self.start.deep_copy(), []
        self._matcher.consume_tokens(self._trunk)


class Grammars:
    """Compiles grammars for the tokens of one model; the latest ones are kept."""

    def __init__(self, tokenizer: Tokenizer, end: frozenset[int], vocab_size: int, device: torch.device) -> None:
        self.tokenizer, self.end, self.vocab_size, self.device = tokenizer, end, vocab_size, device
        self._lock = Lock()
        self._words: Any = None
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def compiled(self, structured: Structured) -> Callable[[], Grammar]:
        """What begins to follow a grammar in a request; RequestError where it is none, or too large."""
        key = structured.source
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is None:
                matcher = self._compiled[key] = self._compile(*key)
                if len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
        return lambda: Grammar(matcher, self.end, self.vocab_size, self.device)

    def _compile(self, kind: str, text: str) -> Any:
        llguidance = library()
        if self._words is None:
            self._words = _words(self.tokenizer, min(self.end))
        try:
            if kind == "json_schema":
                grammar = llguidance.LLMatcher.grammar_from_json_schema(text, SEPARATORS)
            else:
                grammar = llguidance.grammar_from(kind, text)
        except ValueError as error:
            raise RequestError(f"structured: {_sentence(str(error))}") from None
        matcher = llguidance.LLMatcher(
            self._words, grammar, log_level=0, limits=llguidance.LLParserLimits(verbose_errors=False)
        )
        if matcher.is_error():
            place = "at 1(8): " if kind == "regex" else ""  # of the regex in a grammar that nobody wrote
            raise RequestError(f"structured: {_reason(matcher).removeprefix(place)}")
        return matcher


def library() -> Any:
    """llguidance, or a ConfigurationError that names the extra."""
    try:
        import llguidance
    except ImportError as error:
        raise ConfigurationError(
            "structured output needs the package llguidance: install the extra draftwood[structured]"
        ) from error
    return llguidance


def _words(tokenizer: Tokenizer, end: int) -> Any:
    """The tokens of a model as llguidance reads them."""
    llguidance, backend = library(), cast(Any, tokenizer.backend)
    try:
        if hasattr(backend, "to_str"):
            return llguidance.LLTokenizer(backend.to_str(), max(tokenizer.size, end + 1), end)
        return llguidance.LLTokenizer(backend.for_grammars(end), max(tokenizer.size, end + 1), end)
    except Exception as error:  # the library raises whatever its parts do
        raise ModelError(
            f"the tokenizer of {tokenizer.name!r} cannot be used for structured output ({_sentence(str(error))})"
        ) from error


def _reason(matcher: Any) -> str:
    return _sentence(str(matcher.get_error()))


def _sentence(text: str) -> str:
    """An error of the library in one line of bounded length, without the lines of a grammar that it shows."""
    lines = [line for line in text.replace("<non-verbose/>", "").splitlines() if not line.startswith(" ")]
    text = " ".join(" ".join(lines).replace("regex parse error: error: ", "").split())
    return text if len(text) <= 300 else f"{text[:197]}...{text[-100:]}"
