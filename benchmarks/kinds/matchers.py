"""Libraries that follow grammars, on trees of drafts: microseconds to get to a node and to ask what may follow there.

All of them walk the same tokens, in the two ways that a tree can be walked: one matcher that takes tokens back, and a
copy of the parent's matcher for each node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bench import Bench, turned
from benchmarks.experiment import Kind, Rows, Strict
from benchmarks.kinds.grammars import larger
from benchmarks.kinds.peers import packages
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.eval.intervals import median
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.sampling.grammar import Grammars
from draftwood.sampling.params import Structured

T = TypeVar("T")
END = 0  # the token that ends a text
Path = tuple[int, ...]  # tokens below the trunk, the node's own last
Round = tuple[Path, list[Path]]  # the tokens of the trunk; nodes below it, parents first, the root's path being empty


class Matcher(Protocol):
    """A library's, at some place of a text."""

    def fork(self) -> Matcher: ...

    def advance(self, token: int) -> None: ...

    def back(self, tokens: int) -> None: ...

    def mask(self) -> NDArray[np.uint8]:
        """A bit for each token that may follow, in bytes [ceil(V / 32) * 4]."""


class Example(Strict):
    """What a text must be, and one that is: the first draft at a node is its next token, others are drawn."""

    structured: Structured
    text: str


class Matchers(Kind):
    """Each example with each tree, of so many children per node in each layer."""

    examples: dict[str, Example]
    trees: dict[str, tuple[int, ...]]
    libraries: tuple[str, ...] = ("llguidance", "xgrammar")
    vocabulary: int = 32_000
    repeats: int = 5
    between: int = 64  # MiB that are read before each tree, as a forward reads weights

    def measure(self, bench: Bench) -> dict[str, Rows]:
        words = larger(self.vocabulary)
        for name in self.libraries:
            if name not in LIBRARIES:
                raise ConfigurationError(f"there is no library {name!r}" + did_you_mean(name, LIBRARIES))
        compilers = {name: LIBRARIES[name](words) for name in self.libraries}
        rows: Rows = []
        for grammar, example in bench.track(self.examples.items(), "grammars"):
            starts = {name: compiler(example.structured) for name, compiler in compilers.items()}
            for tree, widths in self.trees.items():
                rounds = list(self.rounds([*starts.values()], words.encode(example.text), widths, words.size))
                masks = {name: asked(start, rounds) for name, start in starts.items()}
                found: dict[str, list[dict[str, float]]] = {name: [] for name in compilers}
                for repeat in range(self.repeats + 1):
                    for name in turned(self.libraries, repeat):
                        sample = partial(self.sample, compilers[name], example.structured, rounds)
                        found[name].append(bench.once([grammar, tree, name, repeat], sample))
                for name, each in found.items():
                    row = {key: median([one[key] for one in each[1:]]) for key in each[0]}  # the first warms up
                    alone = np.mean([int.from_bytes(mask, "little").bit_count() == 1 for mask in masks[name]])
                    about = {"grammar": grammar, "tree": tree, "library": name, "nodes": len(masks[name])}
                    rows.append({**about, "alone": float(alone), **row})
        return {"matchers": rows, "packages": [packages(self.libraries)]}

    def rounds(self, starts: Sequence[Matcher], text: list[int], widths: Path, vocabulary: int) -> Iterator[Round]:
        """A tree behind each token of a text, of tokens that all libraries allow."""
        generator = np.random.default_rng(0)
        for length in range(len(text)):
            trunk = tuple(text[:length])
            paths: list[Path] = [()]
            layer: list[Path] = [()]
            for depth, width in enumerate(widths):
                layer = [
                    (*path, token)
                    for path in layer
                    for token in drafts(starts, (*trunk, *path), text[length + depth :], width, vocabulary, generator)
                ]
                paths += layer
            yield trunk, paths

    def sample(
        self, compiler: Callable[[Structured], Matcher], structured: Structured, rounds: Sequence[Round]
    ) -> dict[str, float]:
        """Milliseconds to compile a grammar; microseconds of a node by either way, and of a mask by the first."""
        spent: dict[str, float] = defaultdict(float)

        def timed(what: str, work: Callable[..., T], *arguments: Any) -> T:
            began = perf_counter()
            found = work(*arguments)
            spent[what] += perf_counter() - began
            return found

        start = timed("compile", compiler, structured)
        memory = np.ones(self.between << 17)
        for trunk, paths in rounds:
            memory.sum()
            matcher = moved(start.fork(), (), trunk)
            for before, path in pairwise([(), *paths]):
                timed("move", moved, matcher, before, path)
                timed("mask", matcher.mask)
            memory.sum()
            copies: dict[Path, Matcher] = {(): moved(start.fork(), (), trunk)}
            for path in paths:
                if path:
                    copies[path] = timed("copy", forked, copies[path[:-1]], path[-1])
                timed("copy", copies[path].mask)
        nodes = sum(len(paths) for _, paths in rounds) / 1e6
        walked, copied, mask = spent["move"] + spent["mask"], spent["copy"], spent["mask"]
        times = {"walked_us": walked / nodes, "copied_us": copied / nodes, "mask_us": mask / nodes}
        return {"compile_ms": 1000 * spent["compile"], **times}


