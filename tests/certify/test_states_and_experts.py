"""The certificate of a hybrid and of a mixture passes, and fails where states or experts of a row are another's."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from family_models import PROMPT, write

from draftwood import Engine, Method
from draftwood.certify.checks import Budget
from draftwood.certify.pair import ModelPair, greedy_check
from draftwood.models import recurrent_walk
from draftwood.models.checkpoints import checkpoint
from draftwood.models.layers import experts
from draftwood.models.layers.experts import Experts
from draftwood.models.recurrent_walk import Walk

METHODS = (
    {"name": "mcsd", "tree": [2, 1, 1]},
    {"name": "speculative-beam-search", "draft_width": 4, "width": 2, "gamma": 2},
)
MUTATIONS: dict[str, tuple[str, Any, Any, str, str, str]] = {  # model, place and function, what becomes what
    "a state from the wrong parent": (
        "qwen3_5",
        recurrent_walk,
        Walk,
        "of",
        "parent = known\n",
        "parent = max(0, known - 1)\n",
    ),
    "a state that is not folded": (
        *("qwen3_5", recurrent_walk, Walk, "of", "in reversed(back):"),
        "in reversed([one for one in back if one[0] in rows]):",
    ),
    "a row with another's experts": (
        *("qwen3_moe", experts, Experts, "_mixed", "self.experts[number](own[None])[0] * weight"),
        "self.experts[number](own.flip(0)[None])[0] * weight",
    ),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model and a draft model; right rules pass on it."""

    @cache
    def written(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        write(place / "target", name)
        write(place / "draft", "qwen2", num_hidden_layers=1)
        assert verdicts(place) == ["PASS", "PASS"]
        return place

    return written


def verdicts(place: Path) -> list[str]:
    """Of greedy texts by drafts of another model, which are compared with plain decoding's."""
    target = checkpoint.load(place / "target", "float64", packed=False)
    engine = Engine(target, [checkpoint.load(place / "draft", "float64", packed=False)])
    pair = ModelPair(engine, [PROMPT, PROMPT[:5]], budget=Budget(max_new_tokens=24))
    return [greedy_check(pair, Method.parse(method), lambda: None).verdict for method in METHODS]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_another_rows_is_found(mutation: str, pairs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, module, owner, function, old, new = MUTATIONS[mutation]
    place = pairs(name)
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert source.count(old) == 1
    names = dict(vars(module))
    exec(source.replace(old, new).replace("@classmethod", ""), names)
    method = classmethod(names[function]) if isinstance(vars(owner)[function], classmethod) else names[function]
    monkeypatch.setattr(owner, function, method)
    assert "FAIL" in verdicts(place)
