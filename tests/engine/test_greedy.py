"""Greedy decoding on real (small, random) decoders: token for token what a loop without any cache gives."""

import itertools
from typing import Any

import pytest
from greedy_reference import DTYPES, NEW, models, naive, prompt_of
from small_decoder import LAYERS

from draftwood import Engine

METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "autoregressive": ({"name": "autoregressive"}, 0),
    "speculative": ({"name": "speculative", "gamma": 5}, 1),
    "specinfer": ({"name": "specinfer", "expansion": [3, 2, 1, 1]}, 1),
    "specinfer-2": ({"name": "specinfer", "expansion": [2, 2, 1]}, 2),
    "mcsd-distinct": ({"name": "mcsd", "tree": [4, 2, 2, 1], "replacement": False}, 1),
    "mcsd-iid": ({"name": "mcsd", "tree": [4, 2, 2, 1], "replacement": True}, 1),
    "mcsd-fork": ({"name": "mcsd-fork", "width": 4, "gamma": 3}, 1),
    "lookup": ({"name": "lookup", "depth": "fixed"}, 0),
}
LOSSY: dict[str, dict[str, Any]] = {  # where tokens are drawn
    "mcsd-initial": {"name": "mcsd", "initial": 3, "tree": [4, 2, 1]},
    "mcsd-fork-longest": {"name": "mcsd-fork", "verify": "longest-root", "depth": "fixed"},
}
EVERYDAY = {(name, "rejection", "float32") for name in METHODS}
EVERYDAY |= {(name, "coupled", "float64") for name in ("speculative", "specinfer-2", "mcsd-distinct")}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "verify", "dtype"),
    [
        pytest.param(*each, marks=() if each in EVERYDAY else pytest.mark.slow)
        for each in itertools.product(METHODS, ("rejection", "coupled"), DTYPES)
    ],
)
def test_greedy_equals_a_loop_without_a_cache(name: str, verify: str, dtype: str) -> None:
    """One token, a few and 300 tokens of prompt: extents grow, and prefixes are taken again."""
    method, drafts = METHODS[name]
    target, *others = models(dtype)
    engine = Engine(target, others[:drafts])
    options = {"method": {**method, "verify": verify}, "sampling": {"temperature": 0}, "max_new_tokens": NEW}
    prompts = [prompt_of(length) for length in (1, 7, 300)]
    results = [engine.generate(prompt, **options) for prompt in prompts]
    assert [result.tokens for result in results] == [naive(dtype, prompt) for prompt in prompts]
    together = engine.batch(prompts, concurrency=3, **options)
    assert [result.tokens for result in together] == [result.tokens for result in results]
    if name != "autoregressive":
        assert sum(result.metrics.accepted for result in results) > 10
        assert sum(result.metrics.rounds for result in results) < 3 * NEW - 8


@pytest.mark.parametrize("name", LOSSY)
def test_greedy_text_is_the_same_of_lossy_methods_too(name: str) -> None:
    """At temperature 0 all of the target's draws are its best token, so there is nothing to choose between."""
    target, draft, _ = models("float32")
    engine = Engine(target, [draft])
    options: dict[str, Any] = {"method": LOSSY[name], "sampling": {"temperature": 0}, "max_new_tokens": NEW}
    results = [engine.generate(prompt_of(length), **options) for length in (1, 7, 240)]
    assert [result.tokens for result in results] == [naive("float32", prompt_of(length)) for length in (1, 7, 240)]
    assert sum(result.metrics.accepted for result in results) > 10


@pytest.mark.some(2)
@pytest.mark.parametrize("name", METHODS)
def test_sampled_text_does_not_depend_on_the_batch(name: str) -> None:
    """The same seed gives the same text alone and beside others, rejection and coupled, on float64 weights."""
    method, drafts = METHODS[name]
    target, *others = models("float64")
    engine = Engine(target, others[:drafts])
    batch = [
        {"prompt": prompt_of(5 + 60 * i), "seed": i, "method": {**method, "verify": ("rejection", "coupled")[i % 2]}}
        for i in range(5)
    ]
    alone = [engine.generate(**request, max_new_tokens=16).tokens for request in batch]  # type: ignore[arg-type]
    together = engine.batch(batch, concurrency=4, max_new_tokens=16)
    assert [result.tokens for result in together] == alone
    assert target.n_layers == LAYERS
