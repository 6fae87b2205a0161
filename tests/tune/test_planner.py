"""The planner's race and check on a clockwork, and its whole run on tabular models and tiny checkpoints."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import tiny_models
import torch

import draftwood
from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import RequestError
from draftwood.tune.observation import Observation
from draftwood.tune.planner import Choice, MethodPlan, Prediction, interval, plan

SPEEDS = {
    "autoregressive": 1.0,
    "speculative": 0.4,
    "mcsd": 0.3,
    "eesd": 0.2,
    "lookup": 0.6,
    "beam-sampling": 0.5,
    "dsbd": 0.1,
}


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Generations take the time that is given for them: chains are fastest with gamma 3, trees with most layers."""
    now = {"time": 0.0, "runs": []}

    def one(runs: Any, method: Method, number: int, limit: int | None = None, again: bool = False) -> Observation:
        options = method.as_dict()
        seconds = SPEEDS[method.name] * (1 + abs(options["gamma"] - 3) if method.name == "speculative" else 1)
        seconds /= len(options["tree"]) if method.name == "mcsd" else 1
        now["time"] += seconds
        now["runs"].append((method, number, limit, again))
        return Observation(seconds=seconds, tokens=4, steps=4, verifications=2, rounds=1, width=2.0)

    monkeypatch.setattr("draftwood.tune.planner._Runs.one", one)

    def clock() -> float:
        now["time"] += 1e-6
        return now["time"]

    monkeypatch.setattr("draftwood.tune.planner.perf_counter", clock)
    monkeypatch.setattr("draftwood.tune.planner.forward_seconds", lambda model, rows, *_: dict.fromkeys(rows, 1e-9))
    return now


def engine_of_two() -> Engine:
    target = TabularModel.random(12, seed=5, order=2, sharpness=2)
    return Engine(target, [resembling(target, 12)])


def test_the_fastest_settings_of_each_kind_win(clockwork: dict[str, Any]) -> None:
    found = plan(engine_of_two(), [[1, 2], [3, 4, 5], [2]], None, 200.0, 12)
    chain, tree, _, beams = found.choices
    assert chain.method.as_dict()["gamma"] == 3 and chain.predicted.speed_up == chain.measured == pytest.approx(2.5)
    assert len(tree.method.as_dict()["tree"]) == 5 and tree.measured == pytest.approx(1 / 0.06)
    assert beams.reference.as_dict()["width"] == 2 and beams.measured == pytest.approx(5.0)
    raced = [(method, number) for method, number, limit, again in clockwork["runs"] if limit is None and not again]
    counts = [len({m for m, n in raced if n == number and m.name == "speculative"}) for number in range(4)]
    assert counts == [6, 3, 2, 1]  # the slower half is left out after each prompt
    assert found.best is tree and found.prompts == found.checked_prompts == 12


def test_where_time_is_short_later_settings_are_not_begun(clockwork: dict[str, Any]) -> None:
    found = plan(engine_of_two(), [[1, 2], [3]], None, 0.001, 12)
    raced = {method for method, _, limit, again in clockwork["runs"] if limit is None and not again}
    assert [sum(method.name == name for method in raced) for name in ("speculative", "mcsd", "dsbd")] == [1, 1, 1]
    assert found.prompts == found.checked_prompts == 2


def test_intervals_hold_the_value_and_are_wider_for_few_prompts() -> None:
    rng = random.Random(1)
    values = [rng.gauss(3.0, 1.0) for _ in range(60)]
    low, high = interval(60, lambda some: fmean(values[i] for i in some))
    assert low < fmean(values) < high
    wide = interval(6, lambda some: fmean(values[i] for i in some))
    assert wide[1] - wide[0] > 1.5 * (high - low)


def resembling(target: TabularModel, vocab: int) -> TabularModel:
    noise = TabularModel.random(vocab, 6)
    return TabularModel(
        lambda prefix: [a + 0.5 * b for a, b in zip(target.law(prefix), noise.law(prefix), strict=True)], vocab
    )


def test_a_plan_of_tabular_models() -> None:
    target = TabularModel.random(12, seed=5, order=2, sharpness=2)
    told: list[str] = []
    engine = Engine(target, [resembling(target, 12)])
    found = plan(engine, [[1, 2], [3, 4, 5]], None, 0.2, 12, on_progress=lambda what, share: told.append(what))
    kinds = [(one.method.name, one.reference.name) for one in found.choices]
    assert kinds == [
        ("speculative", "autoregressive"),
        ("mcsd", "autoregressive"),
        ("lookup", "autoregressive"),
        ("dsbd", "beam-sampling"),
    ]
    for one in found.choices:
        assert one.measured is not None and one.measured_interval is not None
        assert 0 < one.interval[0] <= one.interval[1]
        assert one.measured_interval[0] <= one.measured <= one.measured_interval[1]
        assert one.error == pytest.approx(one.predicted.speed_up / one.measured - 1)
    assert found.acceptance_by_depth and all(0 <= a <= 1 for a in found.acceptance_by_depth)
    assert found.prompts >= 2 and found.checked_prompts >= 2
    assert {"cost of K rows", "check, prompt 1: speculative"} <= set(told)
    assert any(note.startswith("eesd is left out") for note in found.notes)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_greedy_plan_has_no_beams() -> None:
    target = TabularModel.random(8, seed=5, order=2)
    found = plan(Engine(target, [resembling(target, 8)]), [[1, 2]], SamplingParams(temperature=0), 0.1, 10)
    assert [one.method.name for one in found.choices] == ["speculative", "mcsd", "lookup"]


