"""EESD's Algorithm 1 has no greatest depth: Thompson sampling drafts until its coin says stop, unless gamma is set."""

import pytest
from enumeration import EnumeratedRandomness

from draftwood import Engine, Method, TabularModel
from draftwood.errors import ConfigurationError

TARGET = TabularModel.random(4, seed=11, order=3)
NAMES = ["speculative", "eesd", "self-spec", "eagle"]


@pytest.mark.parametrize("name", NAMES)
def test_the_cap_is_there_only_where_it_is_named(name: str) -> None:
    free = Method.parse({"name": name, "depth": "beta-ts:discount=0.9"})
    assert free.as_dict()["gamma"] is None and Method.parse(free.as_dict()) == free
    assert Method.parse({"name": name, "depth": "beta-ts", "gamma": 4}).as_dict()["gamma"] == 4
    assert Method.parse({"name": name, "depth": "confidence"}).as_dict()["gamma"] is not None
    with pytest.raises(ConfigurationError, match="name gamma"):
        Method.parse({"name": name, "depth": "fixed", "gamma": None})


def test_a_tree_is_as_deep_as_it_is_named() -> None:
    assert Method.parse({"name": "eesd", "tree": [2, 1], "depth": "beta-ts"}).as_dict()["gamma"] == 4


def test_rounds_go_on_while_drafts_are_accepted() -> None:
    """A draft that is the target is always accepted, so the chance to go on nears 1."""
    engine = Engine(TARGET, [TARGET])
    method = {"name": "speculative", "depth": "beta-ts"}
    result = engine.generate([1, 2], method, {"temperature": 1}, max_new_tokens=400, seed=3)
    depths = [round_.drafted for round_ in result.rounds]
    assert max(depths) > 64 and result.metrics.drafting_rounds == 0  # alpha is over a configured depth: there is none
    capped = engine.generate([1, 2], {**method, "gamma": 4}, {"temperature": 1}, max_new_tokens=400, seed=3)
    assert max(round_.drafted for round_ in capped.rounds) == 4 and capped.metrics.alpha > 0


def test_the_law_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = TabularModel.random(3, seed=21), TabularModel.random(3, seed=22)
    engine = Engine(target, [draft], end_tokens=frozenset({0}))
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 2], {"name": "speculative", "depth": "beta-ts"}, 4)
