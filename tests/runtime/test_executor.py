"""Batching: flat forwards of many sessions answer as each alone would, and nobody is padded."""

import random

import pytest
import torch
from every_method import submitted
from native_library import embedded, needs_native
from test_session import MODEL, VOCAB, check, grow, verdict
from torch import Tensor

from draftwood import Engine, TabularModel
from draftwood.core.forest import Forest, advance
from draftwood.core.topology import trunk_node
from draftwood.engine.engine import prepare
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.runtime import policy
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session


def run(runs: list[Run]) -> list[Tensor]:
    with torch.inference_mode():
        pairs = zip(runs, execute(runs), strict=True)
        return [answer.logits if run.upto is None else answer.hidden[run.upto] for run, answer in pairs]


def advanced(session: Session, forest: Forest, rng: random.Random) -> Forest:
    trunk, kept, grown = advance(forest, verdict(forest, rng, rng.randrange(1, 3)))
    session.commit(trunk, kept, grown)
    return grown


@pytest.mark.parametrize("seed", range(3))
def test_a_flat_batch_equals_one_by_one(seed: int) -> None:
    """Sessions of different lengths, prompts beside decoding, trees beside single tokens, sessions that wait."""
    rng = random.Random(seed)
    cache = MODEL.new_cache()
    sessions = [Session(MODEL, cache) for _ in range(6)]
    alone = [Session(MODEL, MODEL.new_cache()) for _ in sessions]
    forests: list[Forest | None] = [None] * len(sessions)
    for round_ in range(8):
        chosen = rng.sample(range(len(sessions)), rng.randrange(1, 6))
        runs, singles = [], []
        for i in chosen:
            if (forest := forests[i]) is None:  # a long or a short prompt
                forest = forests[i] = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(rng.choice([1, 5, 90]))])
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
        if round_ % 3 == 2:  # a request ends; the next one takes its place in memory
            i = rng.choice(chosen)
            sessions[i].close()
            sessions[i], alone[i] = Session(MODEL, cache), Session(MODEL, MODEL.new_cache())
            forests[i] = None
    for session in sessions:
        session.close()
    assert cache.lent == cache.slots == 0


def test_layer_ranges_in_one_batch() -> None:
    """Runs to a lower layer and resumed runs of several sessions, at different levels, beside a prompt."""
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


def test_a_sweep_serves_runs_of_every_depth() -> None:
    """Runs to different layers in one sweep: each forward is shared by all that pass through its layers."""
    rng = random.Random(3)
    cache, forwards = MODEL.new_cache(), []
    forward = MODEL.forward

    def noted(batch: Batch, cache: Cache) -> Tensor:
        forwards.append((batch.start, batch.stop, len(batch.segments)))
        return forward(batch, cache)

    sessions = [Session(MODEL, cache) for _ in range(3)]
    forests = [Forest.from_prompt([rng.randrange(VOCAB) for _ in range(length)]) for length in (3, 50, 9)]
    run([Run(sessions[2], forests[2], [0], 1)])  # resumes from layer 1
    MODEL.forward = noted  # type: ignore[method-assign]
    try:
        answers = run([Run(sessions[i], forests[i], [0], upto) for i, upto in enumerate((None, 2, None))])
    finally:
        del MODEL.forward
    assert forwards == [(0, 1, 2), (1, 2, 3), (2, None, 2)]
    check(sessions[0], forests[0], [0], answers[0])
    assert answers[1].shape == (1, 24)
    check(sessions[2], forests[2], [0], answers[2])
    check(sessions[1], forests[1], [0], run([Run(sessions[1], forests[1], [0])])[0])


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
def test_what_is_read_of_all_rows_comes_with_the_answer(native: bool) -> None:
    """One forward brings it, of a prompt whose end alone was asked for: the numbers of states that are asked for."""
    model = embedded("float32") if native else MODEL
    rng, layers = random.Random(5), (1, 2, model.n_layers)
    forests = [Forest.from_prompt([rng.randrange(VOCAB) for _ in range(length)]) for length in (2, 40)]
    with torch.inference_mode():
        cache = model.new_cache()
        sessions = [Session(model, cache) for _ in forests]
        reading = [Run(one, forest, [0], reads=layers) for one, forest in zip(sessions, forests, strict=True)]
        for forest, answer in zip(forests, execute(reading), strict=True):
            assert answer.forwards == 1 and answer.logits.shape[0] == 1 and not answer.hidden
            session, nodes = Session(model, model.new_cache()), [*map(trunk_node, range(len(forest.trunk))), 0]
            (asked,) = execute([Run(session, forest, nodes, hidden=layers)])
            for layer, seen, output in answer.read:
                assert sorted(seen) == sorted(nodes)
                rows = [nodes.index(node) for node in seen]
                close = {"rtol": 0, "atol": 0} if native else {"rtol": 1e-5, "atol": 1e-5}
                torch.testing.assert_close(output, asked.hidden[layer][rows], **close)
            assert [layer for layer, *_ in answer.read] == [*layers]


def test_the_seconds_of_a_forward_are_shared() -> None:
    cache = MODEL.new_cache(64)
    sessions = [Session(MODEL, cache) for _ in range(2)]
    forests = [Forest.from_prompt([1, 2]), Forest.from_prompt([3])]
    first, second = execute([Run(session, forest, [0]) for session, forest in zip(sessions, forests, strict=True)])
    assert first.seconds == second.seconds > 0
    assert (first.forwards, second.forwards) == (1, 1)
    assert (first.rows, second.rows) == (2, 1)


