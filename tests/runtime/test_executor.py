"""Batching: padded forwards of many sessions answer as each alone would, and leave idle rows alone."""

import random
from collections.abc import Iterator

import pytest
import torch
from test_session import MODEL, VOCAB, check, grow, verdict
from torch import Tensor

from draftwood import Engine, TabularModel
from draftwood.core.forest import Forest, advance
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.runtime.executor import LONG, drive, drive_together, execute
from draftwood.runtime.session import Decoding, Run, Session


def run(runs: list[Run]) -> list[Tensor]:
    with torch.inference_mode():
        pairs = zip(runs, execute(runs), strict=True)
        return [answer.logits if run.upto is None else answer.hidden[run.upto] for run, answer in pairs]


def advanced(session: Session, forest: Forest, rng: random.Random) -> Forest:
    trunk, kept, grown = advance(forest, verdict(forest, rng, rng.randrange(1, 3)))
    session.commit(trunk, kept, grown)
    return grown


@pytest.mark.parametrize("seed", range(3))
def test_a_padded_batch_equals_one_by_one(seed: int) -> None:
    """Sessions of different lengths, prefill beside decoding, trees beside single tokens, rows idle in between."""
    rng = random.Random(seed)
    cache = MODEL.new_cache(32)
    sessions = [Session(MODEL, cache) for _ in range(6)]
    alone = [Session(MODEL, MODEL.new_cache(32)) for _ in sessions]
    forests: list[Forest | None] = [None] * len(sessions)
    for round_ in range(8):
        chosen = sorted(rng.sample(range(len(sessions)), rng.randrange(1, 6)))
        runs, singles = [], []
        for i in chosen:
            if (forest := forests[i]) is None:  # prefill: a long or a short prompt
                forest = forests[i] = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(rng.choice([1, 5, 40]))])
            grow(forest, rng, rng.choice([0, 0, 3, 8]))
            nodes = range(forest.fresh, len(forest))
            runs.append(Run(sessions[i], forest, nodes))
            singles.append(Run(alone[i], forest, nodes))
        together = run(runs)
        for i, answer, single in zip(chosen, together, singles, strict=True):
            forest = forests[i]
            assert forest is not None
            (expected,) = run([single])
            torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)
            check(sessions[i], forest, range(forest.fresh, len(forest)), answer)
            decided = verdict(forest, rng, rng.randrange(1, 3))
            trunk, kept, grown = advance(forest, decided)
            sessions[i].commit(trunk, kept, grown)
            alone[i].commit(trunk, kept, grown)
            forests[i] = grown
        if round_ % 3 == 2:  # a request ends; the next one takes its row
            i = rng.choice(chosen)
            row = sessions[i].row
            sessions[i].close()
            sessions[i], alone[i] = Session(MODEL, cache), Session(MODEL, MODEL.new_cache(32))
            assert sessions[i].row == row
            forests[i] = None
    assert cache.rows == 8


def test_layer_ranges_in_one_batch() -> None:
    """Runs to a lower layer and resumed runs of several sessions, at different levels."""
    rng = random.Random(9)
    cache = MODEL.new_cache(64)
    sessions = [Session(MODEL, cache) for _ in range(3)]
    forests = [Forest.from_prompt([rng.randrange(VOCAB) for _ in range(length)]) for length in (2, 6, 11)]
    for _ in range(4):
        made = [grow(forest, rng, 4) for forest in forests]
        hidden = run([Run(sessions[i], forests[i], made[i][:2], 2) for i in (0, 2)])
        assert [h.shape for h in hidden] == [(len(made[i][:2]), 24) for i in (0, 2)]
        answers = run(
            [
                Run(session, forest, range(forest.fresh, len(forest)))
                for session, forest in zip(sessions, forests, strict=True)
            ]
        )
        for i in range(3):
            check(sessions[i], forests[i], range(forests[i].fresh, len(forests[i])), answers[i])
            forests[i] = advanced(sessions[i], forests[i], rng)


def test_the_seconds_of_a_forward_are_shared() -> None:
    cache = MODEL.new_cache(64)
    sessions = [Session(MODEL, cache) for _ in range(2)]
    forests = [Forest.from_prompt([1, 2]), Forest.from_prompt([3])]
    first, second = execute([Run(session, forest, [0]) for session, forest in zip(sessions, forests, strict=True)])
    assert first.seconds == second.seconds > 0
    assert (first.forwards, second.forwards) == (1, 1)
    assert (first.rows, second.rows) == (2, 1)


def counting(name: str, rounds: int, log: list[str]) -> Decoding[str]:
    """Decoding code without any model: only round_."""
    try:
        for i in range(rounds):
            yield f"{name}{i}"
    finally:
        log.append(f"closed {name}")


def test_requests_make_room_for_the_next() -> None:
    log: list[str] = []

    def make(name: str, rounds: int) -> Iterator[str]:
        log.append(f"began {name}")
        return counting(name, rounds, log)

    round_ = list(drive_together([lambda: make("a", 2), lambda: make("b", 1), lambda: make("c", 0)], 1))
    assert round_ == [(0, "a0"), (0, "a1"), (1, "b0")]
    assert log == ["began a", "closed a", "began b", "closed b", "began c", "closed c"]


def test_leaving_early_closes_every_request() -> None:
    log: list[str] = []
    together = drive_together([lambda: counting("a", 5, log), lambda: counting("b", 5, log)], 2)
    assert next(together) == (0, "a0")
    together.close()  # type: ignore[attr-defined]
    assert log == ["closed a"]
    alone = drive(counting("c", 5, log))
    next(alone)
    alone.close()  # type: ignore[attr-defined]
    assert log == ["closed a", "closed c"]


def test_one_target_forward_serves_all_requests() -> None:
    """Drafts first, then one padded target forward per round for everyone, different methods included."""
    target, draft = TabularModel.random(4, seed=1), TabularModel.random(4, seed=2)
    forwards = []
    forward = target.forward

    def counted(batch: object, cache: object) -> Tensor:
        forwards.append(batch)
        return forward(batch, cache)  # type: ignore[arg-type]

    target.forward = counted  # type: ignore[assignment]
    engine = Engine(target, [draft])
    requests = [
        {"prompt": [1], "method": "speculative"},
        {"prompt": [1, 2, 3], "method": "autoregressive"},
        {"prompt": [2, 2], "method": {"name": "mcsd", "tree": [3, 2]}},
        {"prompt": [3], "method": {"name": "lookup", "min_ngram": 1}},
    ]
    results = engine.batch(requests, max_new_tokens=10, concurrency=4)
    assert len(forwards) == max(result.metrics.rounds for result in results) == 10
    alone = [engine.generate(**request, max_new_tokens=10) for request in requests]  # type: ignore[arg-type]
    assert [result.tokens for result in alone] == [result.tokens for result in results]


def test_nobody_is_padded_to_the_length_of_a_prompt() -> None:
    target = TabularModel.random(4, seed=1)
    shapes = []
    forward = target.forward

    def noted(batch: Batch, cache: Cache) -> Tensor:
        shapes.append(tuple(batch.tokens.shape))
        return forward(batch, cache)

    target.forward = noted  # type: ignore[method-assign]
    requests = [{"prompt": [1] * LONG}, {"prompt": [1, 2] * LONG}, {"prompt": [3]}, {"prompt": [2]}]
    Engine(target).batch(requests, max_new_tokens=3, concurrency=4)
    assert shapes[:2] == [(1, 2 * LONG), (3, LONG)]  # the longest alone, the others together
    assert shapes[2:] == [(4, 1)] * 2
