"""Drafting with models: widths per layer, several models, where drafting must stop."""

import pytest
import torch

from draftwood import SamplingParams, TabularModel
from draftwood.core.forest import Forest
from draftwood.depth import Confidence, DepthController, DraftState, Fixed
from draftwood.draft import ModelDrafter, Proposer
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Session
from draftwood.sampling.distributions import Streams


def grown(
    models: list[TabularModel],
    widths: tuple[int, ...],
    prompt: list[int],
    depth: int = 9,
    limit: int = 9,
    end: frozenset[int] = frozenset(),
    seed: int = 0,
    rule: DepthController | None = None,
    **params: float,
) -> Forest:
    """The forest after one drafting phase; a `rule` asked in place of a fixed depth."""
    sessions = [Session(model, model.new_cache(64), "draft") for model in models]
    drafter = ModelDrafter(sessions, widths, replacement=False)
    vocab = models[0].vocab_size
    propose = Proposer(SamplingParams(**params), Streams(seed), vocab)  # type: ignore[arg-type]
    forest = Forest.from_prompt(prompt, end=end)
    drafting = drafter.draft(forest, rule or Fixed(depth), limit, propose)
    try:
        run = next(drafting)
        while True:
            run = drafting.send(execute([run])[0])
    except StopIteration:
        return forest


def counts(forest: Forest) -> list[int]:
    """Nodes per depth."""
    return [forest.depth.count(depth) for depth in range(max(forest.depth) + 1)]


MODEL = TabularModel.random(6, seed=1)


def test_widths_are_children_per_node() -> None:
    assert counts(grown([MODEL], (4, 2, 1), [0], depth=3)) == [1, 4, 8, 8]
    assert counts(grown([MODEL], (1,), [0], depth=4)) == [1, 1, 1, 1, 1]
    assert counts(grown([MODEL], (2, 1), [0], depth=4)) == [1, 2, 2, 2, 2]  # the last width repeats
    assert counts(grown([MODEL], (3,), [0], depth=0)) == [1]


def test_the_limit_and_the_depth_both_hold() -> None:
    assert counts(grown([MODEL], (2,), [0], depth=5, limit=2)) == [1, 2, 4]
    assert counts(grown([MODEL], (2,), [0], depth=2, limit=5)) == [1, 2, 4]
    assert counts(grown([MODEL], (2,), [0], limit=0)) == [1]


def test_end_tokens_are_never_extended() -> None:
    """An end token may be drafted; nothing hangs below it."""
    forest = grown([MODEL], (6,), [0], depth=3, end=frozenset({2}))
    assert counts(forest) == [1, 6, 30, 150]
    parents = {forest.token[parent] for parent in forest.parent if parent > 0}
    assert parents == {0, 1, 3, 4, 5}
    certain = TabularModel(lambda prefix: [0.0, 0.0, 1.0], 3)
    assert counts(grown([certain], (2,), [0], end=frozenset({2}))) == [1, 1]


def test_drafting_stops_where_the_draft_models_context_ends() -> None:
    short = TabularModel.random(6, seed=1, context=6)
    assert counts(grown([short], (1,), [0, 1, 2, 3])) == [1, 1, 1, 1]  # the token at position 5 is the last one seen
    assert counts(grown([short], (1,), [0] * 7)) == [1]


def test_each_model_extends_what_it_drew_itself() -> None:
    """Two chains that differ; where they agree, one node holds the proposals of both, in the models' order."""
    a = TabularModel(lambda prefix: [0.0, 1.0, 0.0, 0.0], 4)
    b = TabularModel(lambda prefix: [0.0, 1.0, 0.0, 0.0] if len(prefix) < 2 else [0.0, 0.0, 0.0, 1.0], 4)
    forest = grown([a, b], (1,), [0], depth=3)
    sequences = {tuple(forest.sequence(node)) for node in range(len(forest))}
    assert sequences == {(0,), (0, 1), (0, 1, 1), (0, 1, 1, 1), (0, 1, 3), (0, 1, 3, 3)}
    assert [made.nodes for made in forest.proposals[0]] == [[1], [1]]
    first, second = forest.proposals[1]
    assert [forest.token[node] for node in (*first.nodes, *second.nodes)] == [1, 3]
    assert first.q is not None and second.q is not None
    assert (first.q.argmax(), second.q.argmax()) == (1, 3)


def test_q_is_the_models_law_after_the_nodes_own_path() -> None:
    forest = grown([MODEL], (3, 2), [4, 0], depth=2, top_k=4)
    for node, (made,) in forest.proposals.items():
        weights = torch.tensor(MODEL.law(tuple(forest.sequence(node))), dtype=torch.float64)
        weights[weights < weights.topk(4).values[-1]] = 0
        assert made.q is not None
        torch.testing.assert_close(made.q, weights / weights.sum())


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_decides_the_drafts(seed: int) -> None:
    first, again, other = (grown([MODEL], (2, 2), [0], depth=4, seed=s).token for s in (seed, seed, seed + 100))
    assert first == again != other


@pytest.mark.parametrize("widths", [(1,), (2, 1)])
def test_controllers_are_told_what_tokens_were_drawn_with(widths: tuple[int, ...]) -> None:
    """Else the softmax would be computed again for each layer."""
    asked: list[DraftState] = []

    class Rule(Confidence):
        def deeper(self, state: DraftState) -> bool:
            asked.append(state)
            return state.depth < 3

    for params in ({}, {"temperature": 0.5}, {"temperature": 0.0}):
        asked.clear()
        forest = grown([MODEL], widths, [0], rule=Rule(3), **params)
        assert [state.depth for state in asked] == [0, 1, 2, 3]
        for state in asked[1:]:
            assert state.logits is not None and len(state.picked) == len(state.nodes) == widths[0]
            rows = [(forest.parent[node], forest.token[node]) for node in state.nodes]
            if params.get("temperature") == 0:
                assert not state.drawn
                continue
            expected = [forest.proposals[parent][0].q[token].item() for parent, token in rows]  # type: ignore[index]
            assert state.confidences() == list(state.drawn) == expected
            softmax = DraftState(1, logits=state.logits, picked=state.picked).confidences()
            assert (softmax == pytest.approx(expected)) == (not params)
