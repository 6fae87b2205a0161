"""Random requests of every method with beams on tabular models: what must hold for each of them, alone and in a batch.

Deterministic beams are compared with the naive search of beam_reference.py, token for token.
"""

import math
from typing import Any

import pytest
from beam_reference import BeamLaw, beam_search, log_softmax
from hypothesis import given
from hypothesis import strategies as st
from ledger import lent
from pytest import approx
from test_random_requests import LETTERS, engines, examples
from test_random_requests import requests as plain_requests

from draftwood import Engine, GenerationResult, SamplingParams, TabularModel

ALONE, BATCHES = (80, 350), (15, 60)  # examples by default and in slow tests

ANSWERS = {"n_best": st.integers(1, 4), "length_penalty": st.sampled_from([0.0, 1.0, 1.0, -0.5, 2.0])}
SAMPLED = {
    **ANSWERS,
    "width": st.integers(1, 4),
    "warp": st.sampled_from(["joint", "token"]),
    "replacement": st.booleans(),
}
DRAFTED = {"gamma": st.integers(0, 4), "draft_width": st.integers(1, 6)}
SEARCHED = {**ANSWERS, "width": st.integers(1, 4), "early_stopping": st.sampled_from([False, True, "never"])}
BEAM_METHODS = st.one_of(
    st.fixed_dictionaries({"name": st.just("beam-sampling"), **SAMPLED}),
    st.fixed_dictionaries(
        {
            "name": st.just("dsbd"),
            **SAMPLED,
            **DRAFTED,
            "width": st.sampled_from([None, None, 1, 2, 3]),
            "threshold": st.sampled_from([0.0, 0.3, 0.7, 0.9, 1.0]),
            "min_width": st.integers(1, 3),
            "root_weights": st.sampled_from(["draft", "target"]),
            "one_cache": st.sampled_from([False, False, True]),
        }
    ),
    st.fixed_dictionaries({"name": st.just("beam-search"), **SEARCHED}),
    st.fixed_dictionaries({"name": st.just("speculative-beam-search"), **SEARCHED, **DRAFTED}),
)


@st.composite
def beam_requests(draw: st.DrawFn, engine: Engine) -> dict[str, Any]:
    """A request with a method that fits the engine's first draft model, its numbers put in order."""
    method = draw(BEAM_METHODS)
    if "draft_width" in method:
        least = method["width"] or method["min_width"]
        method["draft_width"] = max(method["draft_width"], least)
    method["n_best"] = min(method["n_best"], method["width"] or method["draft_width"])
    request = {**draw(plain_requests(engine)), "method": method}
    if "search" in method["name"]:
        request["sampling"] = {
            key: value
            for key, value in request["sampling"].items()
            if key not in ("temperature", "top_k", "top_p", "min_p")
        }
    return request


def one_draft(engine: Engine) -> Engine:
    return Engine(engine.target, engine.drafts[:1], engine.tokenizer, engine.end_tokens)


def limit_of(engine: Engine, request: dict[str, Any]) -> int:
    return int(min(request["max_new_tokens"], engine.target.context - len(request["prompt"])))


def ends_of(engine: Engine, request: dict[str, Any]) -> frozenset[int]:
    return frozenset() if request["ignore_eos"] else engine.end_tokens


def is_over(tokens: tuple[int, ...], end: frozenset[int], stops: list[str]) -> bool:
    """Whether a hypothesis has ended, by the end token or by a stop string that its last letter completes."""
    text = "".join(LETTERS[token] for token in tokens)
    return tokens[-1] in end or any(text.endswith(stop) for stop in stops)


def check(engine: Engine, request: dict[str, Any], result: GenerationResult) -> None:
    """Everything that holds for any request with beams by itself."""
    assert isinstance(engine.target, TabularModel)
    method, stops, end = request["method"], request["stop"], ends_of(engine, request)
    limit = limit_of(engine, request)
    params = SamplingParams(**request["sampling"])
    law = BeamLaw(engine.target, request["prompt"], params, end, method.get("warp", "joint"))

    # the best is the answer
    best = result.beams[0]
    assert (result.tokens, result.text, result.finish_reason) == (best.tokens, best.text, best.finish_reason)
    assert result.logprobs == best.logprobs
    assert len(result.kinds) == len(result.warped_logprobs) == len(result.tokens)
    assert [token for round_ in result.rounds for token in round_.tokens] == result.tokens
    assert [value for round_ in result.rounds for value in round_.logprobs] == result.logprobs
    told = len(result.tokens) if request["top_logprobs"] else 0
    assert len(result.top_logprobs) == len(result.warped_top_logprobs) == told
    assert result.lossless == (not method.get("one_cache"))

    # the list of beams
    assert 1 <= len(result.beams) <= method["n_best"]
    assert len({tuple(beam.tokens) for beam in result.beams}) == len(result.beams)
    scores = [beam.score for beam in result.beams]
    assert scores == sorted(scores, reverse=True)
    for beam in result.beams:
        tokens = tuple(beam.tokens)
        assert 1 <= len(tokens) <= limit
        assert not any(is_over(tokens[:i], end, stops) for i in range(1, len(tokens)))
        text = "".join(LETTERS[token] for token in tokens)
        if tokens[-1] in end:
            assert (beam.finish_reason, beam.text) == ("eos", text[:-1])
        elif is_over(tokens, end, stops):
            places = [text.find(stop) for stop in stops if stop in text]
            assert (beam.finish_reason, beam.text) == ("stop", text[: min(places)])
        else:
            assert (beam.finish_reason, beam.text, len(tokens)) == ("length", text, limit)
        assert beam.log_likelihood == approx(law.score(tokens), abs=1e-5)
        assert beam.score == approx(beam.log_likelihood / len(tokens) ** method["length_penalty"], abs=1e-9)
        assert beam.perplexity == approx(math.exp(-beam.log_likelihood / len(tokens)))
        raw = [
            log_softmax([math.log(w) if w else -math.inf for w in _law(engine, request, tokens[:i])])[token]
            for i, token in enumerate(tokens)
        ]
        assert beam.logprobs == approx(raw, abs=1e-9)

    # rounds
    positions = [round_.position for round_ in result.rounds]
    assert positions == sorted(set(positions)) and positions[0] == len(request["prompt"]) - 1
    assert positions[-1] <= len(request["prompt"]) - 1 + limit - 1
    for round_ in result.rounds:
        assert len(round_.layers) == round_.depth_accepted + (not round_.layers[-1].stands)
        assert round_.attempted - round_.depth_accepted in (0, 1)
        for layer in round_.layers:
            if "search" not in method["name"]:
                assert layer.width == len(layer.beams) and layer.accepted <= layer.width
            if method.get("width"):
                assert len(layer.distinct) <= method["width"]
            elif method["name"] == "dsbd":
                assert layer.width <= max(method["draft_width"], method["min_width"])
    assert result.metrics.accepted == result.kinds.count("accepted")
    assert result.metrics.emitted == len(result.tokens)


