"""Where requests go: to the replica that knows how their prompt begins, unless its queue is long. No Ray is needed."""

from __future__ import annotations

import asyncio
import json
import random
from asyncio import Future
from typing import Any

import pytest

from draftwood.cluster.metrics import CombinedMetrics
from draftwood.cluster.prefix_routing import BLOCK_LENGTH, MAX_BLOCKS, InFlight, PrefixLocations, blocks_of


def blocks(**body: Any) -> list[int]:
    return blocks_of(json.dumps(body).encode())


def talk(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize("key", ["prompt", "input"])
def test_texts_that_begin_alike_share_blocks(key: str) -> None:
    first, second = blocks(**{key: "a" * 200 + "b" * 200}), blocks(**{key: "a" * 200 + "c" * 200})
    same = [one == other for one, other in zip(first, second, strict=True)]
    assert same == [True] * (200 // BLOCK_LENGTH) + [False] * (len(first) - 200 // BLOCK_LENGTH)
    assert blocks(**{key: list(range(100))})[:5] == blocks(**{key: list(range(99))})[:5]


def test_a_conversation_goes_on() -> None:
    before = blocks(messages=talk("How is the sea? " * 9))
    after = blocks(messages=talk("How is the sea? " * 9, "It is calm. " * 9, "And the sky?"))
    assert before[:-1] == after[: len(before) - 1] and len(after) > len(before) > 3
    assert blocks(instructions="a" * 99, input="b" * 99)[:2] == blocks(instructions="a" * 99, input="c" * 99)[:2]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"prompt": "\\ud800"}', b'{"a": 1}', b"[" * 10**5])
def test_what_is_no_prompt_has_none(body: bytes) -> None:
    assert blocks_of(body) == []


def test_long_prompts_are_cut() -> None:
    assert len(blocks(prompt="a" * 10**6)) == MAX_BLOCKS


def test_the_longest_beginning_wins_then_the_shortest_queue() -> None:
    prefixes = PrefixLocations(unbalanced=4)
    prefixes.add([1, 2], "a")
    prefixes.add([1, 3], "b")
    assert prefixes.ranked([1, 2, 5], {"a": 4, "b": 0, "c": 0})[0] == "a"
    assert prefixes.ranked([1, 2, 5], {"a": 5, "b": 0, "c": 0})[0] == "b"  # which knows the first block, at least
    assert prefixes.ranked([1, 7], {"a": 3, "b": 2, "c": 0}) == ["b", "a", "c"]
    assert prefixes.ranked([9], {"a": 3, "b": 2, "c": 1}) == ["c", "b", "a"]
    prefixes.forget("a")
    assert prefixes.ranked([1, 2, 5], {"a": 0, "b": 1, "c": 0})[0] == "b"
    assert prefixes.ranked([], {}) == []


def test_every_router_breaks_ties_alike() -> None:
    queues = {name: 0 for name in "abcd"}
    firsts = {first: PrefixLocations().ranked([first], queues)[0] for first in range(40)}
    assert firsts == {first: PrefixLocations().ranked([first], queues)[0] for first in range(40)}
    assert set(firsts.values()) == set(queues)


@pytest.mark.parametrize("again", ["a", "b"])
@pytest.mark.parametrize("late", [False, True])
def test_a_request_that_was_refused_counts_once_until_it_ends(again: str, late: bool) -> None:
    """Also where the end of the first try is told after the second one began, or after it was taken."""

    async def counts() -> list[dict[str, int]]:
        under_way, first, second = InFlight(), Future[str](), Future[str]()
        under_way.chosen("1", "a", first)
        under_way.chosen("1", "a", first)  # all were full for a while
        first.set_result("a")
        await asyncio.sleep(0)
        under_way.chosen("1", again, second)
        if late:
            second.set_result(again)
            under_way.taken("1", again)
        under_way.over("1")  # the first try
        found = [dict(under_way.queues("2"))]
        if not late:
            second.set_result(again)
            under_way.taken("1", again)
        found.append(dict(under_way.queues("2")))
        under_way.over("1")
        under_way.over("1")  # nothing is left to end
        under_way.chosen("1", "a", second)  # too late
        return [*found, dict(under_way.queues("2"))]

    assert asyncio.run(counts()) == [{again: 1}, {again: 1}, {}]


def test_a_request_that_is_given_up_does_not_count() -> None:
    async def counts() -> list[dict[str, int]]:
        under_way, first, second = InFlight(), Future[str](), Future[str]()
        under_way.chosen("1", "a", first)
        first.set_result("a")
        under_way.chosen("1", "b", second)
        second.cancel()
        await asyncio.sleep(0)
        found = [dict(under_way.queues("2")), dict(under_way.queues("1"))]
        under_way.over("1")
        return [*found, dict(under_way.queues("2"))]

    assert asyncio.run(counts()) == [{"b": 1}, {}, {}]


@pytest.mark.parametrize("system", ["", "You are kind and brief, and know the sea. " * 20])
def test_nine_of_ten_turns_find_their_conversation(system: str) -> None:
    """With a beginning that all conversations share, too; and no replica is left without work."""
    rng, prefixes, names = random.Random(1), PrefixLocations(), ("a", "b", "c", "d")
    texts: list[list[str]] = [[system + f"Question {i} about the sea, the sky and the land"] for i in range(64)]
    home: dict[int, str] = {}
    running: list[tuple[int, str]] = []
    went = dict.fromkeys(names, 0)
    found = asked = 0
    for _ in range(1000):
        if len(running) < 48:
            number = rng.choice([i for i in range(64) if i not in dict(running)])
            queues = {name: sum(where == name for _, where in running) for name in names}
            mine = blocks(messages=talk(*texts[number]))
            name = prefixes.ranked(mine, queues)[0]
            prefixes.add(mine, name)
            asked += number in home
            found += home.get(number) == name
            home[number] = name
            went[name] += 1
            running.append((number, name))
        else:
            number, _ = running.pop(rng.randrange(len(running)))
            texts[number] += [f"Answer {rng.random()} of some length, as answers are", f"And {rng.random()} then?"]
    assert asked > 400 and found / asked >= 0.9
    assert min(went.values()) > 0.1 * sum(went.values())


def test_metrics_of_all_and_of_each() -> None:
    texts = {
        name: "# HELP vllm:rounds_total Rounds.\n# TYPE vllm:rounds_total counter\n"
        f'vllm:rounds_total{{model_name="m"}} {rounds}\n'
        "# HELP draftwood:tau Tokens per forward.\n# TYPE draftwood:tau gauge\n"
        f'draftwood:tau{{model_name="m"}} {tau}\n'
        "# HELP vllm:wait_seconds Wait.\n# TYPE vllm:wait_seconds histogram\n"
        f'vllm:wait_seconds_bucket{{le="1.0"}} {rounds}\nvllm:wait_seconds_bucket{{le="+Inf"}} 9\n'
        f"vllm:wait_seconds_count 9\nvllm:wait_seconds_sum {tau}\n"
        for name, rounds, tau in (("a", 3, 1.0), ("b", 4, 2.0))
    }
    together = CombinedMetrics(texts).text().decode()
    assert 'vllm:rounds_total{model_name="m"} 7.0' in together and 'draftwood:tau{model_name="m"} 1.5' in together
    assert 'vllm:wait_seconds_bucket{le="1.0"} 7.0' in together and "vllm:wait_seconds_sum 3.0" in together
    each = CombinedMetrics(texts, each=True).text().decode()
    assert 'vllm:rounds_total{model_name="m",replica="a"} 3.0' in each
    assert 'draftwood:tau{model_name="m",replica="b"} 2.0' in each
