"""The model class for the evaluation harness, against a stand-in with the two things of it that the class uses."""

from __future__ import annotations

import importlib
import math
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import draftwood
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, RequestError

NAME = "draftwood.integrations.lm_eval"


class LM:
    """The harness's base class, as far as it matters."""

    def __init__(self) -> None:
        self.cache_hook = SimpleNamespace(add_partial=lambda *entry: self.cached.append(entry))
        self.cached: list[Any] = []


@pytest.fixture(scope="module")
def engine() -> Engine:
    return draftwood.load()


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    registered: dict[str, Any] = {}

    def register_model(name: str) -> Any:
        return lambda made: registered.setdefault(name, made)

    for name, values in (("lm_eval", {}), ("lm_eval.api", {}), ("lm_eval.api.model", {"LM": LM})):
        monkeypatch.setitem(sys.modules, name, _module(name, **values))
    registry = _module("lm_eval.api.registry", register_model=register_model)
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", registry)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    found = importlib.import_module(NAME)
    assert registered == {"draftwood": found.Draftwood}
    yield found
    sys.modules.pop(NAME, None)


def _module(name: str, **values: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(values)
    return made


def asked(*args: Any) -> Any:
    return SimpleNamespace(args=args)


def test_the_entry_point_is_the_model(harness: Any) -> None:
    """Versions of the harness that look for models of other packages find it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    ((name, place),) = project["entry-points"]["lm_eval.models"].items()
    assert name == harness.MODEL
    assert EntryPoint(name, place, "lm_eval.models").load() is harness.Draftwood


PROMPT = "Once upon a time there was a"


def test_texts_are_the_engine_s(harness: Any, engine: Engine) -> None:
    model = harness.Draftwood(engine=engine, method="speculative", gamma=3, batch_size="auto:4")
    assert model.method.as_dict()["gamma"] == 3
    requests = [
        asked(PROMPT, {"until": ["."], "max_gen_toks": 12, "do_sample": False}),
        asked("Question: What is 3 plus 4?", {"until": "\n", "max_gen_toks": 8}),
        asked(PROMPT, {"do_sample": True, "temperature": 1.0, "top_k": 4, "max_gen_toks": 6}),
    ]
    texts = model.generate_until(requests)
    for text, (prompt, stop, limit, sampling) in zip(
        texts,
        [
            (PROMPT, ".", 12, {"temperature": 0}),
            ("Question: What is 3 plus 4?", "\n", 8, {"temperature": 0}),
            (PROMPT, (), 6, {"temperature": 1.0, "top_k": 4}),
        ],
        strict=True,
    ):
        assert text == engine.generate(prompt, model.method, sampling, limit, stop=stop).text
    assert len(model.cached) == 3
    with pytest.raises(RequestError, match="'penalty_alpha'"):
        model.generate_until([asked(PROMPT, {"penalty_alpha": 1})])


def test_likelihoods_are_those_of_decoding(harness: Any, engine: Engine) -> None:
    """A greedy continuation has the log-probabilities that decoding tells, and is recognised as greedy."""
    model = harness.Draftwood(engine=engine, batch_size=2)
    result = engine.generate(PROMPT, "autoregressive", {"temperature": 0}, 5)
    text = result.text
    both = model.loglikelihood([asked(PROMPT, text), asked(PROMPT, " zebra zebra"), asked("", PROMPT)])
    assert engine.tokens(PROMPT + text) == result.prompt_tokens + result.tokens  # else the two are not comparable
    assert both[0] == (pytest.approx(sum(result.logprobs), abs=1e-4), True)
    assert both[1][0] < both[0][0] and not both[1][1]
    inside, behind = model.loglikelihood([asked(PROMPT, " dog ran"), asked(PROMPT + " ", "dog ran")])
    assert behind == (pytest.approx(inside[0], abs=1e-4), inside[1])
    (whole,) = model.loglikelihood_rolling([asked(PROMPT)])
    assert whole == pytest.approx(both[2][0], abs=1e-4) and -1000 < whole < 0


def test_long_texts(harness: Any, engine: Engine) -> None:
    """A text in windows: more context for every token can only be what a longer window gives."""
    model = harness.Draftwood(engine=engine, max_length=16)
    text = PROMPT * 4
    (short,) = model.loglikelihood_rolling([asked(text)])
    assert math.isfinite(short)
    whole = harness.Draftwood(engine=engine).loglikelihood_rolling([asked(text)])[0]
    assert short < whole
    ((score, _),) = model.loglikelihood([asked(text, " a")])
    assert math.isfinite(score)
    assert isinstance(model.generate_until([asked(text, {"max_gen_toks": 6})])[0], str)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
def test_windows_score_each_token_once(harness: Any, length: int) -> None:
    tokens = list(range(length))
    scored = []
    for window, count in harness.rolling(tokens, 8):
        assert len(window) <= 9 and count < len(window)
        scored += window[-count:]
    assert scored == tokens[1:]


def test_bad_arguments(harness: Any, engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="name the method too"):
        harness.Draftwood(engine=engine, gamma=3)
    with pytest.raises(ConfigurationError, match="did you mean"):
        harness.Draftwood(engine=engine, method="speculatve")


def test_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for name in [name for name in sys.modules if name.startswith("lm_eval.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    with pytest.raises(ConfigurationError, match=r"draftwood\[lm-eval\]"):
        importlib.import_module(NAME)
