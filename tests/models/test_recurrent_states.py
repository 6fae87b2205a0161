"""States of recurrent layers in sessions: every row has the bits of plain decoding, wherever its walk begins."""

from __future__ import annotations

import inspect
import random
import textwrap

import pytest
import torch
from recurrent_models import RecurrentModel
from torch import Tensor

from draftwood.core.forest import Forest, Verdict, advance
from draftwood.core.topology import trunk_node
from draftwood.errors import OutOfMemory
from draftwood.models import recurrent_states, recurrent_walk
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache
from draftwood.models.recurrent_states import RecurrentStates
from draftwood.models.recurrent_walk import Walk
from draftwood.runtime.executor import execute
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.session import Run, Session


def same(model: RecurrentModel, forest: Forest, node: int, logits: Tensor) -> bool:
    """Whether a row has the bits of a plain pass over its text."""
    return torch.equal(logits, model.plain(forest.sequence(node))[-1])


class Request:
    """A random request: chains, trees or single tokens below one or several roots, some rows in two passes."""

    def __init__(self, model: RecurrentModel, cache: Cache, seed: int, length: int) -> None:
        self.rng, self.model = random.Random(seed), model
        self.session = Session(model, cache)
        self.forest = Forest.from_prompt([self.rng.randrange(50) for _ in range(length)])

    def run(self) -> Run:
        forest, rng = self.forest, self.rng
        for root in forest.live:
            parents = [root]
            for _ in range(rng.randrange(5)):
                parents += forest.propose(rng.choice(parents), [rng.randrange(50)], None)
        upto = rng.choice([None, None, 1, 2])
        return Run(self.session, forest, list(range(forest.fresh, len(forest))), upto=upto)

    def finish(self) -> Run:
        return Run(self.session, self.forest, list(range(self.forest.fresh, len(self.forest))))

    def commit(self) -> None:
        forest, rng = self.forest, self.rng
        nodes = [rng.randrange(forest.fresh, len(forest)) for _ in range(rng.choice([1, 1, 1, 3]))]
        if len(forest.live) > 1 and rng.random() < 0.7:
            nodes = [max(node for node in range(len(forest)) if root in forest.path(node)) for root in forest.live]
        roots = list(dict.fromkeys((node, rng.randrange(50)) for node in nodes))
        verdict = Verdict([node for node, _ in roots], [token for _, token in roots], [], {})
        trunk, kept, self.forest = advance(forest, verdict)
        self.session.commit(trunk, kept, self.forest)


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_requests_have_the_bits_of_plain_decoding(seed: int) -> None:
    model = RecurrentModel(seed)
    cache = model.new_cache()
    requests = [Request(model, cache, 10 * seed + i, length) for i, length in enumerate((1, 7, 40))]
    for _ in range(12):
        execute([request.run() for request in requests])
        runs = [request.finish() for request in requests]
        for run, answer in zip(runs, execute(runs), strict=True):
            for node, logits in zip(run.nodes, answer.logits, strict=True):
                assert same(model, run.forest, node, logits)
        for request in requests:
            request.commit()
    assert isinstance(cache.states, RecurrentStates)
    for request in requests:
        held = cache.states.memory.extents[request.session.extent]
        assert len(held.checkpoints) < 10 and len(held.inputs) < 100
        request.session.forget()
    assert cache.states.bytes == 0


def test_beams_far_apart_do_not_replay_all_of_their_tokens() -> None:
    model, steps = RecurrentModel(1), 0
    cache = model.new_cache()
    session, forest = Session(model, cache), Forest.from_prompt([1, 2, 3])
    for token in (4, 5):
        forest.add(forest.roots[0], token)
    execute([Run(session, forest, [0, 1, 2])])
    parents = [1, 2]
    assert isinstance(cache.states, RecurrentStates)
    plan, longest = cache.states.plan, 0

    def counted(batch: object) -> object:
        nonlocal steps
        made = plan(batch)  # type: ignore[arg-type]
        steps = max(steps, sum(len(walk.parents) for walk in made.walks))
        return made

    cache.states.plan = counted  # type: ignore[method-assign, assignment]
    for depth in range(100):
        parents = [forest.add(parent, (depth + i) % 50) for i, parent in enumerate(parents)]
        answer = execute([Run(session, forest, parents)])[0]
        longest = max(longest, steps)
        if depth % 33 == 0:
            assert all(same(model, forest, *row) for row in zip(parents, answer.logits, strict=True))
    assert 2 < longest <= 2 + 2 * recurrent_states.LONG_REPLAY
    assert len(cache.states.memory.extents[session.extent].checkpoints) <= 6  # type: ignore[index]


