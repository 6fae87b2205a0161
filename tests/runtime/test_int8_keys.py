"""Keys and values in int8: reused prefixes, preemption and cancellation change no text and leave nothing behind."""

from __future__ import annotations

import random
from typing import Any

import pytest
from every_method import settle, shortage

import draftwood
from draftwood import Engine
from draftwood.engine.loading import EMBEDDED

PROMPTS = [f"Story: Lena had {n} red kites. " * 4 for n in range(3, 9)]
METHODS: list[dict[str, Any]] = [
    {"name": "autoregressive", "verify": "coupled"},
    {"name": "speculative", "gamma": 4, "verify": "coupled"},
    {"name": "lookup", "verify": "coupled"},
]


def loaded(backend: str, **options: Any) -> Engine:
    return draftwood.load(EMBEDDED / "target", EMBEDDED / "draft", kv_dtype="int8", backend=backend, **options)


def text(result: Any) -> tuple[Any, ...]:
    return result.tokens, result.logprobs, result.top_logprobs


def requests() -> list[dict[str, Any]]:
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True, "top_logprobs": 2}
    return [{"prompt": prompt, "method": METHODS[i % 3], "seed": i, **options} for i, prompt in enumerate(PROMPTS)]


@pytest.mark.some(1)
@pytest.mark.parametrize("backend", ["auto", "pytorch"])
def test_preemption_and_known_prompts_change_no_bit(backend: str) -> None:
    engine = loaded(backend)
    plain = [text(engine.generate(**{**request, "method": METHODS[0]})) for request in requests()]
    engine.reset_prefix_cache()
    with shortage(0.1, random.Random(1), engine):
        assert [*map(text, engine.batch(requests(), concurrency=6))] == plain
    assert engine.scheduler.preempted > 3
    again = [engine.generate(**request) for request in requests()]
    assert [*map(text, again)] == plain
    assert sum(result.metrics.reused_tokens for result in again) > 60
    settle(engine)


def test_a_cancelled_request_leaves_nothing() -> None:
    engine = loaded("auto")
    for i, request in enumerate(requests()):
        rounds = iter(range(i))
        result = engine.generate(**request, cancelled=lambda left=rounds: next(left, None) is None)
        assert result.finish_reason == "cancelled"
    settle(engine)