def _law(engine: Engine, request: dict[str, Any], tokens: tuple[int, ...]) -> Any:
    assert isinstance(engine.target, TabularModel)
    return engine.target.law((*request["prompt"], *tokens))


def check_search(engine: Engine, request: dict[str, Any], result: GenerationResult) -> None:
    """The naive search finds the same hypotheses with the same scores; the drafted one repeats the plain one."""
    assert isinstance(engine.target, TabularModel)
    method, end = request["method"], ends_of(engine, request)
    params = SamplingParams(**request["sampling"])
    wanted, clear = beam_search(
        engine.target,
        request["prompt"],
        method["width"],
        limit_of(engine, request),
        lambda output: is_over(output, end, request["stop"]),
        method["length_penalty"],
        method["early_stopping"],
        params,
    )
    wanted = wanted[: method["n_best"]]
    close = 1e-5 if params.edits_logits else 1e-9  # penalties count in float32
    if clear:  # ties in real numbers go by rounding
        assert [tuple(beam.tokens) for beam in result.beams] == [tokens for tokens, _, _ in wanted]
        assert [beam.score for beam in result.beams] == approx([score for _, _, score in wanted], abs=close)
    if method["name"] == "speculative-beam-search":
        plain = {key: value for key, value in method.items() if key not in ("gamma", "draft_width")}
        same = engine.generate(**{**request, "method": {**plain, "name": "beam-search"}})
        assert [beam.tokens for beam in result.beams] == [beam.tokens for beam in same.beams]
        assert [beam.score for beam in result.beams] == approx([beam.score for beam in same.beams], abs=1e-9)
        assert (result.text, result.finish_reason) == (same.text, same.finish_reason)
        assert result.metrics.rounds <= same.metrics.rounds


@examples(ALONE[0])
@given(st.data())
def test_a_request_with_beams_alone(data: st.DataObject) -> None:
    alone(data)


@pytest.mark.slow
@examples(ALONE[1])
@given(st.data())
def test_many_requests_with_beams_alone(data: st.DataObject) -> None:
    alone(data)


@examples(BATCHES[0])
@given(st.data())
def test_mixed_requests_in_a_batch(data: st.DataObject) -> None:
    mixed(data)


@pytest.mark.slow
@examples(BATCHES[1])
@given(st.data())
def test_mixed_requests_in_many_batches(data: st.DataObject) -> None:
    mixed(data)


def alone(data: st.DataObject) -> None:
    engine = one_draft(data.draw(engines()))
    request = data.draw(beam_requests(engine))
    result = engine.generate(**request)
    check(engine, request, result)
    if "search" in request["method"]["name"]:
        check_search(engine, request, result)
    events = list(engine.stream(**request))
    assert "".join(event.text for event in events) == result.text
    assert [token for event in events for token in event.tokens] == result.tokens
    assert events[-1].result is not None
    assert [beam.tokens for beam in events[-1].result.beams] == [beam.tokens for beam in result.beams]
    assert not any(lent(engine))


def mixed(data: st.DataObject) -> None:
    """With and without beams, at once: each is what it is alone."""
    engine = one_draft(data.draw(engines()))
    batch = data.draw(st.lists(st.one_of(beam_requests(engine), plain_requests(engine)), min_size=2, max_size=5))
    results = engine.batch(batch, concurrency=data.draw(st.integers(1, 5)))
    for request, result in zip(batch, results, strict=True):
        single = engine.generate(**request)
        assert (result.tokens, result.kinds, result.text) == (single.tokens, single.kinds, single.text)
        assert result.logprobs == single.logprobs and result.finish_reason == single.finish_reason
        assert [(beam.tokens, beam.text, beam.score) for beam in result.beams] == [
            (beam.tokens, beam.text, beam.score) for beam in single.beams
        ]
    assert not any(lent(engine))