def test_one_target_forward_serves_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that draft are served together, whatever they draft: no more target forwards than rounds."""
    monkeypatch.setattr(policy, "MAX_DRAFT_WAIT", 1e9)  # however long a pass took by the clock
    target, draft = TabularModel.random(4, seed=1), TabularModel.random(4, seed=2)
    forwards = []
    forward = target.forward

    def counted(batch: object, cache: object) -> Tensor:
        forwards.append(batch)
        return forward(batch, cache)  # type: ignore[arg-type]

    target.forward = counted  # type: ignore[assignment]
    engine = Engine(target, [draft])
    requests = [
        {"prompt": [1], "method": {"name": "speculative", "gamma": 2}},
        {"prompt": [1, 2, 3], "method": {"name": "specinfer", "expansion": [2, 2]}},
        {"prompt": [2, 2], "method": {"name": "mcsd", "tree": [3, 2]}},
        {"prompt": [3], "method": {"name": "mcsd", "tree": [2, 1]}},
    ]
    results = engine.batch(requests, max_new_tokens=10, concurrency=4, seed=3)
    rounds = [result.metrics.rounds for result in results]
    assert max(rounds) <= len(forwards) <= max(rounds) + 1 < sum(rounds) / 2  # who has no room for drafts does not wait
    alone = [engine.generate(**request, max_new_tokens=10, seed=3) for request in requests]  # type: ignore[arg-type]
    assert [result.tokens for result in alone] == [result.tokens for result in results]


def test_nobody_is_padded() -> None:
    """A forward has the rows that are asked for, whoever is in it."""
    target = TabularModel.random(4, seed=1)
    counts = []
    forward = target.forward

    def noted(batch: Batch, cache: Cache) -> Tensor:
        counts.append((len(batch.tokens), sorted(len(segment) for segment in batch.segments)))
        return forward(batch, cache)

    target.forward = noted  # type: ignore[method-assign]
    cache = target.new_cache()
    forests = [Forest.from_prompt([1] * length) for length in (1, 90, 7)]
    for token in (1, 2):
        forests[2].propose(0, [token], None)
    sessions = [Session(target, cache) for _ in forests]
    answers = execute([Run(sessions[i], forest, range(len(forest))) for i, forest in enumerate(forests)])
    assert counts == [(1 + 90 + 9, [1, 9, 90])]
    assert [answer.rows for answer in answers] == [1, 90, 9]


def test_requests_that_come_together_move_the_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, move = [], Cache._move
    monkeypatch.setattr(Cache, "_move", lambda *args: (moves.append(1), move(*args))[1])
    engine = Engine(MODEL)
    together = [submitted(engine, prepare(engine, [1, 2, 3], method="autoregressive")) for _ in range(12)]
    engine.scheduler.step()
    assert len(moves) == 1 and all(task.events for task in together)


def test_states_of_lower_layers_are_kept_where_others_stop() -> None:
    """A forward ends where another run's rows do; what was asked for below is part of the answer all the same."""
    cache, forest = MODEL.new_cache(), Forest.from_prompt([3, 1, 4, 1, 5])
    wish = {"hidden": (1, 2, MODEL.n_layers)}
    (alone,) = execute([Run(Session(MODEL, MODEL.new_cache()), forest, [0], **wish)])
    others = [Run(Session(MODEL, cache), Forest.from_prompt([2, 7]), [0], upto) for upto in (1, 3)]
    together = execute([Run(Session(MODEL, cache), forest, [0], **wish), *others])[0]
    assert together.forwards == 3 and together.hidden.keys() == alone.hidden.keys()
    for layer, states in alone.hidden.items():
        torch.testing.assert_close(together.hidden[layer], states)


def test_what_is_read_comes_of_all_rows() -> None:
    """Of the prompt's tokens on the way too; in one forward where all rows are asked for, and whoever else is in it."""
    cache, forest = MODEL.new_cache(), Forest.from_prompt([3, 1, 4, 1, 5])
    nodes = [*map(trunk_node, range(4)), 0]
    (asked,) = execute([Run(Session(MODEL, MODEL.new_cache()), forest, nodes, logits=False, hidden=(1, 2))])
    for upper in ((), (1,), (3,)):
        session = Session(MODEL, cache)
        others = [Run(Session(MODEL, cache), Forest.from_prompt([2, 7]), [0], upto) for upto in upper]
        answer = execute([Run(session, forest, [0], reads=(2, 1)), *others])[0]
        for layer in (1, 2):
            parts = [zip(some, rows, strict=True) for at, some, rows in answer.read if at == layer]
            read = {node: row for part in parts for node, row in part}
            assert read.keys() == set(nodes) and not answer.hidden
            found = torch.stack([read[node] for node in nodes])
            torch.testing.assert_close(found, asked.hidden[layer], atol=1e-5, rtol=1e-5)
        check(session, forest, [0], answer.logits)
        (child,) = forest.propose(0, [2], None)
        (answer,) = execute([Run(session, forest, [child], reads=(2, 1))])
        assert [(layer, nodes) for layer, nodes, _ in answer.read] == [(2, [child]), (1, [child])]
        assert answer.forwards == 1
