"""Demands of a request on its text, written out from their definitions: grammar, least tokens, stop strings.

A text is of the letters a, b, c; token 0 ends it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from tokenizers import Tokenizer as FastBackend
from tokenizers import decoders, models, pre_tokenizers

from draftwood.certify.references import Output
from draftwood.models.tabular import TabularModel
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.params import Structured

LETTERS = " abc"  # of tokens 1 to 3
ALL_LETTERS = frozenset(range(len(LETTERS)))
REGEX = "c?ab(a|bc|cc?a)*"
TRANSITIONS: tuple[dict[int, int], ...] = (  # of each state the tokens and where they lead
    {3: 1, 1: 2},
    {1: 2},
    {2: 3},
    {1: 3, 2: 4, 3: 5},
    {3: 3},
    {1: 3, 3: 6},
    {1: 3},
    {},
)
COMPLETE_STATE, OUTSIDE_STATE = 3, 7  # where a text is complete, or none of the language


def letters() -> Tokenizer:
    """A tokenizer whose tokens are the letters."""
    vocabulary = {"<end>": 0, **{letter: token for token, letter in enumerate(LETTERS) if token}}
    backend = FastBackend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, "letters")


def state(output: Output) -> int:
    """The automaton's state after a text of the language."""
    place = 0
    for token in output:
        place = TRANSITIONS[place].get(token, OUTSIDE_STATE)
    return place


@dataclass(slots=True)
class LanguageMatcher:
    """Follows `REGEX` in the place of llguidance, whose part is not ours to certify."""

    tokens: list[int] = field(default_factory=list)

    def deep_copy(self) -> LanguageMatcher:
        return LanguageMatcher(self.tokens.copy())

    def consume_tokens(self, tokens: list[int]) -> bool:
        self.tokens += tokens
        return True

    def rollback(self, count: int) -> bool:
        del self.tokens[len(self.tokens) - count :]
        return True

    def compute_bitmask(self) -> bytes:
        return bytes([sum(1 << token for token in TRANSITIONS[state(tuple(self.tokens))])])

    def is_accepting(self) -> bool:
        return state(tuple(self.tokens)) == COMPLETE_STATE

    def is_error(self) -> bool:
        return state(tuple(self.tokens)) == OUTSIDE_STATE

    def get_error(self) -> str:
        return "the text is none of the language"


class LanguageMatchers:
    """In the place of an engine's compiled grammars."""

    def __init__(self, end: frozenset[int]) -> None:
        self.end = end

    def compiled(self, structured: Structured) -> Callable[[], Grammar]:
        return lambda: Grammar(LanguageMatcher(), self.end, len(LETTERS), torch.device("cpu"))


@dataclass(frozen=True)
class Demand:
    """A grammar, at least `min_tokens` tokens, and stop strings that count behind those; each may be left out."""

    grammar: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()

    @cached_property
    def options(self) -> dict[str, Any]:
        """The demand as keywords of a request."""
        structured = {"structured": {"regex": REGEX}} if self.grammar else {}
        return {**structured, "min_new_tokens": self.min_tokens, "stop": self.stop}

    @property
    def label(self) -> str:
        tokens = f"at least {self.min_tokens} tokens" if self.min_tokens else ""
        return ", ".join(filter(None, ("grammar" * self.grammar, tokens, "stop strings" * bool(self.stop))))

    def allows(self, output: Output) -> frozenset[int]:
        """The tokens that may follow an output."""
        tokens = ALL_LETTERS
        if self.grammar:
            place = state(output)
            tokens = frozenset(TRANSITIONS[place]) | ({0} if place == COMPLETE_STATE else set())
        return tokens - {0} if len(output) < self.min_tokens else tokens

    def stopped(self, output: Output) -> int | None:
        """The index at which a stop string begins behind the minimum number of tokens; None without one."""
        text = "".join(LETTERS[token] for token in output)
        places = [text.find(stop, self.min_tokens) for stop in self.stop]
        return min((place for place in places if place >= 0), default=None)

    def over(self, output: Output) -> bool:
        """True where a text ends with its last token."""
        return output[-1] == 0 or self.stopped(output) is not None

    def text(self, output: Output) -> str:
        """The text that a user sees: without the end token, and cut at the stop string."""
        return "".join(LETTERS[token] for token in output if token)[: self.stopped(output)]

    def reason(self, output: Output) -> str:
        """Why it ends."""
        return "eos" if output[-1] == 0 else "length" if self.stopped(output) is None else "stop"

    def masked(self, model: TabularModel, prompt: int) -> TabularModel:
        """The model for which what is not allowed behind so many tokens of a prompt is impossible."""

        def law(prefix: tuple[int, ...]) -> list[float]:
            allowed = self.allows(prefix[prompt:])
            return [weight * (token in allowed) for token, weight in enumerate(model.law(prefix))]

        return TabularModel(law, model.vocab_size, n_layers=model.n_layers)


def few_letters(seed: int, number: int, ends: bool) -> TabularModel:
    """A random model: after every prefix two letters may come, the same for target and drafts, and maybe the end."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        possible = {*random.Random(f"{seed}:{prefix}").sample(range(1, len(LETTERS)), 2), *([0] if ends else [])}
        noise = random.Random(f"{seed}:{number}:{prefix}")
        return [noise.uniform(0.4, 1.6) * (token in possible) for token in range(len(LETTERS))]

    return TabularModel(law, len(LETTERS), n_layers=2)
