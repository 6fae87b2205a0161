"""Prompt lookup: propose what followed the last tokens when they occurred before, of any length.

No model; what is proposed is a function of prompt and output alone. A suffix automaton of the text (Blumer et al. 1985)
has the longest match at every time, in O(1) amortised time a token. Saxena 2023 ("prompt lookup") and Hu et al. 2024
("SAM decoding") draft likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftwood.core.forest import Forest
from draftwood.depth.acceptance import PRIOR_TRIALS, ConfidenceRates, bin_of
from draftwood.errors import ConfigurationError

ESCAPE = 2.0  # how often the next token is held to be another one after a match of one token; n tokens: 1/n of that
FAINT = 0.02  # least chance that all of a draft is accepted
MOST_OF_CORPUS = 1 << 18  # tokens of a corpus, about 0.6 kB each
EARLIER = 32768  # tokens of earlier answers that are kept at least, and twice as many at most


class SuffixAutomaton:
    """All substrings of a growing text. A state stands for those that end at the same places; state 0 is the empty one.

    Of each state: the states that a token more leads to, how often which token followed the longest match, the one that
    did most often (of equals the latest), the state of the longest suffix that is not in it, and the length of its
    longest string. A text of n tokens has 2n states at most.
    """

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]  # token -> state
        self.counts: list[dict[int, int]] = [{}]  # token -> times, where that is more than once
        self.total = [0]  # times of all tokens
        self.best = [0]
        self.shorter = [-1]
        self.length = [0]
        self.size = 0  # tokens
        self._last = 0  # the state of the whole text

    @property
    def match(self) -> Match:
        """The longest suffix that occurred before."""
        return Match(self, *self.longest)

    @property
    def longest(self) -> tuple[int, int]:
        """State and length of the longest suffix that occurred before."""
        state = max(0, self.shorter[self._last])
        return state, self.length[state]

    def guess(self, state: int, length: int, least: int) -> tuple[float, int]:
        """(chance, token) of what follows a match; (0, -1) where none of at least `least` tokens goes on.

        A token that followed n of N times has the chance n / (N + ESCAPE / length).
        """
        while not self.following[state]:  # the end of the text: a copy may run into itself
            state = self.shorter[state]
            if state < 1:
                return 0.0, -1
            length = self.length[state]
        if length < least or not length:
            return 0.0, -1
        token = self.best[state]
        return self.counts[state].get(token, 1) / (self.total[state] + ESCAPE / length), token

    def append(self, token: int) -> None:
        """The text grows by a token."""
        following, counts, shorter, length = self.following, self.counts, self.shorter, self.length
        state, new = self._last, len(length)
        self._state({}, {}, 0, 0, 0, length[state] + 1)
        self._last = new
        self.size += 1
        while state != -1 and token not in following[state]:
            following[state][token] = new
            self.total[state] += 1
            if counts[state].get(self.best[state], 1) == 1:
                self.best[state] = token
            state = shorter[state]
        if state == -1:
            return
        times = counts[state][token] = counts[state].get(token, 1) + 1
        self.total[state] += 1
        if times >= counts[state].get(self.best[state], 1):
            self.best[state] = token
        next_state = following[state][token]
        if length[next_state] > length[state] + 1:  # its shorter strings now end at a place more than the others
            short = self._state(
                dict(following[next_state]),
                dict(counts[next_state]),
                self.total[next_state],
                self.best[next_state],
                shorter[next_state],
                length[state] + 1,
            )
            while state != -1 and following[state].get(token) == next_state:
                following[state][token] = short
                state = shorter[state]
            shorter[next_state] = next_state = short
        shorter[new] = next_state

    def _state(
        self, following: dict[int, int], counts: dict[int, int], total: int, best: int, shorter: int, length: int
    ) -> int:
        self.following.append(following)
        self.counts.append(counts)
        self.total.append(total)
        self.best.append(best)
        self.shorter.append(shorter)
        self.length.append(length)
        return len(self.length) - 1


@dataclass(slots=True)
class Match:
    """The longest suffix of a text that is in an automaton: its state there, and its length."""

    texts: SuffixAutomaton
    state: int = 0
    length: int = 0

    def step(self, token: int) -> None:
        """The text grows by a token."""
        texts, state = self.texts, self.state
        while state and token not in texts.following[state]:
            state = texts.shorter[state]
            self.length = texts.length[state]
        next_state = texts.following[state].get(token)
        self.state, self.length = (0, 0) if next_state is None else (next_state, self.length + 1)

    def settle(self) -> None:
        """Follow an automaton that has grown: the strings of a state may have got a state of their own."""
        texts = self.texts
        while self.state and self.length <= texts.length[texts.shorter[self.state]]:
            self.state = texts.shorter[self.state]

    def guess(self, least: int) -> tuple[float, int]:
        """(chance, token) of what follows; see `SuffixAutomaton.guess`."""
        return self.texts.guess(self.state, self.length, least)


@dataclass(slots=True)
class EarlierAnswers:
    """Answers of an engine's requests that asked to share theirs, in two automata: the older one goes in the end.

    Texts of files, which `encode` turns into tokens, are kept beside them.
    """

    most: int = EARLIER
    encode: Callable[[str], Sequence[int]] | None = None
    texts: list[SuffixAutomaton] = field(default_factory=lambda: [SuffixAutomaton()])
    files: dict[str, SuffixAutomaton] = field(default_factory=dict)

    def emptied(self) -> EarlierAnswers:
        """Without any answer, but with the files."""
        return replace(self, texts=[SuffixAutomaton()])

    def corpus(self, path: str) -> SuffixAutomaton:
        """The text of a file, read when it is first asked for; ConfigurationError where that cannot be done."""
        if path not in self.files:
            if self.encode is None:
                raise ConfigurationError("this engine has no tokenizer, so it cannot read a corpus; leave corpus out")
            try:
                tokens = self.encode(Path(path).read_text("utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"the corpus {path} cannot be read; name a text file in UTF-8") from error
            if len(tokens) > MOST_OF_CORPUS:
                raise ConfigurationError(
                    f"the corpus {path} has {len(tokens):,} tokens, but at most {MOST_OF_CORPUS:,} are searched; cut it"
                )
            text = SuffixAutomaton()
            for token in tokens:
                text.append(token)
            self.files[path] = text
        return self.files[path]

    def add(self, answer: Sequence[int]) -> None:
        """Keep an answer; no match goes from one to the next."""
        if self.texts[-1].size + len(answer) >= self.most:
            self.texts = [self.texts[-1], SuffixAutomaton()]
        text = self.texts[-1]
        for token in (*answer[-self.most :], -1 - text.size):
            text.append(token)


@dataclass(slots=True)
class SuffixLookup:
    """Drafts the tokens that followed the longest match in prompt and output; where `shared`, in earlier answers too.

    The more often, and the longer the match, the surer it is, and the more of it is proposed: by what came of such
    guesses in this text so far, the prompt included.
    """

    least: int = 1  # tokens of a match
    shared: bool = False
    corpus: str | None = None  # a file of text that is searched too
    _text: SuffixAutomaton = field(init=False, default_factory=SuffixAutomaton)
    _others: list[Match] = field(init=False, default_factory=list)  # of the text in earlier answers, the latest first
    _earlier: EarlierAnswers | None = field(init=False, default=None)
    _right: ConfidenceRates = field(
        init=False, default_factory=ConfidenceRates
    )  # how often guesses of a chance were right

    def share(self, earlier: EarlierAnswers) -> None:
        """Look at earlier answers, and leave the request's there, if that was asked for; before the first round."""
        if self.shared:
            self._earlier = earlier
            self._others = [Match(texts) for texts in reversed(earlier.texts)]
        if self.corpus is not None:
            self._others.append(Match(earlier.corpus(self.corpus)))

    def continuation(self, forest: Forest, most: int, path: Sequence[int] = ()) -> list[tuple[int, float]]:
        """(token, chance to be accepted if all before it are) of the draft below the only root.

        With the `path` of a node, below that: what lies between is certain.
        """
        self._read([*forest.trunk[self._text.size :], forest.token[forest.roots[0]]])
        matches = [self._text.match, *map(copy, self._others)]
        for node in path:
            if node not in forest.roots:
                for match in matches:
                    match.step(forest.token[node])
        copied: list[tuple[int, float]] = []
        reach, tried, right = 1.0, self._right.tried, self._right.accepted
        while len(copied) < most:
            guess, token = self._guess(matches)
            bin_ = bin_of(guess)
            chance = (right[bin_] + PRIOR_TRIALS * guess) / (tried[bin_] + PRIOR_TRIALS)
            reach *= chance
            if reach < FAINT or token < 0:
                break
            copied.append((token, chance))
            for match in matches:
                match.step(token)
        return copied

    def _guess(self, matches: Sequence[Match]) -> tuple[float, int]:
        """The likeliest (chance, token) of what follows; the token is -1 where there is none."""
        if len(matches) == 1:  # the same for less
            return matches[0].guess(self.least)
        return max((match.guess(self.least) for match in matches), key=lambda guess: guess[0])

    def _read(self, tokens: Sequence[int]) -> None:
        text, others, least = self._text, self._others, self.least
        right, tried = self._right.accepted, self._right.tried
        for match in others:
            match.settle()
        for token in tokens:
            guess, best = self._guess([text.match, *others]) if others else text.guess(*text.longest, least)
            if best >= 0:
                bin_ = bin_of(guess)
                tried[bin_] += 1
                right[bin_] += best == token
            text.append(token)
            for match in others:
                match.step(token)

    def finish(self, forest: Forest) -> None:
        """The request is over."""
        if self._earlier is not None:
            self._earlier.add(forest.sequence(forest.roots[0])[forest.prompt :])
