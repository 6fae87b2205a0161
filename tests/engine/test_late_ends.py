"""Texts that may not end too early, and other end tokens: the law is that of masked plain decoding, by enumeration."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tiny_models
from beam_reference import BeamLaw
from enumeration import EnumeratedRandomness
from tabular import exact_law, total_variation

from draftwood import Engine, RequestError, SamplingParams, TabularModel, load
from draftwood.engine.stopping import Ending

PROMPT, LEAST, LENGTH = [1, 1], 2, 3
TARGET, DRAFT = TabularModel.random(3, seed=5), TabularModel.random(3, seed=6)


def masked(ends: frozenset[int]) -> TabularModel:
    """The target whose first `LEAST` tokens are no end tokens."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        early = len(prefix) < len(PROMPT) + LEAST
        return [0.0 if early and token in ends else p for token, p in enumerate(TARGET.law(prefix))]

    return TabularModel(law, 3)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "autoregressive"},
        {"name": "speculative", "gamma": 2},
        {"name": "mcsd", "tree": [2]},
        {"name": "mcsd", "tree": [2], "replacement": True},
        {"name": "lookup", "min_ngram": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("extra", [(), (2,)], ids=["eos", "eos and a stop token"])
def test_sequences(method: dict[str, Any], extra: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ends = Engine(TARGET, [DRAFT], end_tokens=frozenset({0})), frozenset({0, *extra})
    limits: dict[str, Any] = {"min_new_tokens": LEAST, "stop_token_ids": extra}
    law = EnumeratedRandomness(monkeypatch).law_of_texts(engine, PROMPT, method, LENGTH, **limits)
    wanted = exact_law(masked(ends), PROMPT, SamplingParams(), LENGTH, ends)
    assert law.keys() == wanted.keys()
    assert total_variation(law, wanted) < 1e-12


@pytest.mark.parametrize("replacement", [True, False])
def test_beams(replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ends = Engine(TARGET, [DRAFT], end_tokens=frozenset({0})), frozenset({0})
    method = {"name": "dsbd", "width": 1, "draft_width": 2, "gamma": 1, "replacement": replacement}

    def beams() -> tuple[tuple[int, ...], ...]:
        result = engine.generate(PROMPT, method, min_new_tokens=LEAST, max_new_tokens=LENGTH)
        return tuple(sorted(tuple(beam.tokens) for beam in result.beams))

    law = EnumeratedRandomness(monkeypatch).law_of(beams)
    wanted = BeamLaw(masked(ends), PROMPT, SamplingParams(), ends, "joint").law(1, replacement, LENGTH)
    assert total_variation(law, wanted) < 1e-12


@pytest.mark.parametrize("name", ["autoregressive", "speculative", "mcsd", "beam-search", "speculative-beam-search"])
def test_stop_strings_count_behind_the_first_tokens(name: str, pair: list[str]) -> None:
    engine = load(pair[1], pair[3])
    options: dict[str, Any] = {"sampling": {"temperature": 1.0 if "beam" in name else 0.0}, "max_new_tokens": 30}
    text = engine.generate("ab", name, **options, ignore_eos=True).text
    stop = text[2]
    least = text.rindex(stop, 0, 12) + 1  # the last one of the first tokens: a token is a byte
    result = engine.generate("ab", name, **options, stop=stop, min_new_tokens=least, ignore_eos=True)
    assert len(result.tokens) > least
    assert stop not in result.text[least:]
    if "beam" not in name:
        after = text.find(stop, least)
        assert result.text == (text if after < 0 else text[:after])


def test_endings_look_behind_the_first_tokens_only() -> None:
    class Letters:
        def step(self, token: int) -> str:
            return chr(token)

    ending = Ending(20, frozenset(), ("ab",), Letters(), min_new_tokens=3)
    assert ending.feed([ord(c) for c in "abxab"]) == 5
    assert (ending.text, ending.reason) == ("abx", "stop")
    streamed = Ending(20, frozenset(), ("ab",), Letters(), min_new_tokens=1)
    streamed.feed([ord("a")])
    assert streamed.new_text() == "a"  # it cannot be the beginning of a stop string


def test_nonsense_is_refused() -> None:
    engine = Engine(TARGET, end_tokens=frozenset({0}))
    for options, told in (
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens is 5, but max_new_tokens only 4"),
        ({"min_new_tokens": 1, "stop_token_ids": [1, 2]}, "forbids every token"),
        ({"stop_token_ids": [3]}, "the target's ids go from 0 to 2"),
        ({"stop_token_ids": 3}, "must be a list"),
    ):
        with pytest.raises(RequestError, match=re.escape(told)):
            engine.generate(PROMPT, **options)  # type: ignore[arg-type]


def test_scores_are_those_of_a_generation(target: Any) -> None:
    engine = load(target, max_running=2)
    made = engine.generate("Story: once", max_new_tokens=40, top_logprobs=3, seed=3)
    whole = engine.score([*made.prompt_tokens, *made.tokens], top_logprobs=3)
    first = len(made.prompt_tokens)
    assert whole.logprobs[0] is None
    assert whole.logprobs[first:] == pytest.approx(made.logprobs, abs=1e-5)
    assert [[token for token, _ in top] for top in whole.top_logprobs[first:]] == [
        [token for token, _ in top] for top in made.top_logprobs
    ]
    part = engine.score(whole.tokens, 3, first=first)
    assert part.logprobs[:first] == [None] * first
    assert part.logprobs[first:] == pytest.approx(whole.logprobs[first:], abs=1e-5)
    assert part.top_logprobs[:first] == [[]] * first and len(part.top_logprobs) == len(whole.tokens)
    assert engine.score([65]).logprobs == [None]
    assert engine.score([65, 66], first=9).logprobs == [None, None]
    assert not engine.scheduler.busy
    assert first + len(made.tokens) < tiny_models.CONTEXT


def test_a_text_may_fill_the_context(target: Any) -> None:
    """Its last token is predicted and not read, so there may be one more than the context holds."""
    engine, text = load(target), [65 + i % 26 for i in range(tiny_models.CONTEXT + 2)]
    assert None not in engine.score(text[:-1]).logprobs[1:]
    with pytest.raises(RequestError, match=f"context holds {tiny_models.CONTEXT}"):
        engine.score(text)


def test_scores_in_pieces(monkeypatch: pytest.MonkeyPatch, target: Any) -> None:
    engine = load(target, reuse_prefixes=False)
    whole = engine.score("a longer text than a piece", 2)
    monkeypatch.setattr("draftwood.engine.scoring.PIECE", 7)
    parts = engine.score("a longer text than a piece", 2)
    assert parts.logprobs[1:] == pytest.approx(whole.logprobs[1:], abs=1e-5)
    assert len(parts.top_logprobs) == len(parts.tokens) == len(parts.logprobs)
