"""Random requests of every kind on tabular models: what must hold for each of them, alone and in a batch."""

import math
import random
from typing import Any

import pytest
from enumeration import slow_penalties, slow_warp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger import lent
from pytest import approx

from draftwood import Engine, GenerationResult, SamplingParams, TabularModel

LETTERS = "abcdef"
ALONE, BATCHES = (100, 700), (20, 130)  # examples by default and in slow tests; a batch has two to five requests


class LetterTokenizer:
    """Token i is the i-th letter."""

    def stream(self, context: object = (), special: bool = False) -> "LetterTokenizer":
        return self

    def step(self, token: int) -> str:
        return LETTERS[token]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(self.step, tokens))


def model(vocab: int, seed: int, zeros: float = 0.0, order: int | None = None, context: int = 4096) -> TabularModel:
    """A random model; each token is impossible with chance `zeros`, but never all of them."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        seen = prefix if order is None else prefix[max(0, len(prefix) - order) :]
        rng = random.Random(f"{seed}:{seen}")
        weights = [0.0 if rng.random() < zeros else rng.expovariate(1.0) for _ in range(vocab)]
        return weights if any(weights) else [1.0] * vocab

    return TabularModel(law, vocab, context)


WIDTHS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
VERIFY = st.sampled_from(["rejection", "coupled"])
DRAWN = st.sampled_from(["traversal", "rejection", "coupled"])
ONE_DRAFT = st.one_of(
    st.fixed_dictionaries({"name": st.just("autoregressive"), "verify": VERIFY}),
    st.fixed_dictionaries({"name": st.just("speculative"), "gamma": st.integers(0, 6), "verify": DRAWN}),
    st.fixed_dictionaries({"name": st.just("specinfer"), "expansion": WIDTHS, "verify": DRAWN}),
    st.fixed_dictionaries({"name": st.just("mcsd"), "tree": WIDTHS, "replacement": st.booleans(), "verify": DRAWN}),
    st.fixed_dictionaries(
        {"name": st.just("mcsd-fork"), "width": st.integers(1, 4), "gamma": st.integers(1, 4), "verify": DRAWN}
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("lookup"),
            "min_ngram": st.integers(1, 2),
            "verify": VERIFY,
            "gamma": st.integers(0, 6),  # sizes are named: depth=auto drafts by the load
        }
    ),
)
METHODS = {
    1: ONE_DRAFT,
    2: st.one_of(
        st.fixed_dictionaries({"name": st.just("specinfer"), "expansion": WIDTHS, "verify": DRAWN}),
        st.fixed_dictionaries({"name": st.just("lookup"), "verify": VERIFY, "gamma": st.just(4)}),
    ),
}
SAMPLINGS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.0, 0.3, 0.9, 2.0]),
        "top_k": st.integers(0, 6),
        "top_p": st.floats(0.1, 1.0),
        "min_p": st.floats(0.0, 0.6),
        "repetition_penalty": st.sampled_from([0.7, 1.2, 2.0]),
        "presence_penalty": st.sampled_from([-0.6, 0.5]),
        "frequency_penalty": st.sampled_from([-0.3, 0.4]),
        "logit_bias": st.dictionaries(st.integers(0, 1), st.sampled_from([-2.0, 0.7]), max_size=2),
    },
)


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Target, one or two drafts (their vocabulary may be padded differently), end tokens, tight contexts."""
    vocab = draw(st.integers(2, 5))
    seed = draw(st.integers(0, 10**6))
    context = draw(st.sampled_from([14, 4096]))
    target = model(vocab, seed, draw(st.sampled_from([0.0, 0.4])), draw(st.sampled_from([None, 1, 2])), context)
    drafts = []
    for i in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 0:
            drafts.append(target)  # always accepted
        else:
            padding = draw(st.sampled_from([0, 0, 0, -1, 1])) if vocab > 2 else 0
            zeros = 0.4 if padding == 0 and draw(st.booleans()) else 0.0
            drafts.append(model(vocab + padding, seed + 1 + i, zeros, None, draw(st.sampled_from([10, 4096]))))
    end = frozenset(draw(st.sets(st.integers(0, vocab - 1), max_size=1)))
    return Engine(target, drafts, LetterTokenizer(), end)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn, engine: Engine) -> dict[str, Any]:
    vocab = engine.target.vocab_size
    return {
        "prompt": draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=12)),
        "method": draw(METHODS[len(engine.drafts)]),
        "sampling": draw(SAMPLINGS),
        "max_new_tokens": draw(st.integers(1, 14)),
        "seed": draw(st.integers(-(2**70), 2**70)),
        "stop": draw(st.lists(st.text(LETTERS[:vocab], min_size=1, max_size=3), max_size=2)),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "top_logprobs": draw(st.sampled_from([0, 2])),
    }


def log(chance: float) -> float:
    return math.log(chance) if chance else -math.inf


def are_the_best_two(told: list[tuple[int, float]], chances: list[float], close: float) -> bool:
    """Whether these are the two most probable tokens (of equals any), impossible ones left out."""
    best = [value for value in sorted(map(log, chances), reverse=True)[:2] if value > -math.inf]
    return (
        [value for _, value in told] == approx(best, abs=close)
        and [log(chances[token]) for token, _ in told] == approx(best, abs=close)
        and len({token for token, _ in told}) == len(told)
    )


