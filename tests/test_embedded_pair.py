"""The shipped pair, end to end: what README promises holds on held-out prompts of every domain."""

from functools import cache
from itertools import islice
from typing import Any

import pytest

import draftwood
from draftwood import Engine, GenerationResult
from draftwood.corpus import DOMAINS, documents

METHODS = {
    "chain": {"name": "speculative", "gamma": 4},
    "expansion": {"name": "specinfer", "expansion": [2, 2, 1]},
    "k-configuration": {"name": "mcsd", "tree": [4, 2, 2, 1]},
    "with replacement": {"name": "mcsd", "tree": [3, 2, 1], "replacement": True},
    "lookup": {"name": "lookup"},
}
PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=5), 3)]


def rotated(place: int) -> tuple[int, int]:
    """Two domains for a method, so that every domain meets some method."""
    return place % len(DOMAINS), (place + 3) % len(DOMAINS)


ROTATED = [(method, [PROMPTS[3 * place] for place in rotated(i)]) for i, method in enumerate(METHODS)]
some_and_all = pytest.mark.parametrize(
    ("method", "prompts"),
    [
        *(pytest.param(*each, id=f"{each[0]}-prompts of two domains") for each in ROTATED),
        *(pytest.param(method, PROMPTS, marks=pytest.mark.slow, id=f"{method}-all") for method in METHODS),
    ],
)


@cache
def load(dtype: str) -> Engine:
    """In float64 no two different sums of the same numbers come near a tie."""
    return draftwood.load(dtype=dtype)


@pytest.fixture
def engine() -> Engine:
    return load("float32")


@pytest.fixture
def exact_engine() -> Engine:
    return load("float64")


@cache
def greedy(dtype: str, method: str, prompt: str) -> GenerationResult:
    """The greedy text of a method, made once for all tests."""
    spec: Any = METHODS.get(method, method)
    return load(dtype).generate(prompt, spec, {"temperature": 0}, max_new_tokens=24, top_logprobs=2)


@pytest.mark.some(2)
@some_and_all
def test_greedy_text_is_that_of_plain_decoding(method: str, prompts: list[str]) -> None:
    for prompt in prompts:
        plain = greedy("float64", "autoregressive", prompt)
        assert greedy("float64", method, prompt).tokens == plain.tokens


@some_and_all
def test_greedy_text_in_float32_differs_at_ties_only(method: str, prompts: list[str]) -> None:
    """Where float32 texts part, the two tokens' log-probabilities are equal up to rounding."""
    for prompt in prompts:
        plain, other = (greedy("float32", name, prompt) for name in ("autoregressive", method))
        for place, (a, b) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
            if a != b:
                (_, first), (_, second) = plain.top_logprobs[place]
                assert first - second < 1e-4
                break
        else:
            assert len(plain.tokens) == len(other.tokens)


@cache
def coupled(method: str, seed: int) -> GenerationResult:
    """A method's text with the noise of plain decoding, made once for all tests."""
    spec: Any = {**METHODS.get(method, {"name": method}), "verify": "coupled"}
    options: Any = {"sampling": {"temperature": 0.9, "top_p": 0.95}, "max_new_tokens": 24, "seed": seed}
    return load("float64").generate(PROMPTS[3 * seed], spec, **options)


@pytest.mark.some(2)
@pytest.mark.parametrize(("place", "method"), [*enumerate(METHODS)])
def test_coupled_sampling_gives_the_text_of_plain_coupled_decoding(place: int, method: str) -> None:
    for seed in rotated(place):
        assert coupled(method, seed).tokens == coupled("autoregressive", seed).tokens


@pytest.mark.parametrize("prompts", [PROMPTS[::3], pytest.param(PROMPTS, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("method", METHODS)
def test_drafting_emits_more_than_a_token_per_target_forward(method: str, prompts: list[str]) -> None:
    sums = draftwood.Metrics()
    for prompt in prompts:
        for round_ in greedy("float32", method, prompt).rounds:
            sums.add(round_)
    assert sums.tau > 1.1


def test_a_batch_of_mixed_methods_gives_what_each_request_gets_alone(exact_engine: Engine) -> None:
    requests = [
        {"prompt": prompt, "method": method, "seed": seed, "max_new_tokens": 24 + seed}
        for seed, (prompt, method) in enumerate(zip(PROMPTS, [*METHODS.values(), "autoregressive"], strict=False))
    ]
    together = exact_engine.batch(requests, concurrency=4)
    for request, result in zip(requests, together, strict=True):
        assert result.tokens == exact_engine.generate(**request).tokens


def test_streamed_pieces_join_to_the_text_and_end_with_the_result(engine: Engine) -> None:
    events = list(engine.stream(PROMPTS[0], max_new_tokens=40, seed=3))
    assert events[-1].result is not None
    assert "".join(event.text for event in events) == events[-1].result.text
    assert events[-1].result.tokens == engine.generate(PROMPTS[0], max_new_tokens=40, seed=3).tokens


def test_a_stop_string_inside_a_token_cuts_the_text(engine: Engine) -> None:
    whole = engine.generate(PROMPTS[0], sampling={"temperature": 0}, max_new_tokens=40).text
    stop = whole[10:14]
    cut = engine.generate(PROMPTS[0], sampling={"temperature": 0}, max_new_tokens=40, stop=stop)
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.find(stop)]