def moved(matcher: Matcher, before: Path, path: Path) -> Matcher:
    """The same matcher behind other tokens."""
    pairs = enumerate(zip(before, path, strict=False))
    shared = next((place for place, (one, other) in pairs if one != other), min(len(before), len(path)))
    if shared < len(before):
        matcher.back(len(before) - shared)
    for token in path[shared:]:
        matcher.advance(token)
    return matcher


def forked(matcher: Matcher, token: int) -> Matcher:
    """A matcher a token on."""
    return moved(matcher.fork(), (), (token,))


def drafts(
    starts: Sequence[Matcher],
    tokens: Path,
    wanted: Sequence[int],
    width: int,
    vocabulary: int,
    generator: np.random.Generator,
) -> list[int]:
    """Up to `width` tokens that all allow behind some tokens: the first that is wanted, if they do, then others."""
    masks = [moved(start.fork(), (), tokens).mask() for start in starts]
    bits = np.unpackbits(np.bitwise_and.reduce(masks), count=vocabulary, bitorder="little")
    bits[END] = 0
    first = [token for token in wanted[:1] if bits[token]]
    bits[first] = 0
    return [*first, *map(int, generator.permutation(np.flatnonzero(bits)))][:width]


def asked(start: Matcher, rounds: Sequence[Round]) -> list[bytes]:
    """The masks of all nodes."""
    return [moved(start.fork(), (), (*trunk, *path)).mask().tobytes() for trunk, paths in rounds for path in paths]


@dataclass(frozen=True, slots=True)
class LLGuidance:
    """The library that draftwood uses."""

    matcher: Any
    size: int  # bytes of a mask that are wanted

    def fork(self) -> LLGuidance:
        return LLGuidance(self.matcher.deep_copy(), self.size)

    def advance(self, token: int) -> None:
        taken(self.matcher.consume_token(token), token)

    def back(self, tokens: int) -> None:
        self.matcher.rollback(tokens)

    def mask(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.matcher.compute_bitmask(), np.uint8)[: self.size]


@dataclass(frozen=True, slots=True)
class XGrammar:
    """xgrammar, which writes masks into memory of the caller's."""

    matcher: Any
    bits: torch.Tensor  # [1, ceil(V / 32)], of all copies

    def fork(self) -> XGrammar:
        return XGrammar(self.matcher.fork(), self.bits)

    def advance(self, token: int) -> None:
        taken(self.matcher.accept_token(token), token)

    def back(self, tokens: int) -> None:
        self.matcher.rollback(tokens)

    def mask(self) -> NDArray[np.uint8]:
        self.matcher.fill_next_token_bitmask(self.bits)
        found: NDArray[np.uint8] = self.bits.numpy().view(np.uint8)[0]
        return found


def taken(accepted: bool, token: int) -> None:
    """Where a token is not what a grammar allows there is nothing to measure."""
    if not accepted:
        raise ConfigurationError(f"a grammar does not allow its example's token {token}; correct the text")


def llguidance(words: Tokenizer) -> Callable[[Structured], Matcher]:
    """What compiles grammars."""
    grammars = Grammars(words, frozenset({END}), words.size, torch.device("cpu"))
    size = -(-words.size // 32) * 4
    return lambda structured: LLGuidance(grammars.compile(*structured.source), size)


def xgrammar(words: Tokenizer) -> Callable[[Structured], Matcher]:
    """What compiles grammars; they are no part of draftwood's own."""
    try:
        import xgrammar as library
    except ImportError as error:
        raise ConfigurationError(
            "xgrammar is not installed: pip install xgrammar, or leave it out of libraries"
        ) from error
    backend: Any = words.backend
    special = backend.get_added_tokens_decoder()
    texts = [""] * words.size  # which are never allowed
    for text, token in backend.get_vocab().items():
        texts[token] = "" if token in special else text
    info = library.TokenizerInfo(texts, library.VocabType.BYTE_LEVEL, vocab_size=words.size, stop_token_ids=[END])
    compiler = library.GrammarCompiler(info, cache_enabled=False)
    bits = torch.zeros(1, -(-words.size // 32), dtype=torch.int32)

    def compiled(structured: Structured) -> Matcher:
        kind, text = structured.source
        if kind == "json_schema":
            grammar = compiler.compile_json_schema(text, any_whitespace=False, strict_mode=False)
        elif kind == "regex":
            grammar = compiler.compile_regex(text)
        else:
            raise ConfigurationError(
                "only json_schema and regex are written alike for both libraries; give one of them"
            )
        return XGrammar(library.GrammarMatcher(grammar), bits)

    return compiled


LIBRARIES: dict[str, Callable[[Tokenizer], Callable[[Structured], Matcher]]] = {
    "llguidance": llguidance,
    "xgrammar": xgrammar,
}
