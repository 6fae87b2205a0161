"""Recordings for decision models, against laws that are computed from the rounds' trees, token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
from enumeration import slow_warp

from draftwood import ConfigurationError, Engine, GenerationResult, SamplingParams, TabularModel
from draftwood.depth.decision import DecisionKind
from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
from draftwood.train.decisions import record

VOCAB, END, NEW, TOP = 5, frozenset({0}), 24, 3
TARGET = TabularModel.random(VOCAB, seed=11, order=3)
DRAFTS = [TabularModel.random(VOCAB, seed=seed, order=2) for seed in (12, 13)]
PROMPTS = [[1, 2, 1, 2], [3], [4, 2, 2], [2, 4], [1, 3, 3], [4], [2, 1, 1, 3]]
METHODS: list[dict[str, Any]] = [
    {"name": "speculative", "gamma": 3},
    {"name": "mcsd", "tree": [3, 2]},
    {"name": "mcsd", "tree": [3, 2], "replacement": True},
    {"name": "specinfer", "expansion": [2, 1, 1]},
    {"name": "mcsd-fork", "width": 3, "gamma": 3},
    {"name": "mcsd-fork", "width": 3, "gamma": 3, "verify": "coupled"},
]
NAMES = ["chain", "tree", "tree-iid", "expansion", "fork", "fork-coupled"]
Example = tuple[list[float], float]


def law(model: TabularModel, prefix: list[int], params: SamplingParams) -> list[float]:
    return slow_warp([math.log(weight) for weight in model.law(tuple(prefix))], params)


def examples_of(result: GenerationResult, kind: DecisionKind, drawn: bool, params: SamplingParams) -> list[Example]:
    """The judged drafts of a generation: down the accepted path, siblings up to the accepted one."""
    found: list[Example] = []
    text = list(result.prompt_tokens)
    for round_ in result.rounds:
        depth = [0]
        for parent in round_.forest_parent[1:]:
            depth.append(depth[parent] + 1)
        limit = NEW - (len(text) - len(result.prompt_tokens)) - 1
        prefix = text[:-1]
        for node, after in zip(round_.forest_path, [*round_.forest_path[1:], None], strict=True):
            prefix.append(round_.forest_token[node])
            if depth[node] + 1 == limit:
                break  # the end of the request ended this drafting, so that no controller was asked after it
            q = law(DRAFTS[0], prefix, SamplingParams())
            if kind == "hidden":  # a tabular model shows the logarithms of its weights
                features = [math.log(weight) for weight in DRAFTS[0].law(tuple(prefix))]
            else:
                features = [*sorted(q, reverse=True)[:TOP], -sum(x * math.log(x) for x in q)]
            for child in [i for i, parent in enumerate(round_.forest_parent) if parent == node]:
                x = round_.forest_token[child]
                label = float(child == after)
                if kind == "hidden" and drawn:
                    label = min(1.0, law(TARGET, prefix, params)[x] / law(DRAFTS[0], prefix, params)[x])
                if params.greedy:
                    assert label == law(TARGET, prefix, params)[x]
                found.append((features, label))
                if child == after:
                    break
        text += round_.tokens
    return found


@pytest.mark.some(13)
@pytest.mark.parametrize("kind", ["hidden", "output"])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_labels_and_features_are_those_of_judged_drafts(
    method: dict[str, Any], temperature: float, kind: DecisionKind
) -> None:
    engine = Engine(TARGET, DRAFTS[:1], end_tokens=END)
    examples = record(engine, PROMPTS, kind, method, [temperature], NEW, TOP, seed=5)
    features, labels, prompts = examples.tensors()
    assert examples.draft == fingerprint(DRAFTS[0])
    params = SamplingParams(temperature=temperature)
    drawn = temperature > 0 and method.get("verify") != "coupled"
    expected: list[Example] = []
    for number, prompt in enumerate(PROMPTS):
        result = engine.generate(prompt, method, params, NEW, seed=5 + number)
        wanted = examples_of(result, kind, drawn, params)
        mine = prompts == number
        assert len(wanted) == int(mine.sum())
        for row, label, (feature, value) in zip(features[mine].tolist(), labels[mine].tolist(), wanted, strict=True):
            assert row == pytest.approx(feature, abs=1e-5)
            assert label == pytest.approx(value, abs=1e-5)
        expected += wanted
    assert len(expected) > 15
    assert 0 < sum(label for _, label in expected) < len(expected)


def test_prompts_at_several_temperatures_are_one_group() -> None:
    engine = Engine(TARGET, DRAFTS[:1])
    ended: list[tuple[int, int]] = []
    examples = record(
        engine, PROMPTS, "output", "mcsd-fork", [1.0, 0.0], 12, progress=lambda done, of: ended.append((done, of))
    )
    once = record(engine, PROMPTS, "output", "mcsd-fork", [1.0], 12)
    assert set(examples.prompts) == set(range(7))
    assert len(examples) > len(once) > 20
    assert ended == [(done, 14) for done in range(1, 15)]


def test_several_draft_models_are_one() -> None:
    """Rows of the second model too; a draft of both is judged once for each."""
    engine = Engine(TARGET, DRAFTS)
    method = {"name": "specinfer", "expansion": [1, 1]}
    examples = record(engine, PROMPTS, "output", method, [0.0], 40, TOP)
    assert examples.draft == fingerprints(DRAFTS)
    rows = [row.tolist() for row in examples.features]
    text = engine.generate(PROMPTS[0], "autoregressive", {"temperature": 0}, 40).tokens
    prefixes = [PROMPTS[0] + text[:i] for i in range(30)]
    for model in DRAFTS:
        laws = [sorted(law(model, prefix, SamplingParams()), reverse=True) for prefix in prefixes]
        best = {tuple(round(x, 4) for x in each[:TOP]) for each in laws}
        assert any(tuple(round(x, 4) for x in row[:TOP]) in best for row in rows)
    with pytest.raises(ConfigurationError, match="one draft model"):
        record(engine, PROMPTS, "hidden", method)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("autoregressive", "not recorded with method autoregressive"),
        ("lookup", "not recorded with method lookup"),
        ("dsbd", "not recorded with method dsbd"),
        ({"name": "mcsd-fork", "verify": "longest"}, "mcsd-fork is lossy as it is set"),
        ({"name": "mcsd", "initial": 2}, "mcsd is lossy as it is set"),
    ],
    ids=["autoregressive", "lookup", "dsbd", "longest", "initial"],
)
def test_methods_that_are_refused(method: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        record(Engine(TARGET, DRAFTS[:1]), PROMPTS, "output", method)
