"""Measuring: forwards of K rows, runs interleaved with plain decoding, and searches over what they show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from draftwood import Engine, SamplingParams, TabularModel, load
from draftwood.errors import ConfigurationError, RequestError
from draftwood.eval.interleaved import compare
from draftwood.methods import Method
from draftwood.tune.measuring import (
    Trial,
    TuningBench,
    Workload,
    explore,
    forward_seconds,
    guide,
    row_counts,
    standings,
)
from draftwood.tune.observation import Observation
from draftwood.tune.search import Guided, pilot_shape
from draftwood.tune.spaces import SPACES, GridSearch, TPESearch, combinations


def make_bench(plain: str = "autoregressive", **options: Any) -> TuningBench:
    target = TabularModel.random(6, seed=1, order=1, sharpness=2.0)
    draft = TabularModel.random(6, seed=1, order=1, sharpness=1.5)
    work = Workload([[1, 2], [3]], SamplingParams(), 12, seed=7)
    return TuningBench(Engine(target, [draft]), work, Method.parse(plain, options))


def test_rows() -> None:
    assert row_counts(1) == [1]
    assert row_counts(2) == [1, 2]
    assert row_counts(8) == [1, 2, 4, 8]
    assert row_counts(41) == [1, 2, 4, 8, 16, 32, 41]


def test_forwards_of_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward has as many rows as asked for, behind a cached context; more rows than tokens make a tree."""
    model = TabularModel.random(5, seed=1, order=1, context=40)
    seen: list[tuple[int, int]] = []
    forward = model.forward

    def noted(batch: Any, cache: Any) -> Any:
        seen.append((len(batch.tokens), batch.segments[0].span))
        return forward(batch, cache)

    monkeypatch.setattr(model, "forward", noted)
    found = forward_seconds(model, [1, 4, 13], 20, repeats=3)
    assert list(found) == [1, 4, 13] and all(seconds > 0 for seconds in found.values())
    assert seen[0] == (20, 20)
    assert seen[1:] == [(1, 21), (4, 24), (13, 33)] * 4  # one pass to warm up
    forward_seconds(model, [1, 13], 10_000, repeats=1)  # a context that the model has not: cut


def test_runs_are_interleaved_on_the_same_prompts_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    calls: list[tuple[str, tuple[int, ...], int, int]] = []
    generate = bench.engine.generate

    def noted(prompt: Any, method: Any, sampling: Any, limit: int, seed: int) -> Any:
        calls.append((method.name, tuple(prompt), limit, seed))
        return generate(prompt, method, sampling, limit, seed)

    monkeypatch.setattr(bench.engine, "generate", noted)
    method = Method.parse("mcsd", {"tree": (2, 1)})
    trial = bench.run(method)
    assert [call for call in calls if call[2] == 12] == [
        ("mcsd", (1, 2), 12, 7),
        ("autoregressive", (1, 2), 12, 7),
        ("autoregressive", (3,), 12, 7),
        ("mcsd", (3,), 12, 7),
    ]
    assert calls[0][2] == calls[1][2] == 8  # new methods warm up
    assert trial.own.tokens == trial.plain.tokens == 24 == trial.plain.verifications > trial.own.verifications
    assert len(trial.gains) == 2 and len(trial.own.met) == 2 and len(trial.own.met[0]) == 2
    met, taken = trial.own.met[0], trial.own.taken[0]
    assert met[0] == sum(taken) + met[1] - taken[1]
    assert trial.speed_up == pytest.approx(trial.plain.seconds / trial.own.seconds)
    calls.clear()
    bench.run(method)
    assert {call[3] for call in calls} == {8} and len(calls) == 4  # again: other draws, and no warming up
    with pytest.raises(RequestError, match="no prompts"):
        TuningBench(bench.engine, Workload([], SamplingParams()), method)


def test_whatever_is_measured_reads_its_prompt() -> None:
    """Else the first method reads it for all others; afterwards requests reuse it again."""
    engine = load()
    prefixes, prompt = (
        engine.scheduler.prefixes,
        engine.tokens("Once upon a time there was a little fox who lived in a wood. " * 3),
    )
    for _ in range(2):
        engine.generate(prompt, max_new_tokens=2)
    taken = prefixes.hits
    assert taken > 0
    compare(engine, prompt, "speculative", repeat=1, max_new_tokens=4)
    TuningBench(engine, Workload([prompt], SamplingParams(), 4, seed=7), Method.parse("autoregressive", {})).run(
        Method.parse("speculative", {})
    )
    first, second = prefixes.off(), prefixes.off()  # of two threads, say
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
        step()
    engine.generate(prompt, max_new_tokens=2)
    assert prefixes.hits == taken
    second.__exit__(None, None, None)
    assert engine.generate(prompt, max_new_tokens=2).metrics.reused_tokens > 0