@pytest.mark.parametrize("back", [1, 2, 3, 30])
def test_tokens_of_the_trunk_can_be_asked_for_again(back: int) -> None:
    model = RecurrentModel(2)
    session, forest = Session(model, model.new_cache()), Forest.from_prompt([i % 50 for i in range(60)])
    execute([Run(session, forest, [0])])
    trunk, kept, forest = advance(forest, Verdict([0], [9], [], {}))
    session.commit(trunk, kept, forest)
    position = len(forest.trunk) - back
    answer = execute([Run(session, forest, [trunk_node(position), 0])])[0]
    assert torch.equal(answer.logits[0], model.plain(forest.trunk[: position + 1])[-1])
    assert same(model, forest, 0, answer.logits[1])
    forest.add(0, 7)
    assert same(model, forest, 1, execute([Run(session, forest, [1])])[0].logits[0])


def test_prompts_leave_states_for_others() -> None:
    model, prefixes = RecurrentModel(3), PrefixCache()
    cache = model.new_cache()
    assert isinstance(cache.states, RecurrentStates)
    cache.states.interval = 32
    rng = random.Random(5)
    text = [rng.randrange(50) for _ in range(100)]

    def read(tokens: list[int]) -> tuple[int, Session]:
        session, forest = Session(model, cache, prefixes=prefixes), Forest.from_prompt(tokens)
        answer = execute([Run(session, forest, [0])])[0]
        assert same(model, forest, 0, answer.logits[0])
        return session.reused, session

    reused, first = read(text)
    assert reused == 0
    assert read(text)[0] == 98  # of a live request: the state before the newest token
    assert read([*text[:80], 1, 2, 3])[0] == 64
    first.close()
    assert read([*text[:40], *text[:30]])[0] == 32
    assert read([*text, 3, 4, 5])[0] in (98, 99, 100)
    assert prefixes.hits > 200


@torch.inference_mode()
def test_slots_that_are_written_again_forget() -> None:
    model = RecurrentModel(6)
    cache = model.new_cache()
    extent = cache.lend(40)
    for tokens in ([3] * 40, [4] * 40):
        first = model.forward(Batch.of(model, tokens[:39], range(39), [Segment.causal(extent, 0, 39)]), cache)
        last = model.forward(Batch.of(model, tokens[39:], [39], [Segment.causal(extent, 39, 1)]), cache)
        assert torch.equal(torch.cat((first, last)), model.plain(tokens))


def test_states_of_some_layers_are_not_for_others() -> None:
    model = RecurrentModel(7)
    session, forest = Session(model, model.new_cache()), Forest.from_prompt([i % 50 for i in range(60)])
    for upto, tokens in ((2, 0), (None, 58)):
        execute([Run(session, forest, [0], upto=upto)])
        assert session.extent is not None
        assert session.cache.reusable(session.extent, 59) == tokens


MUTATIONS = {  # of Walk.of
    "a state from the wrong parent": ("parent = known\n", "parent = max(0, known - 1)\n"),
    "a state that is not folded": ("in reversed(back):", "in reversed([one for one in back if one[0] in rows]):"),
    "inputs of another token": ("source = -1 - kept.row", "source = -1 - max(0, kept.row - 1)"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_walks_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = textwrap.dedent(inspect.getsource(Walk.of))
    old, new = MUTATIONS[name]
    assert source.count(old) == 1
    names = dict(vars(recurrent_walk))
    exec(source.replace(old, new).replace("@classmethod", ""), names)
    monkeypatch.setattr(Walk, "of", classmethod(names["of"]))
    model = RecurrentModel(9)
    request, wrong = Request(model, model.new_cache(), 5, 7), 0
    for _ in range(8):
        execute([request.run()])
        run = request.finish()
        logits = execute([run])[0].logits
        wrong += sum(not same(model, run.forest, *row) for row in zip(run.nodes, logits, strict=True))
        request.commit()
    assert wrong > 0


def test_a_budget_counts_states() -> None:
    model = RecurrentModel(4)
    cache = model.new_cache()
    assert isinstance(cache.states, RecurrentStates)
    session, forest = Session(model, cache), Forest.from_prompt([1, 2, 3])
    cache.budget.limit = cache.slot_bytes * 64 + cache.states.extent_bytes // 2
    with pytest.raises(OutOfMemory):
        execute([Run(session, forest, [0])])
    cache.budget.limit = None
    assert same(model, forest, 0, execute([Run(session, forest, [0])])[0].logits[0])
    assert cache.budget.used == cache.bytes + cache.states.bytes > cache.bytes
    session.forget()
    assert cache.budget.used == cache.states.bytes == 0
