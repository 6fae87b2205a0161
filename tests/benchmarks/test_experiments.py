"""Every experiment can be run, a run that was stopped goes on, and what is measured is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bench import Bench
from benchmarks.execute import chosen, execute
from benchmarks.experiment import HERE, Experiment, ExperimentRun, find, load
from benchmarks.kinds import peers, source_choice
from benchmarks.kinds.methods import MethodEntry, Methods, expanded
from benchmarks.kinds.serving import Serving
from benchmarks.pages.tables import documents
from benchmarks.pairs import GROWN_REAL, PAIRS, RANDOM, REAL, Pair, pair
from draftwood.depth import CONTROLLERS
from draftwood.depth.auto import Auto
from draftwood.errors import ConfigurationError
from draftwood.eval import provenance
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams

EXPERIMENTS = sorted((HERE / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_declares_what_can_be_run(path: Path) -> None:
    experiment = load(path)
    for run in experiment.runs.values():
        assert run.pair in {*PAIRS, *REAL, *GROWN_REAL, *RANDOM}
        for smoke in (False, True):
            kind = experiment.measure(run, smoke)
            if isinstance(kind, Methods):
                for part in kind.parts.values():
                    settings = expanded(part.methods)
                    labels = {setting.label for setting in settings}
                    assert len(labels) == len(settings)
                    for setting in settings:
                        for sampling in part.sampling:
                            Method.parse(setting.method).check(SamplingParams(**sampling))
            if isinstance(kind, peers.Peers):
                assert kind.cells(pair("embedded"), 1, 64)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_committed_results_are_those_of_the_experiments_runs(path: Path) -> None:
    runs = {file.stem for file in (HERE / "results" / path.stem).glob("*.json")}
    assert runs <= {*load(path).runs} and runs == {document["run"] for document in documents(path.stem)}


def run(name: str, out: Path, models: Pair | None = None, **settings: Any) -> dict[str, Any]:
    """A tiny run of an experiment, from its YAML file's smoke settings, on the embedded pair unless given others."""
    path = find(name)
    experiment = load(path)
    run = ExperimentRun() if models else next(each for each in experiment.runs.values() if each.pair == "embedded")
    experiment = experiment.model_copy(update={"smoke": {**experiment.smoke, **settings}})
    found = execute(experiment, path, "tiny", run, out, smoke=True, models=models)
    assert json.loads((out / "tiny.json").read_text("utf-8"))["complete"] and not (out / "tiny.work").exists()
    return found


def test_the_loop_is_timed_against_a_bare_one_and_under_every_setting_and_method(tmp_path: Path) -> None:
    tables = run("engine", tmp_path)["tables"]
    assert tables["loop"][0]["ratio"]["value"] > 0
    plain = {row["setting"]: row for row in tables["plain"]}
    assert plain["greedy"]["to_greedy"]["value"] == 1 and plain["top-p .95"]["ms"]["value"] > 0
    shares = {(row["method"], row["setting"]): row for row in tables["shares"]}
    assert ("tree 4,2,2,1", "T 1") in shares and ("beam search", "T 1") in shares
    assert all(0 < row["choosing"]["value"] <= row["not_a_forward"]["value"] < 1 for row in shares.values())


@pytest.mark.slow
def test_rules_of_depth_take_turns_with_plain_decoding(tmp_path: Path) -> None:
    rows = run("draft-price", tmp_path, temperatures=[1.0])["tables"]["price"]
    rules = {row["rule"] for row in rows}
    assert {"plain", "switched", "auto", "auto, load-aware"} < rules
    assert len(rows) == 2 * 2 * len(rules)  # sources, loads
    assert all(row["tokens_per_second"]["value"] > 0 and row["best"] in rules for row in rows)
    assert all(row["to_plain"]["value"] == 1 for row in rows if row["rule"] == "plain")
    assert "switched" not in CONTROLLERS


@pytest.mark.slow
def test_types_of_weights_are_compared_with_float32_and_bfloat16(target: Path, draft: Path, tmp_path: Path) -> None:
    tables = run("quantisation", tmp_path, Pair("tiny", target, draft, tmp_path / "made"))["tables"]
    rows = {row["type"]: row for row in tables["quality"]}
    assert rows["float32"]["agreement"]["value"] == rows["bfloat16"]["to_bfloat16"]["value"] == 1
    assert rows["float32"]["kl"]["value"] == 0 < rows["bfloat16"]["kl"]["value"] < 0.1
    missing = {row["type"] for row in tables["failures"]}
    for name in {"int8", "int4"} - missing:
        assert 0.9 < rows[name]["to_bfloat16"]["value"] < 1.1 and 0.5 < rows[name]["agreement"]["value"] < 1
    assert missing <= {"int4"}


