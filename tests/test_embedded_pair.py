"""The shipped pair, end to end: what README promises holds on held-out prompts of every domain."""

from itertools import islice

import pytest

import draftwood
from draftwood import Engine
from draftwood.corpus import DOMAINS, documents

METHODS = {
    "chain": {"name": "speculative", "gamma": 4},
    "expansion": {"name": "specinfer", "expansion": [2, 2, 1]},
    "k-configuration": {"name": "mcsd", "tree": [4, 2, 2, 1]},
    "with replacement": {"name": "mcsd", "tree": [3, 2, 1], "replacement": True},
    "lookup": {"name": "lookup"},
}
PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=5), 3)]
some_and_all = pytest.mark.parametrize(
    "prompts", [PROMPTS[::3], pytest.param(PROMPTS, marks=pytest.mark.slow)], ids=["a prompt of each domain", "all"]
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return draftwood.load()


@pytest.fixture(scope="module")
def exact_engine() -> Engine:
    """float64: no two different sums of the same numbers come near a tie."""
    return draftwood.load(dtype="float64")


@some_and_all
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_greedy_text_is_that_of_plain_decoding(
    exact_engine: Engine, method: dict[str, object], prompts: list[str]
) -> None:
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 48}
    for prompt in prompts:
        plain = exact_engine.generate(prompt, "autoregressive", **options)
        assert exact_engine.generate(prompt, method, **options).tokens == plain.tokens


@some_and_all
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_greedy_text_in_float32_differs_at_ties_only(
    engine: Engine, method: dict[str, object], prompts: list[str]
) -> None:
    """Where float32 texts part, the two tokens' log-probabilities are equal up to rounding."""
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 48, "top_logprobs": 2}
    for prompt in prompts:
        plain = engine.generate(prompt, "autoregressive", **options)
        other = engine.generate(prompt, method, **options)
        for place, (a, b) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
            if a != b:
                (_, first), (_, second) = plain.top_logprobs[place]
                assert first - second < 1e-4
                break
        else:
            assert len(plain.tokens) == len(other.tokens)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_coupled_sampling_gives_the_text_of_plain_coupled_decoding(
    exact_engine: Engine, method: dict[str, object]
) -> None:
    for seed, prompt in enumerate(PROMPTS[::3]):
        options = {"sampling": {"temperature": 0.9, "top_p": 0.95}, "max_new_tokens": 40, "seed": seed}
        plain = exact_engine.generate(prompt, {"name": "autoregressive", "verify": "coupled"}, **options)
        drafted = exact_engine.generate(prompt, {**method, "verify": "coupled"}, **options)
        assert drafted.tokens == plain.tokens


@some_and_all
def test_chain_tree_and_lookup_emit_more_than_a_token_per_target_forward(engine: Engine, prompts: list[str]) -> None:
    for method in METHODS.values():
        sums = draftwood.Metrics()
        for prompt in prompts:
            for round_ in engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=48).rounds:
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
