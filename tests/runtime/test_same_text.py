"""A request's text is the same alone, in any batch, in any order, after it was put back, and with prefixes reused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from every_method import CHAINS, FAMILIES, SAMPLINGS, SLOT, engine, settle, shortage
from small_decoder import VOCAB

from draftwood import GenerationResult
from draftwood.models.cache import Cache

RNG = random.Random(5)
COMMON = [RNG.randrange(VOCAB) for _ in range(40)]


def entries(count: int, seed: int) -> list[dict[str, Any]]:
    """Requests of all families; some begin alike."""
    rng = random.Random(seed)
    names = list(FAMILIES)
    made = []
    for i in range(count):
        name = names[i % len(names)]
        own = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 5, 30]))]
        prompt = [*COMMON[: rng.choice([0, 20, 40])], *own]
        sampling = {"temperature": 1.0} if name == "search" else SAMPLINGS[(i // len(names) + i) % 3]
        made.append({"prompt": prompt, "method": FAMILIES[name], "sampling": sampling, "seed": i, "max_new_tokens": 12})
    return made


def same(found: GenerationResult, expected: GenerationResult) -> None:
    assert found.tokens == expected.tokens and found.finish_reason == expected.finish_reason
    if found.method["name"] in {FAMILIES[name]["name"] for name in CHAINS} and not found.method.get("tree"):
        assert found.logprobs == expected.logprobs  # to the last bit
    else:
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in expected.beams]


@pytest.fixture(scope="module")
def alone() -> list[GenerationResult]:
    return [engine(reuse_prefixes=False).generate(**entry) for entry in entries(24, 0)]


@pytest.mark.some(2)
@pytest.mark.parametrize("reuse", [False, True], ids=["fresh", "reused"])
@pytest.mark.parametrize("concurrency", [3, 24])
def test_in_a_batch_in_any_order(alone: list[GenerationResult], reuse: bool, concurrency: int) -> None:
    order = list(range(24))
    random.Random(concurrency).shuffle(order)
    ours = engine(reuse_prefixes=reuse)
    requests = entries(24, 0)
    for _ in range(2):  # the second time all of it was there before
        results = ours.batch([requests[i] for i in order], concurrency)
        for i, result in zip(order, results, strict=True):
            same(result, alone[i])
    assert (ours.prefix_hit_rate > 0.3) is reuse
    settle(ours)


@pytest.mark.some(2)
@pytest.mark.parametrize("reuse", [False, True], ids=["fresh", "reused"])
@pytest.mark.parametrize("seed", range(2))
def test_after_being_put_back(alone: list[GenerationResult], seed: int, reuse: bool) -> None:
    """At random moments, in random company."""
    ours = engine(reuse_prefixes=reuse)
    with shortage(0.15, random.Random(seed), ours):
        for result, expected in zip(ours.batch(entries(24, 0), 5 + seed), alone, strict=True):
            same(result, expected)
    assert ours.scheduler.preempted > 15
    settle(ours)


def test_with_memory_for_few() -> None:
    """All of them fit when they begin, and no more when they have grown."""
    names = ("chain", "tree", "plain", "exit", "self", "coupled")
    requests = [{"prompt": [i], "method": FAMILIES[name], "seed": i} for i, name in enumerate(names)]
    ours = engine(kv_cache_bytes=700 * SLOT)
    results = ours.batch(requests, 6, max_new_tokens=150)
    assert ours.scheduler.preempted > 0 and ours.builder.budget.used <= 700 * SLOT
    for result, request in zip(results, requests, strict=True):
        same(result, engine(reuse_prefixes=False).generate(**request, max_new_tokens=150))  # type: ignore[arg-type]
    settle(ours)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows at a time, all runs that have more; two requests, of which the second begins as the first did."""
    rng = random.Random(1)
    prompt = [rng.randrange(VOCAB) for _ in range(90)]
    options: dict[str, Any] = {"method": FAMILIES[name], "max_new_tokens": 9, "seed": 3}
    expected = [engine(reuse_prefixes=False).generate(one, **options) for one in (prompt, [*prompt[:60], 1, 2])]
    monkeypatch.setattr("draftwood.runtime.policy.SHORT_RUN", 6)
    ours = engine()
    ours.scheduler.policy.chunk = 7
    for found, alone in zip(ours.batch([prompt, [*prompt[:60], 1, 2]], **options), expected, strict=True):
        same(found, alone)
    settle(ours)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_second_turn_of_a_conversation(name: str) -> None:
    rng = random.Random(2)
    first = [rng.randrange(VOCAB) for _ in range(50)]
    options: dict[str, Any] = {"method": FAMILIES[name], "max_new_tokens": 20, "seed": 4}
    ours = engine()
    reply = ours.generate(first, **options).tokens
    second = [*first, *reply, *(rng.randrange(VOCAB) for _ in range(10))]
    again = ours.generate(second, **options)
    same(again, engine(reuse_prefixes=False).generate(second, **options))
    kept = len(first) + (len(reply) - 6 if name in CHAINS else 0)
    assert kept - 1 <= again.metrics.reused_tokens < len(second)
    if not again.beams:
        rows = again.metrics.target_rows - sum(1 + round_.drafted for round_ in again.rounds)
        assert rows <= len(second) - again.metrics.reused_tokens + 1
    settle(ours)


