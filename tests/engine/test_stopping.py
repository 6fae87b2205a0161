"""Where a text ends: stop strings across token borders, hold-back while streaming, limits inside an accepted run."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from ledger import lent

from draftwood import Engine, TabularModel
from draftwood.engine.stopping import Ending


class Letters:
    """A toy decoder: each token is one of these pieces; token 9 is half a character that the next token completes."""

    PIECES = ("a", "b", "ab", "c", "", "ba", "abc", " ", "é")

    def __init__(self) -> None:
        self.pending = False

    def step(self, token: int) -> str:
        if token == 9:
            self.pending = True
            return ""
        piece = ("ß" if self.pending else "") + self.PIECES[token]
        self.pending = False
        return piece


def whole(tokens: list[int]) -> str:
    decoder = Letters()
    return "".join(decoder.step(token) for token in tokens)


def ending(stop: tuple[str, ...] = (), limit: int = 100, end: frozenset[int] = frozenset()) -> Ending:
    return Ending(limit, end, stop, Letters())


def test_a_stop_string_across_token_borders() -> None:
    text = ending(("bab",))
    assert text.feed([0, 1]) == 2 and text.reason is None
    assert text.feed([0]) == 1
    assert text.feed([2, 3, 3]) == 3 and text.reason is None  # "ab a ab" has "ba|a": no
    text = ending(("bab",))
    assert text.feed([3, 2, 0, 1, 3]) == 4  # c ab a b | c
    assert (text.reason, text.text) == ("stop", "ca")


def test_a_stop_string_inside_one_token() -> None:
    text = ending(("b",))
    assert text.feed([3, 6, 0]) == 2
    assert (text.reason, text.text, text.count) == ("stop", "ca", 2)


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    text = ending(("c", "ab"))
    text.feed([3 + 4, 6])
    assert (text.reason, text.text) == ("stop", " ")


def test_what_may_become_a_stop_string_is_held_back() -> None:
    text = ending(("abc",))
    shown = []
    for token in (3, 0, 1, 0, 1, 7, 2):
        text.feed([token])
        shown.append(text.new_text())
    assert shown == ["c", "", "", "ab", "", "ab ", ""]
    text.feed([3])
    assert (text.reason, text.new_text(), text.text) == ("stop", "", "cabab ")


def test_what_was_held_back_is_shown_at_the_end() -> None:
    text = ending(("abc",), limit=2)
    text.feed([0])
    assert text.new_text() == ""
    text.feed([1])
    assert (text.reason, text.new_text()) == ("length", "ab")


def test_a_character_of_two_tokens_appears_when_it_is_complete() -> None:
    text = ending(("ß",))
    text.feed([3, 9])
    assert (text.new_text(), text.reason) == ("c", None)
    text.feed([0])
    assert (text.reason, text.text) == ("stop", "c")


@pytest.mark.parametrize(
    ("limit", "tokens", "kept", "reason"),
    [
        (10, [1, 0, 3, 4], 3, "eos"),
        (2, [1, 0, 3, 4], 2, "length"),
        (3, [1, 0, 3, 4], 3, "eos"),  # the end token is also the last one allowed
        (4, [1, 0, 2, 4], 4, "length"),
        (10, [3], 1, "eos"),
        (10, [1, 1], 2, None),
    ],
)
def test_ends_inside_an_accepted_run(limit: int, tokens: list[int], kept: int, reason: str | None) -> None:
    text = ending(limit=limit, end=frozenset({3}))
    assert text.feed(tokens) == kept
    assert (text.reason, text.count) == (reason, kept)


def test_the_end_token_is_no_text() -> None:
    text = ending(("a",), end=frozenset({0}))
    text.feed([1, 0])
    assert (text.text, text.reason) == ("b", "eos")


def test_cancelling_is_asked_once_per_round() -> None:
    asked = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) == 2

    engine = Engine(TabularModel.random(9, seed=1), tokenizer=LetterTokenizer())  # type: ignore[arg-type]
    result = engine.generate([0], max_new_tokens=50, cancelled=cancelled)
    assert (result.finish_reason, len(result.tokens), len(asked)) == ("cancelled", 2, 2)
    assert result.text == LetterTokenizer().decode(result.tokens)


def test_streaming_shows_exactly_the_text() -> None:
    """Random tokens in random rounds: pieces add up to the text, which is everything before the first stop string."""
    rng = random.Random(0)
    stopped = 0
    for _ in range(2000):
        stop = tuple("".join(rng.choice("abc ß") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(3)))
        tokens = [rng.randrange(10) for _ in range(rng.randrange(1, 25))]
        text = ending(stop)
        shown, at = "", 0
        while at < len(tokens) and text.reason is None:
            size = rng.randrange(1, 6)
            kept = text.feed(tokens[at : at + size])
            if text.reason == "stop":
                at += kept
                break
            at += size
            assert kept == min(size, len(tokens) - at + size)
            shown += text.new_text()
            assert text.text.startswith(shown)
        shown += text.new_text()
        full = whole(tokens[:at])
        if text.reason == "stop":
            stopped += 1
            assert shown == text.text
            assert not any(s in text.text for s in stop)
            assert any(full.startswith(text.text + s) for s in stop)
            assert not any(s in whole(tokens[: at - 1]) for s in stop)  # the token that completed it was the last
        else:
            assert text.text == full and not any(s in full for s in stop)
            held = len(full) - len(shown)
            assert held == max(
                (n for s, n in itertools.product(stop, range(1, 5)) if n < len(s) and full.endswith(s[:n])), default=0
            )
    assert 300 < stopped < 1900


class LetterTokenizer:
    """A tokenizer as the engine needs it, over `Letters`."""

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        return [Letters.PIECES.index(letter) for letter in text]

    def stream(self, context: Sequence[int] = (), special: bool = False) -> Letters:
        return Letters()

    def decode(self, tokens: Sequence[int]) -> str:
        letters = Letters()
        return "".join(map(letters.step, tokens))


@pytest.mark.parametrize(
    "method",
    [{"name": "autoregressive"}, {"name": "speculative", "gamma": 4}, {"name": "mcsd", "depth": "fixed"}],
    ids=lambda method: method["name"],
)
def test_methods_end_where_plain_decoding_ends(method: dict[str, Any]) -> None:
    """The draft is the target, so runs of five are accepted, and ends fall inside of them."""
    target = TabularModel.random(9, seed=1, sharpness=1.5)
    engine = Engine(
        target,
        [TabularModel.random(9, seed=1, sharpness=1.5)],
        LetterTokenizer(),  # type: ignore[arg-type]
        frozenset({8}),
    )
    reasons = set()
    cut = 0
    for seed in range(40):
        options = {"sampling": {"temperature": 0.9}, "stop": ["bab", "ca"], "max_new_tokens": 8, "seed": seed}
        plain = engine.generate("abc", {"name": "autoregressive", "verify": "coupled"}, **options)
        result = engine.generate("abc", {**method, "verify": "coupled"}, **options)
        assert (result.tokens, result.text, result.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
        events = list(engine.stream("abc", method={**method, "verify": "coupled"}, **options))
        assert "".join(event.text for event in events) == result.text
        assert [token for event in events for token in event.tokens] == result.tokens
        assert events[-1].result is not None and events[-1].result.tokens == result.tokens
        assert all(event.result is None for event in events[:-1])
        reasons.add(result.finish_reason)
        last = result.rounds[-1]
        cut += last.depth_accepted + 1 > len(last.tokens)
    assert reasons == {"eos", "stop", "length"}
    assert (cut > 5) == (method["name"] != "autoregressive")


def test_cancelling_a_request_and_closing_a_stream() -> None:
    engine = Engine(TabularModel.random(5, seed=1), [TabularModel.random(5, seed=2)])
    rounds = itertools.count(1)
    result = engine.generate([1], "speculative", max_new_tokens=50, cancelled=lambda: next(rounds) == 3)
    assert result.finish_reason == "cancelled" and result.metrics.rounds == 3
    stream = engine.stream([1], method="speculative", max_new_tokens=50)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    engine.stream([1], method="speculative")  # never started: holds nothing
    assert not any(lent(engine))