def test_forwards_of_types_and_backends_take_turns(tmp_path: Path) -> None:
    found = run("native", tmp_path, types=["float32", "int7"])
    rows = {(row["backend"], row["rows"]): row for row in found["tables"]["forwards"]}
    failed = {(row["type"], row["backend"]): row["failure"] for row in found["tables"]["failures"]}
    backend = found["environment"]["backend"]
    assert rows[backend, 1]["ms"]["value"] > 0 and rows["pytorch", "prompt"]["ms"]["value"] > 0
    assert rows["pytorch", 2]["to_pytorch"]["value"] == 1 and "'int7' is not known" in failed["int7", "pytorch"]
    assert (("float32", "native") in failed) == (backend == "pytorch") == (found["environment"]["kernels"] is None)
    assert provenance.session(torch.device("cpu"), "pytorch").items() >= {("backend", "pytorch"), ("kernels", None)}
    assert found["environment"]["instructions"] == torch.backends.cpu.get_cpu_capability()


def test_tokens_behind_long_contexts_are_timed_by_type_of_keys(tmp_path: Path) -> None:
    rows = run("contexts", tmp_path)["tables"]["contexts"]
    assert [(row["kv_dtype"], row["context"]) for row in rows] == [
        (kv_dtype, context) for context in (20, 40) for kv_dtype in ("float32", "bfloat16", "int8")
    ]
    assert all(row["ms"]["value"] > 0 for row in rows)
    float32, bfloat16, int8 = (row["bytes_per_token"] for row in rows[:3])
    assert float32 == 2 * bfloat16 and int8 < 0.6 * bfloat16


PART = {
    "sampling": [{"temperature": 1}],
    "methods": [
        {"label": "plain", "name": "autoregressive"},
        {"label": "chain {gamma}", "name": "speculative", "sweep": {"gamma": [1, 3]}},
        {"label": "lookup", "name": "lookup", "over": "chain 1"},
    ],
}


def methods(part: dict[str, Any], tasks: list[str], limit: int = 2) -> tuple[Experiment, ExperimentRun]:
    settings = {"tasks": tasks, "limit": limit, "tokens": 4, "parts": {"first": part}}
    return Experiment(title="test", kind="methods", settings=settings, runs={"one": ExperimentRun()}), ExperimentRun()


def test_methods_are_compared_in_turns_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    experiment, each = methods(PART, ["qa", "sql"])

    def stop(what: str, number: int, total: int | None) -> None:
        if number == 5 and ":" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(experiment, Path("test.yaml"), "one", each, tmp_path, on_progress=stop)
    kept = (tmp_path / "one.work" / "first-0" / "items.jsonl").read_text("utf-8").splitlines()
    assert len(kept) == 5 and not json.loads((tmp_path / "one.json").read_text("utf-8"))["complete"]
    other, _ = methods(PART, ["qa"])
    with pytest.raises(ConfigurationError, match="unfinished run with other settings"):
        execute(other, Path("test.yaml"), "one", each, tmp_path)
    document = execute(experiment, Path("test.yaml"), "one", each, tmp_path)
    rows = {(row["method"], row["task"]): row for row in document["tables"]["first"]}
    assert {task for _, task in rows} == {"all", "qa", "sql"} and len(rows) == 4 * 3
    assert rows["plain", "qa"]["speed_up"]["value"] == 1 and rows["chain 3", "all"]["gamma"] == 3
    assert rows["chain 3", "all"]["runs"] == 4 and rows["chain 3", "all"]["speed_up"]["n"] == 4
    assert rows["lookup", "qa"]["speed_up"]["value"] > 0 and rows["lookup", "qa"]["temperature"] == 1
    text = (tmp_path / "one.json").read_text("utf-8")
    assert json.loads(text)["environment"]["processor"] and len(text.splitlines()) < 200


def test_a_method_that_fails_has_its_error_and_the_others_their_rows(tmp_path: Path) -> None:
    broken = {"label": "broken", "name": "eesd", "exit": str(tmp_path / "nowhere")}
    experiment, each = methods({**PART, "methods": [*PART["methods"], broken]}, ["qa"], limit=1)
    tables = execute(experiment, Path("test.yaml"), "one", each, tmp_path)["tables"]
    failed = [row for row in tables["first"] if row["method"] == "broken"]
    assert [row["task"] for row in failed] == ["failed"] and "nowhere" in failed[0]["failure"]
    assert len(tables["first"]) == 4 * 2 + 1


def test_sweeps_make_a_setting_of_each_combination() -> None:
    entry = MethodEntry.model_validate(
        {"label": "w {width} g {gamma}", "name": "m", "k": 1, "sweep": {"width": [2, 4], "gamma": [1]}}
    )
    over = MethodEntry.model_validate(
        {"label": "x {width}", "over": "w {width} g 1", "name": "m", "sweep": {"width": [4]}}
    )
    found = expanded([entry, over])
    assert [(each.label, each.base) for each in found] == [("w 2 g 1", 0), ("w 4 g 1", 0), ("x 4", 1)]
    assert found[1].method == {"name": "m", "k": 1, "width": 4, "gamma": 1} and found[1].swept["width"] == 4