def test_second_turns_of_many_conversations_move_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes what its first turn left, and needs more room than that has."""
    eng, alone = engine(), engine(reuse_prefixes=False)
    options: dict[str, Any] = {"method": "autoregressive", "max_new_tokens": 8, "ignore_eos": True, "seed": 3}
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(6)]
    firsts = eng.batch(prompts, concurrency=6, **options)
    seconds = [[*p, *r.tokens, *prompts[0], 1, 2] for p, r in zip(prompts, firsts, strict=True)]
    moves: list[int] = []
    move = Cache._move
    monkeypatch.setattr(Cache, "_move", lambda cache, *given: (moves.append(1), move(cache, *given))[1])
    results = eng.batch(seconds, concurrency=6, **options)
    assert len(moves) == 1 and all(result.metrics.reused_tokens >= 40 for result in results)
    assert [r.tokens for r in results] == [alone.generate(prompt, **options).tokens for prompt in seconds]
    settle(eng)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_takes_what_a_live_one_has(name: str) -> None:
    rng = random.Random(3)
    prompt = [rng.randrange(VOCAB) for _ in range(40)]
    options: dict[str, Any] = {"method": FAMILIES[name], "max_new_tokens": 16, "seed": 5}
    expected = engine(reuse_prefixes=False).generate([*prompt, 3], **options)
    ours = engine()
    stream = ours.stream(prompt, **{**options, "max_new_tokens": 60})
    next(stream)
    found = ours.generate([*prompt, 3], **options)
    same(found, expected)
    assert found.metrics.reused_tokens >= 39
    stream.close()  # type: ignore[attr-defined]
    settle(ours)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ["plain", "chain", "exit", "self", "eagle", "block", "medusa", "search"])
def test_texts_of_one_call_read_their_prompt_once(name: str) -> None:
    """Cold: one of them computes it, and the others take over what that has computed."""
    prompt = random.Random(7).choices(range(VOCAB), k=300)
    requests = [{"prompt": prompt, "seed": seed} for seed in range(5)]
    options: dict[str, Any] = {"method": FAMILIES[name], "max_new_tokens": 4, "temperature": 0.9 * (name != "search")}
    expected = engine(reuse_prefixes=False).batch(requests, 5, **options)
    for chunk in (512, 90):
        ours = engine()
        ours.scheduler.policy.chunk = chunk
        results = ours.batch(requests, 5, **options)
        for found, wanted in zip(results, expected, strict=True):
            same(found, wanted)
        rows = sum(one.metrics.target_rows for one in results)
        assert rows < 1.5 * len(prompt) < sum(one.metrics.target_rows for one in expected) / 3
        assert sorted(one.metrics.reused_tokens for one in results)[1] >= len(prompt) - 16
        settle(ours)
