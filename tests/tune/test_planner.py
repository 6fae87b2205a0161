"""The planner's formulas against pilots of known costs, and its whole run on tabular models and tiny checkpoints."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch

from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.core.shape import Shape
from draftwood.errors import ConfigurationError, RequestError
from draftwood.tune.observation import Observation, rate
from draftwood.tune.planner import Choice, MethodPlan, Predictor, plan
from draftwood.tune.planner.prediction import Prediction, by_depth, by_place, chain_steps, interval, whole
from draftwood.tune.shapes import Cost

TARGET = Cost({1: 1.0, 2: 1.1, 8: 1.4, 32: 2.6})
DRAFT = Cost({1: 0.1, 8: 0.12, 32: 0.2})
PER_ROUND, PER_LAYER, PER_NODE = 0.05, 0.03, 0.01  # seconds that are no forward
ALPHA = 0.7  # every sibling's chance to be accepted where it is met
TOKENS = 60


def round_costs(tree: tuple[int, ...]) -> tuple[float, float, float]:
    """Seconds of drafting, of verifying and of all else in a round, as this imaginary machine has them."""
    layers = Shape(tree).layers
    nodes = sum(layers) - 1
    draft = sum(DRAFT(rows) for rows in layers[:-1])
    return draft, TARGET(nodes + 1), PER_ROUND + PER_LAYER * len(tree) + PER_NODE * nodes


def generation(tree: tuple[int, ...], rng: random.Random) -> Observation:
    """A simulated generation of TOKENS tokens; the opening round takes 3 seconds more."""
    draft, verify, rest = round_costs(tree)
    per_round = draft + verify + rest
    one = Observation(first=3 + per_round, met=[[0] * k for k in tree], taken=[[0] * k for k in tree])
    one.attempted, one.accepted = [0] * len(tree), [0] * len(tree)
    tokens = rounds = 0
    while tokens < TOKENS:
        length = 0
        for layer, width in enumerate(tree):
            one.attempted[layer] += 1
            place = next((i for i in range(width) if rng.random() < ALPHA), None)
            for i in range(width if place is None else place + 1):
                one.met[layer][i] += 1
            if place is None:
                break
            one.taken[layer][place] += 1
            one.accepted[layer] += 1
            length += 1
        tokens, rounds = tokens + length + 1, rounds + 1
    one.rounds, one.steps = rounds - 1, TOKENS
    one.draft, one.verify, one.overhead = one.rounds * draft, one.rounds * verify, one.rounds * rest
    one.forwards = one.rounds * len(tree)
    one.nodes = one.rounds * (Shape(tree).rows - 1)
    one.rows = one.rounds * Shape(tree).rows
    one.seconds = one.first + one.rounds * per_round
    return one


def ratio(own: list[Observation], without: Sequence[Observation]) -> float:
    return rate(own) / rate(without)


def pilots(tree: tuple[int, ...], count: int = 60, seed: int = 1) -> list[Observation]:
    rng = random.Random(seed)
    return [generation(tree, rng) for _ in range(count)]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(TARGET, DRAFT, pilots(()), pilots((1,) * 5), pilots((3, 2, 1)))


@pytest.mark.parametrize("gamma", [1, 2, 4, 5, 7])
def test_chains_are_predicted(predictor: Predictor, gamma: int) -> None:
    simulated = ratio(pilots((1,) * gamma, 200, 9), predictor.plain)
    found = predictor.line(gamma, predictor.chain, predictor.plain)
    assert found.speed_up == pytest.approx(simulated, rel=0.04)
    assert found.round_seconds == pytest.approx(sum(round_costs((1,) * gamma)), rel=0.02)


@pytest.mark.parametrize("tree", [(1,), (2, 1), (3, 2, 1), (4, 2, 2), (2, 2, 1, 1)])
def test_trees_are_predicted(predictor: Predictor, tree: tuple[int, ...]) -> None:
    simulated = ratio(pilots(tree, 200, 9), predictor.plain)
    found = predictor.shape(Shape(tree))
    assert found.speed_up == pytest.approx(simulated, rel=0.05)
    assert found.round_seconds == pytest.approx(sum(round_costs(tree)), rel=0.03)


def test_the_best_settings_are_the_simulations(predictor: Predictor) -> None:
    """Of all chains none is clearly faster than the one that is chosen; so for trees."""
    depth = predictor.best_depth(8, predictor.chain, predictor.plain)
    speeds = {gamma: ratio(pilots((1,) * gamma, 100, 3), predictor.plain) for gamma in range(1, 9)}
    assert speeds[depth] > 0.97 * max(speeds.values())
    best = ratio(pilots(predictor.best_shape(32, 6).tree, 100, 3), predictor.plain)
    others = [(1,) * 4, (2, 1, 1), (2, 2, 1, 1), (4, 2, 1), (3, 1, 1, 1, 1), (2, 2, 2)]
    assert best > 0.97 * max(ratio(pilots(tree, 100, 3), predictor.plain) for tree in others)


def test_an_exit_verifies_its_share(predictor: Predictor) -> None:
    """Drafts that leave 0.8 of the target's layers to verification."""

    def exits(gamma: int, count: int, seed: int) -> list[Observation]:
        found = pilots((1,) * gamma, count, seed)
        for one in found:
            saved = 0.2 * one.verify
            one.verify, one.seconds, one.first = one.verify - saved, one.seconds - saved, one.first
        return found

    pilot = exits(4, 60, 5)
    predicted = predictor.line(2, pilot, predictor.plain, resumes=True)
    assert predicted.speed_up == pytest.approx(ratio(exits(2, 200, 6), predictor.plain), rel=0.04)


