"""A failure in one request is its own affair: the others' texts stay, and all memory comes back."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from every_method import FAMILIES, TARGET, engine, settle, shortage, submitted
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoder import VOCAB
from torch import Tensor

from draftwood import DraftwoodError, Engine, NonFiniteError, TabularModel
from draftwood.engine.batching import BatchFailed
from draftwood.engine.engine import prepare
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.decoder import Decoder

POISON = VOCAB - 1


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Make something happen in every forward that has a certain token among its rows."""

    def poison(action: Callable[[], Any]) -> None:
        forward = Decoder.forward

        def guarded(model: Decoder, batch: Batch, cache: Cache) -> Tensor:
            out = forward(model, batch, cache)
            bad = (batch.tokens == POISON).nonzero().flatten().tolist()
            if not bad or model is not TARGET:
                return out
            action()
            row, rows = 0, []
            for segment in batch.segments:  # NaN in all rows of the request
                mine = range(row, row + len(segment))
                row += len(segment)
                if set(mine) & set(bad):
                    rows += list(mine)
            places = torch.arange(len(batch.tokens))[batch.wanted].tolist()
            for i, place in enumerate(places):
                if place in rows:
                    out[i] = math.nan
            return out

        monkeypatch.setattr(Decoder, "forward", guarded)

    return poison


GOOD: list[dict[str, Any]] = [
    {"prompt": [1, 2, 3], "method": FAMILIES[name], "seed": i} for i, name in enumerate(FAMILIES)
]


def the_others_go_on(action: Callable[[], Any], error: type[BaseException], poison: Any) -> None:
    bias = {"logit_bias": {POISON: -math.inf}}  # nobody else comes upon it
    expected = engine().batch(GOOD, 20, max_new_tokens=8, sampling=bias)
    poison(action)
    ours = engine()
    bad: dict[str, Any] = {"prompt": [4, POISON, 5, POISON], "method": "autoregressive", "sampling": bias}
    with pytest.raises(BatchFailed) as failed:
        ours.batch([*GOOD[:5], bad, *GOOD[5:]], 20, max_new_tokens=8, sampling=bias)
    assert list(failed.value.errors) == [5] and isinstance(failed.value.errors[5], error)
    found = [failed.value.results[i] for i in range(len(GOOD) + 1) if i != 5]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    settle(ours)


def test_logits_that_are_no_numbers(poisoned: Any) -> None:
    the_others_go_on(lambda: None, NonFiniteError, poisoned)


def test_a_forward_that_raises(poisoned: Any) -> None:
    def fail() -> None:
        raise RuntimeError("the forward of this request failed")

    the_others_go_on(fail, RuntimeError, poisoned)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_callback_that_raises(name: str) -> None:
    ours, asked = engine(), []

    def cancelled() -> bool:
        asked.append(1)
        if len(asked) == 3:
            raise LookupError("the callback failed")
        return False

    requests = [{"prompt": [1], "cancelled": cancelled}, {"prompt": [2]}]
    with pytest.raises(BatchFailed, match="the callback failed") as failed:
        ours.batch(requests, method=FAMILIES[name], max_new_tokens=30, sampling={"temperature": 1})
    assert list(failed.value.results) == [1]
    settle(ours)


def test_a_stop_check_and_a_progress_callback_that_raise() -> None:
    class Words:
        def stream(self, context: object = (), special: bool = False) -> Words:
            return self

        def step(self, token: int) -> str:
            raise LookupError("no text")

        def decode(self, tokens: list[int]) -> str:
            return ""

    ours = engine(tokenizer=Words())
    with pytest.raises(LookupError, match="no text"):
        ours.generate([1], stop="x")
    settle(ours)

    def progress(finished: int, count: int) -> None:
        raise LookupError("no progress")

    ours = engine()
    with pytest.raises(LookupError, match="no progress"):
        ours.batch([{"prompt": [1], "max_new_tokens": 2}, [2], [3]], progress=progress)
    settle(ours)


def test_a_callback_must_not_wait() -> None:
    ours = engine()
    with pytest.raises(DraftwoodError, match="a callback must not wait for other requests"):
        ours.generate([1], cancelled=lambda: bool(ours.generate([2], max_new_tokens=2)))
    settle(ours)