def test_a_guided_search_on_an_engine() -> None:
    bench = make_bench()
    search = Guided(pilot_shape(9, 3), *bench.costs(9), 9, 3)
    told: list[tuple[int, Method]] = []
    guide(bench, search, 4, {"verify": "coupled"}, lambda run, method: told.append((run, method)))
    assert [run for run, _ in told] == [0, 1, 2, 3] and len(bench.trials) == 4
    assert all(trial.method["verify"] == "coupled" for trial in bench.trials)
    assert [trial.predicted is None for trial in bench.trials] == [True, False, False, False]
    assert sum(map(len, search.runs.values())) == 4


@dataclass
class Imagined:
    """A bench in which speed and quality are functions of the options."""

    trials: list[Trial] = field(default_factory=list)

    def run(self, method: Method) -> Trial:
        values = method.as_dict()
        speed = 2.0 - 0.05 * abs(values["draft_width"] - 4) - 0.1 * abs(values["gamma"] - 3) + 0.1 * values["threshold"]
        gain = 0.5 - values["threshold"] + 0.05 * values["min_width"]  # fast settings are bad ones
        trial = Trial(
            values,
            Observation(seconds=1.0 / speed, tokens=100, verifications=50),
            Observation(seconds=1.0, tokens=100, verifications=100),
            gains=[gain, gain],
        )
        self.trials.append(trial)
        return trial


def test_speed_subject_to_quality() -> None:
    options = {key: SPACES["dsbd"][key] for key in ("draft_width", "gamma", "threshold", "min_width")}

    def best(tolerance: float) -> dict[str, Any]:
        imagined = Imagined()
        explore(imagined, "dsbd", TPESearch(options, 3, 60, {}), 60, {}, tolerance)  # type: ignore[arg-type]
        assert len(imagined.trials) == 60
        one = standings(imagined.trials, tolerance)[0]
        assert -one.gain <= tolerance
        return one.method.as_dict()

    free, kept = best(float("inf")), best(0.1)
    assert free["threshold"] > kept["threshold"] - 0.05 * kept["min_width"] + 0.05
    assert abs(kept["draft_width"] - 4) <= 2 and abs(kept["gamma"] - 3) <= 1


def test_the_least_bad_where_none_is_good_enough_and_repeats() -> None:
    imagined = Imagined()
    values = combinations({"threshold": (0.8, 0.9), "min_width": (1, 2)})
    explore(imagined, "dsbd", GridSearch(values, 1), 10, {"gamma": 3}, 0.0)  # type: ignore[arg-type]
    ranked = standings(imagined.trials, 0.0)
    assert len(ranked) == 4 and len(imagined.trials) == 10
    assert ranked[0].method.as_dict()["threshold"] == 0.8 and ranked[0].method.as_dict()["min_width"] == 2
    assert len(ranked[0].trials) == 7 and ranked[0].gain_error == 0.0  # what is left of the budget goes to the best
    assert ranked[0].gain == pytest.approx(-0.2)


def test_values_that_do_not_go_together_are_passed_over() -> None:
    imagined = Imagined()
    values = combinations({"draft_width": (2, 6), "min_width": (3, 1)})
    explore(imagined, "dsbd", GridSearch(values, 0), 3)  # type: ignore[arg-type]
    assert len({Method.parse(trial.method) for trial in imagined.trials}) == 3
    with pytest.raises(ConfigurationError, match="draft_width"):
        explore(Imagined(), "dsbd", TPESearch({"min_width": (7, 8)}, 0, 2, {}), 2)  # type: ignore[arg-type]


def test_a_repeat_has_its_own_seeds_wherever_it_runs() -> None:
    method = Method.parse("mcsd", {"tree": (2, 1)})
    one, other = make_bench(), make_bench()
    runs = [one.run(method), one.run(method)]
    again = other.run(method, repeat=1)
    assert again.own.met == runs[1].own.met and again.gains == runs[1].gains
    assert runs[0].gains != runs[1].gains
