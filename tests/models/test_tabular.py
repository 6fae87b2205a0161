"""The tabular model is what its law says, and it notices wrong slots and positions."""

from __future__ import annotations

from array import array

import pytest
import torch

from draftwood.core.forest import TRUNK, Forest
from draftwood.models.base import Batch, CausalModel, Segment
from draftwood.models.tabular import TabularModel
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session


def counting(prefix: tuple[int, ...]) -> list[float]:
    """Unnormalised weights that tell every prefix from every other."""
    return [1.0 + sum(prefix), 2.0 + len(prefix), 3.0 + (prefix[-1] if prefix else 0)]


def law_of(logits: torch.Tensor) -> list[float]:
    return torch.softmax(logits, -1).tolist()


def expected(prefix: list[int]) -> list[float]:
    weights = counting(tuple(prefix))
    return [weight / sum(weights) for weight in weights]


def tree() -> Forest:
    forest = Forest.from_prompt([1, 0, 2])
    a, b = forest.propose(forest.roots[0], [0, 2], None)
    forest.propose(b, [1, 0], None)
    forest.propose(a, [2], None)
    return forest


def test_each_node_gets_the_law_of_its_own_path() -> None:
    model = TabularModel(counting, 3)
    assert isinstance(model, CausalModel)
    forest = tree()
    session = Session(model, model.new_cache())
    logits = execute([Run(session, forest, range(len(forest)))])[0].logits
    assert logits.dtype == torch.float64 and logits.shape == (len(forest), 3)
    for node, row in enumerate(logits):
        assert law_of(row) == pytest.approx(expected(forest.sequence(node)), abs=1e-15)


def test_layer_ranges_carry_the_token_through() -> None:
    model = TabularModel(counting, 3, n_layers=4)
    forest = tree()
    session = Session(model, model.new_cache(16))
    nodes = range(len(forest))
    lower = execute([Run(session, forest, nodes, upto=2)])[0]
    hidden = lower.hidden[2]
    assert hidden[:, 0].tolist() == forest.token
    upper = execute([Run(session, forest, nodes)])[0]
    logits = upper.logits
    assert law_of(logits[-1]) == pytest.approx(expected(forest.sequence(len(forest) - 1)), abs=1e-15)
    assert lower.rows + upper.rows == pytest.approx(len(forest.trunk) + len(forest))  # no layer is computed twice


@pytest.mark.parametrize(
    ("paths", "positions"),
    [
        ([[0], [1]], [0, 1]),  # the second row does not see the first
        ([[0, 1], [0, 1]], [0, 0]),  # two rows at one position
        ([[0], [1, 0]], [0, 1]),  # not in order of position
        ([[0], [0, 1]], [0, 2]),  # a position is skipped
        ([[0], [0, 1]], [1, 2]),  # the sequence does not begin at 0
    ],
)
def test_wrong_slots_and_positions_are_noticed(paths: list[list[int]], positions: list[int]) -> None:
    model = TabularModel(counting, 3)
    cache = model.new_cache()
    segment = Segment(cache.lend(2), [0, 1], array("i"), [0, 0], paths)
    with pytest.raises(AssertionError, match="its slots are wrong"):
        model.forward(Batch.of(model, [1, 2], positions, [segment]), cache)


def test_causal_rows_see_those_before_them() -> None:
    model = TabularModel(counting, 3)
    cache = model.new_cache()
    extent = cache.lend(5)
    for first, tokens in ((0, [2, 1, 0]), (3, [1, 2])):
        rows = range(first, first + len(tokens))
        segment = Segment.causal(extent, first, len(tokens))
        logits = model.forward(Batch.of(model, tokens, rows, [segment]), cache)
        for row, place in zip(logits, rows, strict=True):
            assert law_of(row) == pytest.approx(expected([2, 1, 0, 1, 2][: place + 1]), abs=1e-15)


def test_impossible_tokens_have_logit_minus_infinity() -> None:
    model = TabularModel(lambda prefix: [0.0, 1.0, 3.0], 3)
    cache = model.new_cache()
    logits = model.forward(Batch.of(model, [1], [0], [Segment.causal(cache.lend(1), 0, 1)]), cache)
    assert logits[0, 0] == float("-inf") and law_of(logits[0]) == pytest.approx([0, 0.25, 0.75])


def test_random_models_are_fixed_by_their_seed() -> None:
    def row(seed: int, prefix: tuple[int, ...], order: int | None = None, sharpness: float = 1.0) -> list[float]:
        return list(TabularModel.random(5, seed, order, sharpness).law(prefix))

    assert row(1, (2, 3)) == row(1, (2, 3))
    assert row(1, (2, 3)) != row(2, (2, 3))
    assert row(1, (2, 3)) != row(1, (4, 3))
    assert row(1, (2, 3), order=1) == row(1, (4, 3), order=1) != row(1, (4, 2), order=1)
    assert row(1, (2, 3), order=0) == row(1, (), order=0)
    assert row(1, (2,), sharpness=2.0) == pytest.approx([weight**2 for weight in row(1, (2,))])
    assert all(weight > 0 for weight in row(1, ()))


def test_options_of_a_random_model() -> None:
    model = TabularModel.random(5, 0, context=7, n_layers=3, dtype=torch.float32)
    assert (model.vocab_size, model.context, model.n_layers) == (5, 7, 3)
    forest = Forest(trunk=[])
    forest.add(TRUNK, 4)
    logits = execute([Run(Session(model, model.new_cache()), forest, [0])])[0].logits
    assert logits.dtype == torch.float32