def test_a_plan_without_a_draft() -> None:
    target = TabularModel.random(8, seed=5, order=2)
    found = plan(Engine(target), [[1, 2, 1, 2]], None, 0.1, 10)
    assert [one.method.name for one in found.choices] == ["lookup"]
    assert "self-spec is left out: `draftwood tune skip` makes what it drafts with" in found.notes
    assert any("`draftwood train draft`" in note for note in found.notes)


def test_a_plan_with_what_lies_beside_the_target() -> None:
    engine = draftwood.load(EMBEDDED / "target", draft=[])
    found = plan(engine, [engine.tokens("Story: In Corfe")], SamplingParams(temperature=0), 0.2, 8)
    assert [one.method.name for one in found.choices] == ["eesd", "eagle", "medusa", "self-spec", "lookup"]


def test_what_cannot_be_planned() -> None:
    target = TabularModel.random(4, seed=5)
    with pytest.raises(RequestError, match="no prompts"):
        plan(Engine(target, [target]), [], None, 0.1, 8)


def made(speeds: list[float | None]) -> MethodPlan:
    plain = Method.parse("autoregressive")
    methods = [Method.parse({"name": "speculative", "gamma": 1 + i}) for i in range(len(speeds))]
    choices = [
        Choice(method, plain, Prediction(1.5, 2.0, 1.0), (1.4, 1.6), speed)
        for method, speed in zip(methods, speeds, strict=True)
    ]
    beams = Choice(
        Method.parse("dsbd"), Method.parse({"name": "beam-sampling"}), Prediction(9.0, 2.0, 1.0), (9.0, 9.0), 9.0
    )
    return MethodPlan([*choices, beams], 0.2, [0.5], {1: 1.0, 8: 2.0}, {1: 0.1}, 10.0, 4, 4, 1.0)


@pytest.mark.parametrize("after", [13, 29])
def test_an_interrupted_plan_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in the race, once every kind has seen a prompt, and in the check."""
    target = TabularModel.random(12, seed=5, order=2, sharpness=2)
    engine = Engine(target, [resembling(target, 12)])
    generate, calls = engine.generate, iter(range(1000))

    def stopped(*arguments: Any) -> Any:
        if next(calls) == after:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(engine, "generate", stopped)
    found = plan(engine, [[1, 2], [3, 4, 5]], None, 0.001, 12)
    assert found.interrupted and found.prompts >= 1
    assert [one.method.name for one in found.choices] == ["speculative", "mcsd", "lookup", "dsbd"]
    assert all((one.measured is None) == (found.checked_prompts == 0) for one in found.choices)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_plan_that_found_nothing_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TabularModel.random(12, seed=5, order=2, sharpness=2)
    engine = Engine(target, [resembling(target, 12)])
    generate, calls = engine.generate, iter(range(1000))

    def stopped(*arguments: Any) -> Any:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(engine, "generate", stopped)
    with pytest.raises(KeyboardInterrupt):
        plan(engine, [[1, 2]], None, 0.001, 12)


def test_recommendations() -> None:
    """The fastest as measured with one hypothesis; nothing where it gains too little, whatever was predicted."""
    for speeds, best in (([1.2, 1.4, 1.1], 1), ([0.7, 1.02], None), ([1.2, None], 1)):
        made_plan = made(list(speeds))
        assert made_plan.best is (None if best is None else made_plan.choices[best])


def test_the_command(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood.cli.main import run

    monkeypatch.setattr("draftwood.cli.plan.SETTINGS_SHARE", 0.8)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon\n\nthe rain in\n", "utf-8")
    out = tmp_path / "method.json"
    with pytest.raises(SystemExit) as left:
        run(["plan", *tiny, "--prompts", str(prompts), "--seconds", "1", "--max-new-tokens", "8", "--out", str(out)])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert max(map(len, shown.replace(str(out), "OUT").splitlines())) <= 80
    words = "predicted", "measured", "recommended:", "recommended options:", "speculative", "dsbd", "as loaded"
    assert all(word in shown for word in words) and torch.get_num_threads() == 1
    Method.parse(f"file:{out}")
    with pytest.raises(SystemExit):
        run(["plan", *tiny, "--prompts", str(prompts), "--seconds", "0.1", "--max-new-tokens", "4", "--json"])
    document = json.loads(capsys.readouterr().out)
    made_where = document["environment"]
    assert document["settings"][0]["weights"] == "" and isinstance(document["recommended_options"], list)
    assert made_where["torch"] == torch.__version__ and {"processor", "git_commit", "threads", "began"} <= {*made_where}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a pair of random models with one token per byte."""
    monkeypatch.setenv("COLUMNS", "80")
    pair = [tiny_models.write(tmp_path / role, seed=seed) for seed, role in enumerate(("target", "draft"))]
    return list(itertools.chain(*zip(("--target", "--draft"), map(str, pair), strict=True)))