def check(engine: Engine, request: dict[str, Any], result: GenerationResult) -> None:
    """Everything that holds for any request by itself."""
    prompt, tokens = request["prompt"], result.tokens
    limit = min(request["max_new_tokens"], engine.target.context - len(prompt))
    end = frozenset() if request["ignore_eos"] else engine.end_tokens
    text = "".join(LETTERS[token] for token in tokens)

    # where it ends
    assert 1 <= len(tokens) <= limit
    assert not end & set(tokens[:-1])
    ended = tokens[-1] in end
    stopped = not ended and any(stop in text for stop in request["stop"])
    assert result.finish_reason == ("eos" if ended else "stop" if stopped else "length")
    if result.finish_reason == "length":
        assert len(tokens) == limit
    if stopped:
        assert not any(stop in text[:-1] for stop in request["stop"])
        assert result.text == text[: min(text.find(stop) for stop in request["stop"] if stop in text)]
    else:
        assert result.text == (text[:-1] if ended else text)

    # what is told about each token
    params = SamplingParams(**request["sampling"])
    assert len(result.logprobs) == len(result.warped_logprobs) == len(result.kinds) == len(tokens)
    assert (
        len(result.top_logprobs) == len(result.warped_top_logprobs) == (len(tokens) if request["top_logprobs"] else 0)
    )
    assert isinstance(engine.target, TabularModel)
    for i, token in enumerate(tokens):
        law = engine.target.law((*prompt, *tokens[:i]))
        assert result.logprobs[i] == approx(math.log(law[token] / math.fsum(law)), abs=1e-9)
        logits = [math.log(weight) if weight else -math.inf for weight in law]
        warped = slow_warp(slow_penalties(logits, prompt, tokens[:i], params), params)
        assert warped[token] > 0
        assert result.warped_logprobs[i] == approx(math.log(warped[token]), abs=1e-5)
        if request["top_logprobs"]:
            chances = [weight / math.fsum(law) for weight in law]
            assert are_the_best_two(result.top_logprobs[i], chances, 1e-9)
            assert are_the_best_two(result.warped_top_logprobs[i], warped, 1e-5)

    # rounds and sums
    rounds, metrics = result.rounds, result.metrics
    assert [token for round_ in rounds for token in round_.tokens] == tokens
    assert metrics.rounds == len(rounds) and metrics.emitted == len(tokens)
    done = 0
    for round_ in rounds:
        assert round_.position == len(prompt) - 1 + done
        assert 0 <= round_.depth_accepted <= limit - done - 1  # nothing is drafted that could not be emitted
        assert round_.attempted - round_.depth_accepted in (0, 1)
        assert round_.depth_accepted <= round_.drafted <= round_.draws or round_.drafted == round_.draws == 0
        assert round_.accepted == min(round_.depth_accepted, len(round_.tokens))
        last = round_ is rounds[-1]
        assert len(round_.tokens) == round_.depth_accepted + 1 or (last and len(round_.tokens) <= round_.depth_accepted)
        assert len(round_.forest_token) == len(round_.forest_parent) == 1 + round_.drafted
        done += len(round_.tokens)
    assert metrics.accepted == sum(round_.accepted for round_ in rounds) == result.kinds.count("accepted")
    assert metrics.drafted == sum(round_.drafted for round_ in rounds)
    assert metrics.emitted == metrics.accepted + sum(len(round_.tokens) > round_.accepted for round_ in rounds)
    assert metrics.target_rows == len(prompt) - 1 + metrics.rounds + metrics.drafted
    assert sum(metrics.accepted_at) == metrics.depth_accepted and sum(metrics.attempted_at) == metrics.attempted
    assert metrics.peak_slots <= len(prompt) + len(tokens) + max(round_.drafted for round_ in rounds)
    assert result.lossless


def deterministic(request: dict[str, Any]) -> bool:
    """Whether the method promises the text of plain decoding itself, not only its law."""
    return request["sampling"].get("temperature") == 0 or request["method"]["verify"] == "coupled"


def examples(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


@examples(ALONE[0])
@given(st.data())
def test_a_request_alone(data: st.DataObject) -> None:
    alone(data)


@pytest.mark.slow
@examples(ALONE[1])
@given(st.data())
def test_many_requests_alone(data: st.DataObject) -> None:
    alone(data)


@examples(BATCHES[0])
@given(st.data())
def test_requests_in_a_batch(data: st.DataObject) -> None:
    together(data)


@pytest.mark.slow
@examples(BATCHES[1])
@given(st.data())
def test_requests_in_many_batches(data: st.DataObject) -> None:
    together(data)


def alone(data: st.DataObject) -> None:
    engine = data.draw(engines())
    request = data.draw(requests(engine))
    result = engine.generate(**request)
    check(engine, request, result)
    assert engine.generate(**request).tokens == result.tokens
    if deterministic(request):
        verify = "coupled" if request["method"]["verify"] == "coupled" else "rejection"
        plain = engine.generate(**{**request, "method": {"name": "autoregressive", "verify": verify}})
        assert plain.tokens == result.tokens
        assert plain.finish_reason == result.finish_reason
    assert not any(lent(engine))


def together(data: st.DataObject) -> None:
    """Each request of a batch is what it is alone, whatever the others are and however many run at once."""
    engine = data.draw(engines())
    batch = data.draw(st.lists(requests(engine), min_size=2, max_size=5))
    results = engine.batch(batch, concurrency=data.draw(st.integers(1, 5)))
    assert len(results) == len(batch)
    for request, result in zip(batch, results, strict=True):
        check(engine, request, result)
        single = engine.generate(**request)
        assert (result.tokens, result.kinds, result.text) == (single.tokens, single.kinds, single.text)
        assert result.logprobs == single.logprobs and result.seed == request["seed"]
    assert not any(lent(engine))