def test_intervals_hold_what_is_predicted(predictor: Predictor) -> None:
    value = predictor.line(3, predictor.chain, predictor.plain).speed_up
    few = Predictor(TARGET, DRAFT, predictor.plain[:4], predictor.chain[:4])

    def width(one: Predictor, count: int) -> float:
        low, high = interval(count, lambda some: _line(one.resampled(some)))
        assert low <= _line(one) <= high
        return high - low

    low, high = interval(60, lambda some: _line(predictor.resampled(some)))
    assert low < value < high
    assert width(few, 4) > 1.5 * (high - low)


def _line(predictor: Predictor) -> float:
    return predictor.line(3, predictor.chain, predictor.plain).speed_up


def test_parts() -> None:
    assert chain_steps([0.5], 3) == 1.875 and chain_steps([], 3) == 1.0 and chain_steps([0.5, 0.2], 2) == 1.6
    found = [Observation(attempted=[4, 2], accepted=[2, 1]), Observation(attempted=[4], accepted=[4])]
    assert by_depth(found) == [0.75, 0.5]
    assert by_place([Observation(met=[[6, 2]], taken=[[4, 1]])]) == [[0.625, 0.5]]
    assert whole(10, 2.0, 0.5, 1.0) == pytest.approx(6.5)  # nine more rounds of one token
    # two tokens a round: of an even rest 4 rounds, of an odd one 5 with one token to spare
    assert whole(10, 0.0, 1.0, 2.0) == pytest.approx(4.25)


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
        ("dsbd", "beam-sampling"),
    ]
    for one in found.choices:
        assert one.measured is not None and one.measured_interval is not None
        assert 0 < one.interval[0] <= one.interval[1]
        assert one.measured_interval[0] <= one.measured <= one.measured_interval[1]
        assert one.error == pytest.approx(one.predicted.speed_up / one.measured - 1)
    assert len(found.acceptance_by_depth) == 5 and all(0 <= a <= 1 for a in found.acceptance_by_depth)
    assert found.prompts >= 2 and found.checked_prompts >= 2
    assert {"cost of K rows", "check, prompt 1: speculative"} <= set(told)
    assert any(note.startswith("eesd is left out") for note in found.notes)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_greedy_plan_has_no_beams() -> None:
    target = TabularModel.random(8, seed=5, order=2)
    found = plan(Engine(target, [resembling(target, 8)]), [[1, 2]], SamplingParams(temperature=0), 0.1, 10)
    assert [one.method.name for one in found.choices] == ["speculative", "mcsd"]


def test_what_cannot_be_planned() -> None:
    target = TabularModel.random(4, seed=5)
    with pytest.raises(ConfigurationError, match="nothing to plan"):
        plan(Engine(target), [[1]], None, 0.1, 8)
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


@pytest.mark.parametrize("after", [12, 26])
def test_an_interrupted_plan_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in the pilots, once each has seen a prompt, and in the check."""
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
    assert [one.method.name for one in found.choices] == ["speculative", "mcsd", "dsbd"]
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


def test_the_command(tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from draftwood.cli.main import run

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon\n\nthe rain in\n", "utf-8")
    out = tmp_path / "method.json"
    with pytest.raises(SystemExit) as left:
        run(["plan", *tiny, "--prompts", str(prompts), "--seconds", "0.3", "--max-new-tokens", "8", "--out", str(out)])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert max(map(len, shown.replace(str(out), "OUT").splitlines())) <= 80
    assert all(word in shown for word in ("predicted", "measured", "recommended:", "speculative", "dsbd"))
    Method.parse(f"file:{out}")
    with pytest.raises(SystemExit):
        run(["plan", *tiny, "--prompts", str(prompts), "--seconds", "0.1", "--max-new-tokens", "4", "--json"])
    made_where = json.loads(capsys.readouterr().out)["environment"]
    assert made_where["torch"] == torch.__version__ and {"processor", "git_commit", "threads", "began"} <= {*made_where}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a pair of random models with one token per byte."""
    monkeypatch.setenv("COLUMNS", "80")
    pair = [tiny_models.write(tmp_path / role, seed=seed) for seed, role in enumerate(("target", "draft"))]
    return list(itertools.chain(*zip(("--target", "--draft"), map(str, pair), strict=True)))