def test_measurements_are_kept_and_a_line_that_a_kill_cut_is_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def measure() -> list[int]:
        made.append(1)
        return [len(made)]

    assert [Bench(ExperimentRun(), tmp_path).once(["a", n], measure) for n in (1, 2, 1)] == [[1], [2], [1]]
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('["cut", [')
    again = Bench(ExperimentRun(), tmp_path)
    assert again.once(["a", 2], measure) == [2] and again.once(["b"], measure) == [3]
    assert Bench(ExperimentRun(), tmp_path).once(["b"], measure) == [3] and len(made) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("title: a", "option 'kind' is {'title': 'a'}, but field required"),
        ("{title: a, kind: loop, runs: {b: {pears: c}}}", "has no option 'runs.b.pears'"),
        ("{title: a, kind: lop, runs: {b: {}}}", "there is no kind of experiment 'lop' (did you mean 'loop'"),
        (
            "{title: a, kind: forwards, settings: {repeats: a}, runs: {b: {}}}",
            "option 'repeats' is 'a'",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        experiment = load(path)
        for name, each in chosen(experiment, ()).items():
            execute(experiment, path, name, each, tmp_path / "out")


def test_light_requests_are_timed_alone_and_beside_a_heavy_one(tmp_path: Path) -> None:
    method = {"name": "autoregressive"}
    settings = {"light": {"plain": method}, "heavy": {"4 texts": {"method": method, "texts": 4}}}
    experiment = Experiment(title="", kind="fairness", settings={**settings, "tokens": 2, "requests": 1}, runs={})
    (row,) = execute(experiment, Path("test.yaml"), "one", ExperimentRun(), tmp_path)["tables"]["fairness"]
    assert (row["heavy"], row["light"], row["first_ms"]["n"]) == ("4 texts", "plain", 3)
    assert 0 < row["first_ms"]["value"] < row["whole_ms"]["value"] and row["whole_to_alone"]["value"] > 0


def test_requests_at_once_are_compared_with_the_fastest_fixed_depth_and_with_other_engines(tmp_path: Path) -> None:
    peers = {"Hugging Face": [], "llama.cpp": ["plain"]}
    tables = run("serving", tmp_path, peers=peers)["tables"]
    assert [row["method"] for row in tables["failures"]] == ["llama.cpp, plain"]
    for load_ in (1, 2):
        rows = {row["method"]: row for row in tables["serving"] if row["load"] == load_}
        speeds = {name: row["tokens_per_second"]["value"] for name, row in rows.items()}
        aware, fastest = speeds.pop("load-aware"), max(speeds.values())
        assert rows["load-aware"]["to_fastest"]["value"] == pytest.approx(aware / fastest)
        assert speeds[rows["load-aware"]["fastest"]] == fastest and rows["plain"]["to_baseline"]["value"] == 1


def test_small_loads_decode_as_many_requests_as_large_ones() -> None:
    """One load after the other, each with the next prompts; a large load comes once."""
    serving = Serving(methods={"plain": {"name": "autoregressive"}}, requests=5)
    assert serving.batches([[1], [2], [3], [4]], 2) == [[[1], [2]], [[3], [4]], [[1], [2]]]
    assert serving.batches([[1], [2], [3], [4], [5], [6]], 6) == [[[1], [2], [3], [4], [5], [6]]]


def test_choices_among_sources_walk_the_same_traces(tmp_path: Path) -> None:
    rows = run("source-choice", tmp_path)["tables"]["choices"]
    assert len(rows) == 5 * 3 and len({row["tokens"] for row in rows}) == 1
    assert all(row["to_auto"]["value"] == 1 for row in rows if row["choice"] == "`auto`")
    assert all(0 < row["tokens_per_pass"]["value"] <= 5 for row in rows)


def test_a_choice_among_sources_learns_which_one_is_right() -> None:
    right, wrong = [(True, 0.9)] * 4, [(False, 0.9)] * 4
    costs = source_choice.Costs(0.1, 0.01)
    model = source_choice.Trace([right] * 400, [[(False, 0.1)]] * 400)
    copied = source_choice.Trace([wrong] * 400, [right] * 400)
    for kind in source_choice.CHOICES:
        for trace, price in ((model, 1.44), (copied, 1.04)):  # of a round of four drafts, five tokens
            tokens, time = kind(costs, 4).walk(trace)
            assert tokens == 400 and 400 / 5 * price <= time + 1e-9
            assert time < 400 / 5 * price * 1.25, kind.name  # it finds out, soon
        if kind is not source_choice.Hindsight:  # the others decide before the outcome is known
            rounds = []
            for drafts in (right, wrong):
                choice = kind(costs, 4)
                choice.begin()
                rounds.append(choice.round(source_choice.Trace([drafts], [[(False, 0.1)]]), 0))
            assert rounds[0].time == rounds[1].time
    assert source_choice.Costs(0.1, 0.01).of(2, 3) == pytest.approx(1 + 0.05 + 0.3)
    made = source_choice.drafted(Auto(4, lookup=True), costs, source_choice.Trace([wrong], [right]), 0)
    assert (made.attempted, made.depth_accepted) == (4, 4) and made.time == pytest.approx(1.04)
