"""Spaces of options: every value makes a method, searches repeat under a seed and find what is best."""

from __future__ import annotations

import sys

import pytest

from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.tune.spaces import SPACES, GridSearch, TPESearch, combinations, size, space


@pytest.mark.parametrize("name", SPACES)
def test_every_value_is_one_of_the_method(name: str) -> None:
    usual = Method.parse(name).as_dict()
    good = 0
    for values in combinations(SPACES[name]):
        try:
            method = Method.parse({**values, "name": name})
        except ConfigurationError:
            continue  # such as a least width above the draft's
        good += 1
        assert values.items() <= method.as_dict().items() and values.keys() <= usual.keys()
    assert good > size(SPACES[name]) / 2


def test_fixed_options_are_not_searched() -> None:
    assert "gamma" not in space("dsbd", {"gamma": 2})
    assert set(space("dsbd", {"width": 4})) == {"draft_width", "gamma", "root_weights"}
    with pytest.raises(ConfigurationError, match="leave one of them open"):
        space("speculative", {"gamma": 3})


def test_everything_comes_once() -> None:
    options = {"a": (1, 2, 3), "b": ("x", "y")}
    search = GridSearch(combinations(options), 4)
    seen = []
    while (values := search.ask()) is not None:
        seen.append(tuple(values.values()))
        search.tell(None)
    assert len(set(seen)) == len(seen) == size(options) == 6
    assert [GridSearch(combinations(options), 4).ask() for _ in range(2)] == [dict(zip("ab", seen[0], strict=True))] * 2


def test_likely_values() -> None:
    options = {"width": tuple(range(1, 17)), "gamma": tuple(range(1, 9)), "weights": ("draft", "target")}

    def trail(seed: int) -> list[tuple[object, ...]]:
        search, seen = TPESearch(options, seed, 40, {"width": 4, "gamma": 99}), []
        for _ in range(40):
            values = search.ask()
            assert values is not None and values.keys() == options.keys()
            seen.append(tuple(values.values()))
            bad = values["width"] == 13
            score = -abs(values["width"] - 6) - abs(values["gamma"] - 3) + (values["weights"] == "draft")
            search.tell(None if bad else score)
        return seen

    first = trail(1)
    assert first[0][0] == 4  # the usual value, where it is in the space
    assert first == trail(1) != trail(2)
    near = [abs(width - 6) + abs(gamma - 3) for width, gamma, _ in first]  # type: ignore[operator]
    assert sum(near[20:]) < sum(near[:20]) and min(near) <= 1


def test_without_optuna_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigurationError, match=r"draftwood\[tune\]"):
        TPESearch(SPACES["dsbd"], 0, 5, {})