MOVES = st.lists(st.tuples(st.sampled_from(["submit", "step", "step", "cancel"]), st.integers(0, 10**6)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(moves=MOVES, seed=st.integers(0, 10**6), short=st.sampled_from([0.0, 0.1]), reuse=st.booleans())
def test_requests_come_and_go_at_any_moment(moves: list[tuple[str, int]], seed: int, short: float, reuse: bool) -> None:
    """Those that nobody cancelled have their text; all memory comes back."""
    ours = engine(reuse_prefixes=reuse, max_running=4)
    ours.scheduler.policy.chunk = 7
    names, made = list(FAMILIES), []
    with shortage(short, random.Random(seed), ours):
        for move, number in moves:
            if move == "submit":
                prompt = [1 + i % 7 for i in range(1 + number % 30)]
                options = {"method": FAMILIES[names[number % len(names)]], "max_new_tokens": 4, "seed": number % 3}
                generation = prepare(ours, prompt, **options)  # type: ignore[arg-type]
                made.append((generation, submitted(ours, generation), prompt, options))
            elif move == "step":
                ours.scheduler.step()
            elif made:
                ours.scheduler.cancel(made[number % len(made)][1])
        for generation, task, prompt, options in made:
            with torch.no_grad():
                for round_ in ours.scheduler.events(task):
                    generation.note(round_)
            if not task.cancelled and (key := (tuple(prompt), str(options))) in KNOWN:
                assert generation.result().tokens == KNOWN[key]
            elif not task.cancelled:
                KNOWN[key] = generation.result().tokens
    settle(ours)


KNOWN: dict[tuple[tuple[int, ...], str], list[int]] = {}  # texts of requests that were seen before


def test_a_stop_in_the_middle_of_a_prompt() -> None:
    ours = engine()
    ours.scheduler.policy.chunk = 30
    stream = ours.scheduler.submit(ours.builder.task(prepare(ours, [1 + i % 9 for i in range(400)], max_new_tokens=5)))
    ours.scheduler.step()
    ours.scheduler.step()
    assert stream.pending is not None and 0 < len(stream.pending.rows) < 399
    ours.scheduler.cancel(stream)
    ours.scheduler.receive()
    assert stream.done and not stream.events
    settle(ours)


def test_eight_threads() -> None:
    ours = engine(max_running=5)
    options = [{"prompt": [i, 1], "method": method, "seed": i} for i, method in enumerate(FAMILIES.values())]
    expected = [engine().generate(**one, max_new_tokens=12).tokens for one in options]  # type: ignore[arg-type]
    found: dict[int, list[int]] = {}
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(thread, len(options), 8):
                found[i] = ours.generate(**options[i], max_new_tokens=12).tokens  # type: ignore[arg-type]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and [found[i] for i in range(len(options))] == expected
    settle(ours)


def test_nobody_starves() -> None:
    """A short request of one thread ends soon though another thread's long one is stepped without a pause."""
    ours = Engine(TabularModel.random(5, seed=1))
    long = ours.stream([1], method="autoregressive", max_new_tokens=1500)
    next(long)
    rounds: list[int] = []
    worker = threading.Thread(target=lambda: rounds.extend(1 for _ in long))
    worker.start()
    for _ in range(20):
        ours.generate([2], max_new_tokens=2)
    done = len(rounds)
    worker.join(120)
    assert done < 1400 and len(rounds) == 1499
    settle(ours)


def test_a_queue_costs_a_step_nothing() -> None:
    """Python function calls of steps with a thousand requests waiting, and with none."""
    import cProfile
    import pstats

    def calls(waiting: int) -> int:
        ours = Engine(TabularModel.random(5, seed=1), max_running=1)
        tasks = [submitted(ours, prepare(ours, [1], max_new_tokens=50)) for _ in range(1 + waiting)]
        ours.scheduler.step()
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(20):
            ours.scheduler.step()
        profile.disable()
        assert not tasks[0].done
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]

    assert calls(1000) <= calls(0) + 100


def events(stream: Iterator[Any]) -> list[int]:
    return [token for event in stream for token in event.tokens]


def test_streams_take_turns() -> None:
    ours = engine()
    streams = [ours.stream([i], max_new_tokens=6, seed=i) for i in range(4)]
    first = [next(stream).tokens for stream in streams]
    found = [[*begin, *events(stream)] for begin, stream in zip(first, streams, strict=True)]
    assert found == [engine().generate([i], max_new_tokens=6, seed=i).tokens for i in range(4)]
    settle(ours)
