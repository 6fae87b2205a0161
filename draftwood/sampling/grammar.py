"""Structured output: what a grammar allows after a path of tokens, as an edit of logits like a penalty (spec §13).

Tokens that a grammar forbids after a node's own path get -inf before warping, in target, draft and joint alike, so that
every method follows p restricted and renormalised token by token. Grammars are compiled and followed by llguidance
(extra structured), whose limits bound the work of a compilation and of a mask.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.errors import ConfigurationError, RequestError
from draftwood.sampling.params import Structured

T = TypeVar("T")

KEPT = 64  # compiled grammars of an engine
STACK = 256 << 20  # bytes for the recursion of a compilation; rules that name each other need up to 128 MiB
LONGEST_GBNF = 1 << 15  # characters; the library rewrites GBNF in a time that grows with the square of them
MOST_KNOWN = 256  # paths whose masks a request keeps, and different masks that all requests keep
MOST_BIASES = 32  # of those that are kept as numbers, each as large as a row of logits
SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}  # as json.dumps writes


class Spelling(Protocol):
    """The tokens as bytes, where some texts cannot be spelled with them."""

    def towards(self, text: bytes, mask: bytes) -> bytes:
        """A mask, a bit for each token, without those that neither begin a text nor go on behind it."""


class Vocabulary(Protocol):
    """The tokenizer of a model, as far as grammars need it."""

    def for_llguidance(self, end: int) -> tuple[Any, Spelling | None]:
        """Its tokens as an `LLTokenizer` whose texts end with token `end`; their spelling where it is needed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may follow a path: a bit for each of V tokens, in `mask`, ceil(V / 8) bytes (None: anything).

    `only` is the one token where there is no choice; `failure` says why the grammar cannot be followed here: then
    drafts end.
    """

    mask: bytes | None
    only: int | None = None
    failure: str = ""

    def has(self, token: int) -> bool:
        """Whether a token may follow."""
        return self.mask is None or bool(self.mask[token >> 3] >> (token & 7) & 1)


ANYTHING = Allowed(None)


@lru_cache(MOST_KNOWN)
def allowing(mask: bytes, ending: bool, end: frozenset[int], vocab_size: int) -> Allowed:
    """The tokens that a mask of the library allows; a token of `end` exactly where the text may end."""
    bits = bytearray(mask[: -(-vocab_size // 8)].ljust(-(-vocab_size // 8), b"\0"))
    bits[-1] &= 0xFF >> -vocab_size % 8
    for token in end:
        bits[token >> 3] = bits[token >> 3] & 255 - (1 << (token & 7)) | ending << (token & 7)
    number = int.from_bytes(bits, "little")
    if not number:
        failure = "no token of this model goes on where the grammar is not complete; change the grammar"
        return replace(allowing(b"", True, end, vocab_size), only=None, failure=failure)
    return Allowed(bytes(bits), number.bit_length() - 1 if number.bit_count() == 1 else None)


@lru_cache(MOST_BIASES)
def bias(mask: bytes | None, vocab_size: int, device: torch.device) -> Tensor:
    """The numbers (0, -inf) that a mask adds to logits [V]. Texts of a grammar have few masks, again and again."""
    if mask is None:
        return torch.zeros(vocab_size, device=device)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little")
    return torch.from_numpy(np.where(bits, np.float32(0), np.float32(-np.inf))).to(device)


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
    pieces: Spelling | None = None  # the tokens, where some texts cannot be spelled
    _matcher: Any = field(init=False)
    _trunk: list[int] = field(init=False, default_factory=list)  # generated tokens in the trunk that the matcher has
    _below: list[int] = field(init=False, default_factory=list)  # and those after them
    _known: dict[tuple[int, ...], Allowed] = field(init=False, default_factory=dict)  # by path below the trunk
    _forest: Forest | None = field(init=False, default=None)  # the latest one
    _nodes: dict[int, Allowed] = field(init=False, default_factory=dict)  # of it

    def __post_init__(self) -> None:
        self._matcher = self.start.deep_copy()

    def allowed(self, forest: Forest, node: int) -> Allowed:
        """The tokens that may follow a node."""
        if forest is not self._forest:
            self._forest, self._nodes = forest, {}
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = self._after(forest, node)
        return known

    def _after(self, forest: Forest, node: int) -> Allowed:
        """The tokens that may follow a node's path."""
        generated = len(forest.trunk) - forest.prompt
        path = [forest.token[one] for one in forest.path(node)][max(0, -generated) :]
        if max(0, generated) != len(self._trunk):
            self._follow(forest.trunk[forest.prompt + len(self._trunk) :])
        known = self._known.get(key := tuple(path))
        if known is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            ended = path and path[-1] in self.end
            known = self._known[key] = ANYTHING if ended else self.ask_matcher(path)
        return known

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """Logits [len(nodes), V] with -inf where a token is forbidden after a node.

        Where all that is allowed was impossible before, it becomes equally likely.
        """
        biases = [bias(self.allowed(forest, node).mask, self.vocab_size, logits.device) for node in nodes]
        added = torch.stack(biases) if len(biases) > 1 else biases[0][None]
        left = logits + added
        for row, most in enumerate(left.amax(-1).tolist()):
            if most == -math.inf:
                left[row] = added[row]
        return left

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

    def ask_matcher(self, path: list[int]) -> Allowed:
        """The tokens that may follow others below the trunk, asked of the matcher."""
        self._move(path)
        mask = self._matcher.compute_bitmask()
        if not self._matcher.is_error():
            if self.pieces is not None and (forced := self._matcher.compute_ff_bytes()):
                mask = self.pieces.towards(forced, mask)  # the library skips what no token spells
            return allowing(mask, self._matcher.is_accepting(), self.end, self.vocab_size)
        failure = _reason(self._matcher)
        self._restart()  # an error is for ever
        stuck = allowing(b"", False, self.end, self.vocab_size)
        return stuck if failure.startswith("NoExtension") else replace(stuck, failure=failure)

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

    def __init__(self, tokenizer: Vocabulary, end: frozenset[int], vocab_size: int, device: torch.device) -> None:
        self.tokenizer, self.end, self.vocab_size, self.device = tokenizer, end, vocab_size, device
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._words: Any = None
        self._pieces: Spelling | None = None
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def compiled(self, structured: Structured) -> Callable[[], Grammar]:
        """Make a function that begins a grammar anew for each request; RequestError where it is none, or too large."""
        key = structured.source
        matcher = self._known(key)
        if matcher is None:
            with self._compiling:  # those that are known wait for nothing
                matcher = self._known(key) or deep(self.compile, *key)
                with self._lock:
                    self._compiled[key] = matcher
                    if len(self._compiled) > KEPT:
                        self._compiled.popitem(last=False)
        return lambda: Grammar(matcher, self.end, self.vocab_size, self.device, self._pieces)

    def _known(self, key: tuple[str, str]) -> Any:
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
            return self._compiled.get(key)

    def compile(self, kind: str, text: str) -> Any:
        """A matcher before the first token; RequestError where the text is none of its kind, or too large."""
        llguidance = library()
        if self._words is None:
            self._words, self._pieces = self.tokenizer.for_llguidance(min(self.end))
        try:
            if kind == "json_schema":
                grammar = llguidance.LLMatcher.grammar_from_json_schema(text, SEPARATORS)
            else:
                lines = text.split("\n")  # the library looks at each of several empty lines until their end
                text = "\n".join(line for line, last in zip(lines, ["", *lines], strict=False) if (line + last).strip())
                if len(text) > LONGEST_GBNF and not llguidance.gbnf_to_lark.is_lark_syntax(text):
                    raise ValueError(f"a grammar in GBNF has {LONGEST_GBNF:,} characters at most; write it in Lark")
                grammar = llguidance.grammar_from(kind, text)
        except ValueError as error:
            raise RequestError(f"structured: {one_line(str(error))}") from None
        matcher = llguidance.LLMatcher(
            self._words, grammar, log_level=0, limits=llguidance.LLParserLimits(verbose_errors=False)
        )
        if matcher.is_error():
            place = "at 1(8): " if kind == "regex" else ""  # of the regex in a grammar that nobody wrote
            raise RequestError(f"structured: {_reason(matcher).removeprefix(place)}")
        return matcher


def deep(work: Callable[..., T], *given: Any) -> T:
    """Call `work` in a thread with a stack for deep recursion: a deep grammar would end the process otherwise."""
    with ThreadPoolExecutor(1) as pool:
        usual = threading.stack_size(STACK)
        try:
            done = pool.submit(work, *given)
        finally:
            threading.stack_size(usual)
        return done.result()


def library() -> Any:
    """llguidance, or a ConfigurationError that names the extra."""
    try:
        import llguidance
    except ImportError as error:
        raise ConfigurationError(
            "structured output needs the package llguidance: install the extra draftwood[structured]"
        ) from error
    return llguidance


def _reason(matcher: Any) -> str:
    return one_line(str(matcher.get_error()))


def one_line(text: str) -> str:
    """An error of the library in one line of bounded length, without the lines of a grammar that it shows."""
    lines = [line for line in text.replace("<non-verbose/>", "").splitlines() if not line.startswith(" ")]
    text = " ".join(" ".join(lines).replace("regex parse error: error: ", "").split())
    return text if len(text) <= 300 else f"{text[:197]}...{text[-100:]}"
