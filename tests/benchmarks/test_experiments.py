"""Every experiment runs, a run that was stopped goes on, results are readable, tables follow from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.engines import hugging_face
from benchmarks.execute import chosen, execute, write
from benchmarks.experiment import Experiment, Run, Table, load
from benchmarks.kinds import controllers, fronts, peers
from benchmarks.kinds.learned import Exit, Places, resolved
from benchmarks.kinds.methods import Entry, Methods, expanded
from benchmarks.pages import Overview, overview
from benchmarks.pairs import PAIRS, REAL, Pair, pair
from benchmarks.tables import CELLS, concluded, documents, drawn, experiments, markdown
from draftwood.errors import ConfigurationError
from draftwood.eval import provenance
from draftwood.eval.energy import operations
from draftwood.methods import Method
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.sampling.params import SamplingParams
from draftwood.util.plots import svg

BENCH = Path(__file__).parents[2] / "benchmarks" / "experiments"
LEARNED = Places(
    {"decision": "d.safetensors", "hidden": "h.safetensors", "calibration": "c.safetensors"},
    [Exit(1, 1, "distributions", "e")],
)
MEASURED = [(path, each) for path, each in experiments(BENCH) if not each.made_by]
TABLED = [each for each in experiments(BENCH) if documents(each[0])]


@pytest.mark.parametrize(("path", "experiment"), MEASURED, ids=lambda each: getattr(each, "stem", ""))
def test_every_experiment_declares_what_can_be_run(path: Path, experiment: Experiment) -> None:
    for run in experiment.runs.values():
        assert run.pair is None or run.pair in {*PAIRS, *REAL}
        for smoke in (False, True):
            kind = experiment.measure(run, smoke)
            if isinstance(kind, Methods):
                for part in kind.parts.values():
                    settings = expanded(part.methods, LEARNED)
                    assert len({setting.label for setting in settings}) == len(settings)
                    for setting in settings:
                        for sampling in part.sampling:
                            Method.parse(setting.method).check(SamplingParams(**sampling))
            if isinstance(kind, peers.Peers):
                assert kind.cells(pair("embedded"), 1, 64)


@pytest.mark.parametrize(("path", "experiment"), TABLED, ids=lambda each: getattr(each, "stem", ""))
def test_committed_results_are_small_and_fill_the_tables(path: Path, experiment: Experiment) -> None:
    results = documents(path)
    assert results and {each["run"] for each in results} <= {*experiment.runs}
    for file in sorted((BENCH.parent / "results" / path.stem).glob("*.json")):
        assert len(file.read_text("utf-8").splitlines()) < 3000
    made = [markdown(table, results) for table in experiment.tables]
    assert any(made)  # of a table that nobody has measured yet there is no empty frame


def small(kind: str, **settings: Any) -> tuple[Experiment, Run]:
    return Experiment(title="test", kind=kind, settings=settings, runs={"one": Run()}), Run()


def run(kind: str, out: Path, **settings: Any) -> dict[str, Any]:
    """A tiny experiment on the embedded pair, from its YAML file's smoke settings."""
    path = BENCH / f"{kind}.yaml"
    experiment = load(path)
    run = next(each for each in experiment.runs.values() if each.pair in (None, "embedded"))
    experiment = experiment.model_copy(update={"smoke": {**experiment.smoke, **settings}})
    found = execute(experiment, path, "tiny", run, out, smoke=True)
    assert json.loads((out / "tiny.json").read_text("utf-8"))["complete"] and not (out / "tiny.work").exists()
    for table in experiment.tables:
        markdown(table, [found])
    return found


def test_the_loop_search_and_controllers_run_from_their_files(tmp_path: Path) -> None:
    loop = run("engine", tmp_path, methods={"speculative": {"name": "speculative", "gamma": 2}})["tables"]
    assert loop["loop"][0]["ratio"]["value"] > 0 and 1 < loop["loop"][0]["perplexity"] < 20
    assert 0 < loop["shares"][0]["not_a_forward"]["value"] < 1
    guided = run("search", tmp_path)["tables"]
    assert len(guided["grid"]) == 2 and guided["guided"][-1]["runs"] == 3
    speeds = run("controllers", tmp_path)["tables"]
    assert {row["scenario"] for row in speeds["speeds"]} == {*controllers.scenarios()}
    assert all(row["five_layers_us"] > 0 for row in speeds["decisions"])


def test_the_default_takes_turns_with_what_is_tuned_for_a_kind_of_text(tmp_path: Path) -> None:
    found = run("defaults", tmp_path)["tables"]
    assert [row["task"] for row in found["searches"]] == ["bodies"] * 2 and found["searches"][1]["speed_up"] > 0
    (row,) = found["defaults"]
    assert row["ratio"]["n"] == 1 and row["default"].startswith("speculative") and row["reached"] in ("yes", "no")
    fastest = max(found["searches"], key=lambda one: float(one["speed_up"]))
    assert row["tuned"] == (fastest["method"] if fastest["speed_up"] > 1 else "autoregressive")


def test_lookup_is_compared_with_fixed_n_grams_on_the_same_text(tmp_path: Path) -> None:
    found = run("lookup", tmp_path)
    rows = [row for row in found["tables"]["lookups"] if row["task"] == "all"]
    assert [row["temperature"] for row in rows] == [0, 1]
    assert all(row["ratio"]["value"] == row["suffix"]["value"] / row["fixed"]["value"] for row in rows)


def test_requests_at_once_have_the_bits_that_they_have_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.kinds import requests

    monkeypatch.setattr(requests, "batched", lambda cell: lambda prompts, count: None)  # slow to import
    rows = run("requests", tmp_path)["tables"]["requests"]
    assert [row["concurrent"] for row in rows] == ["one by one", "1 at once", "2 at once"]
    assert all(row["same_bits"] == 1 for row in rows[1:]) and rows[1]["to_one_by_one"]["value"] > 0


def test_choosing_tokens_is_timed_under_every_setting_and_method(tmp_path: Path) -> None:
    found = run("sampled", tmp_path)
    plain = {row["setting"]: row for row in found["tables"]["plain"]}
    assert plain["greedy"]["to_greedy"]["value"] == 1 and plain["top-p .95"]["ms"]["value"] > 0
    methods = {(row["method"], row["setting"]): row for row in found["tables"]["methods"]}
    assert ("tree 4,2,2,1", "T 1") in methods and ("beam search", "T 1") in methods
    assert all(0 < row["choosing"]["value"] < 1 and 0 <= row["other"]["value"] < 1 for row in methods.values())


def test_types_of_weights_are_compared_with_float32_and_bfloat16(target: Path, draft: Path, tmp_path: Path) -> None:
    path, models = BENCH / "quantisation.yaml", Pair("tiny", target, draft, tmp_path / "made")
    found = execute(load(path), path, "tiny", Run(pair=None), tmp_path, smoke=True, models=models)
    rows = {row["type"]: row for row in found["tables"]["quality"]}
    assert rows["float32"]["agreement"]["value"] == rows["bfloat16"]["to_bfloat16"]["value"] == 1
    for name in ("int8", "int4", "int4, not calibrated", "int4, head too"):
        assert 0.9 < rows[name]["to_bfloat16"]["value"] < 1.1 and 0.5 < rows[name]["agreement"]["value"] < 1


def test_forwards_are_held_to_what_the_machine_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "forward", lambda cell: lambda prompt: None)  # slow to import
    monkeypatch.setattr(machine, "BYTES", 2**20)
    found = run("native", tmp_path, types=["float32", "int7"])
    rows = {(row["backend"], row["rows"]): row for row in found["tables"]["forwards"]}
    failed = {(row["type"], row["backend"]): row["failure"] for row in found["tables"]["failures"]}
    backend = found["environment"]["backend"]
    assert rows[backend, 1]["limit_ms"]["value"] > 0 and rows["Hugging Face", "prompt"]["to_pytorch"]["value"] > 1
    assert rows["pytorch", "prompt"]["limit_ms"]["value"] > 0 and ("Hugging Face", 1) not in rows
    assert rows["pytorch", 2]["to_pytorch"]["value"] == 1 and "'int7' is not known" in failed["int7", "pytorch"]
    assert (("float32", "native") in failed) == (backend == "pytorch") == (found["environment"]["kernels"] is None)
    assert provenance.session(torch.device("cpu"), "pytorch").items() >= {("backend", "pytorch"), ("kernels", None)}
    assert found["environment"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    requests = {(row["backend"], row["method"]): row for row in found["tables"]["requests"]}
    assert requests[backend, "chain of 4"]["same_text"] == 1
    asked = load(BENCH / "native.yaml").drawings["rows"]
    assert svg(drawn(asked, found), asked.title).count("<title>pytorch, float32") == 2


def test_operations_of_a_forward_are_those_that_pytorch_counts() -> None:
    c = DecoderConfig(50, 32, 48, 3, 4, 2, 16)
    rows = 9
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        Decoder(c).eval().train_forward(torch.zeros(1, rows, dtype=torch.long))
    masked = c.num_hidden_layers * 4 * (rows * (rows - 1) // 2) * c.num_attention_heads * c.head_dim
    assert operations(c, 0, rows, rows) + masked == counted.get_total_flops()
    assert operations(c, rows, 1, 1) == operations(c, 0, rows + 1, rows + 1) - operations(c, 0, rows, rows)


def test_training_steps_are_timed(tmp_path: Path) -> None:
    experiment = load(BENCH / "training.yaml")
    found = execute(experiment, BENCH / "training.yaml", "tiny", Run(), tmp_path, smoke=True)["tables"]["cost"]
    sizes = {row["method"]: (row["loaded"], row["trained"]) for row in found}
    assert sizes["draft model"] == (631424, 631424) and sizes["eesd, N=1"][0] < sizes["eesd, N=1, distilled"][0]
    assert all(row["seconds"] > 0 for row in found)


PART = {
    "sampling": [{"temperature": 1}],
    "methods": [
        {"label": "plain", "name": "autoregressive"},
        {"label": "chain {gamma}", "name": "speculative", "sweep": {"gamma": [1, 3]}},
        {"label": "lookup", "name": "lookup", "over": "chain 1"},
    ],
    "compare": [{"of": "chain *", "over": "plain", "wanted": 0.001, "each_task": True}],
    "fronts": {
        "chains": {"ours": ["chain 1", "chain 3"], "theirs": ["plain"]},
        "long": {"ours": ["chain 3"], "theirs": ["plain"]},
    },
    "quality": {"limit": 3},
}


def test_methods_are_compared_in_turns_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    experiment, each = small("methods", tasks=["qa", "sql"], limit=2, tokens=4, parts={"first": PART})
    done: list[str] = []

    def stop(what: str, number: int, total: int | None) -> None:
        done.append(what)
        if number == 5 and ":" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(experiment, Path("test.yaml"), "one", each, tmp_path, told=stop)
    kept = (tmp_path / "one.work" / "first-0" / "items.jsonl").read_text("utf-8").splitlines()
    assert len(kept) == 5 and not json.loads((tmp_path / "one.json").read_text("utf-8"))["complete"]
    other, _ = small("methods", tasks=["qa"], limit=2, tokens=4, parts={"first": PART})
    with pytest.raises(ConfigurationError, match="unfinished run with other settings"):
        execute(other, Path("test.yaml"), "one", each, tmp_path)
    ran: list[int] = []
    document = execute(
        experiment, Path("test.yaml"), "one", each, tmp_path, told=lambda what, done, total: ran.append(done)
    )
    rows = {(row["method"], row["task"]): row for row in document["tables"]["first"]}
    assert {task for _, task in rows} == {"all", "qa", "sql"} and len(rows) == 4 * 3
    assert rows["plain", "qa"]["speed_up"]["value"] == 1 and rows["chain 3", "all"]["gamma"] == 3
    assert rows["chain 3", "qa"]["judged"] == 3 and rows["chain 3", "qa"]["runs"] == 2
    assert rows["chain 3", "all"]["over_tasks"]["n"] == 2 and "score" not in rows["chain 3", "all"]
    assert {row["task"] for row in document["tables"]["first.compared"]} == {"all", "qa", "sql"}
    assert all(row["reached"] == "yes" for row in document["tables"]["first.compared"])
    sides = {(row["grid"], row["at"]) for row in document["tables"]["first.front"]}
    assert sides == {(grid, at) for grid in ("chains", "long") for at in fronts.EQUAL}
    text = (tmp_path / "one.json").read_text("utf-8")
    assert json.loads(text)["environment"]["processor"] and len(text.splitlines()) < 200


def test_a_method_that_fails_has_its_error_and_the_others_their_rows(tmp_path: Path) -> None:
    methods = [*PART["methods"], {"label": "chain broken", "name": "eesd", "exit": str(tmp_path / "nowhere")}]
    settings = {"tasks": ["qa"], "limit": 1, "tokens": 3, "parts": {"p": {**PART, "methods": methods, "quality": None}}}
    experiment, each = small("methods", **settings)
    tables = execute(experiment, Path("test.yaml"), "one", each, tmp_path)["tables"]
    broken = [row for row in tables["p"] if row["method"] == "chain broken"]
    assert [row["task"] for row in broken] == ["failed"] and "nowhere" in broken[0]["failure"]
    assert len(tables["p"]) == 4 * 2 + 1 and tables["p.compared"][0]["of"] != "chain broken" and tables["p.front"]


def test_methods_name_what_was_learned_and_are_left_out_where_it_is_missing() -> None:
    entries = [
        Entry.model_validate({"label": "{exit} + x", "name": "eesd", "exits": True}),
        Entry.model_validate({"label": "cali", "name": "eesd", "depth": "cali-ts:path={calibration},a=1"}),
    ]
    found = expanded(entries, LEARNED)
    assert [setting.label for setting in found] == ["exit, N=1, 1 layer + x", "cali"]
    assert found[1].method["depth"] == "cali-ts:path=c.safetensors,a=1"
    assert expanded(entries, Places()) == []
    assert resolved({"name": "a", "n": 3}, {}) == {"name": "a", "n": 3}


def test_a_front_keeps_what_nothing_beats_and_speed_is_interpolated_along_it() -> None:
    points = [(10.0, 0.5), (8.0, 0.7), (8.0, 0.6), (7.0, 0.7), (5.0, 0.4), (4.0, 0.9), (10.0, 0.3)]
    curve = fronts.front(points)
    assert curve == [(10.0, 0.5), (8.0, 0.7), (4.0, 0.9)]
    at = [fronts.at_equal_quality(curve, [(1.0, quality)]) for quality in (0.1, 0.5, 0.6, 0.8, 0.9)]
    assert at == pytest.approx([10, 10, 9, 6, 4]) and fronts.at_equal_quality(curve, [(1.0, 0.91)]) is None
    ours = [(2 * speed, quality) for speed, quality in curve]
    assert fronts.at_equal_quality([*ours, (1.0, 0.1)], curve) == pytest.approx(2)
    assert fronts.at_equal_quality([(99.0, 0.4)], curve) is None  # worse than their fastest: no flattering figure
    assert fronts.at_equal_quality([(99.0, 0.45)], curve, slack=0.05) == pytest.approx(9.9)


def test_measurements_are_kept_and_a_line_that_a_kill_cut_is_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def measure() -> list[int]:
        made.append(1)
        return [len(made)]

    assert [Bench(Run(), tmp_path).once(["a", n], measure) for n in (1, 2, 1)] == [[1], [2], [1]]
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('["cut", [')
    again = Bench(Run(), tmp_path)
    assert again.once(["a", 2], measure) == [2] and again.once(["b"], measure) == [3]
    assert Bench(Run(), tmp_path).once(["b"], measure) == [3] and len(made) == 3


def test_cells_show_intervals_units_and_nothing_unknown(tmp_path: Path) -> None:
    row = {"a": {"value": 1.5, "low": 1.25, "high": None}, "b": 0.5, "c": {"value": None, "low": None, "high": None}}
    assert CELLS.fill("{a:.2fx~}", row) == "1.50x" and CELLS.fill("{b:.0%}", row) == "50%"
    assert CELLS.fill("{a:.1fx~}", {"a": {"value": 1, "low": 0.5, "high": 2}}) == "1.0x (0.5 to 2.0)"
    assert CELLS.fill("{c:.1f}", row) == CELLS.fill("{d}", row) == "" and CELLS.fill("{d} || {b}", row) == "0.5"
    assert CELLS.fill("{w:M}", {"w": 2_500_000_000}) == "2.5B" and CELLS.fill("{w:M}", {"w": 0}) == "none"
    rows = [{"method": "m", "lossy": True, "k": k, "speed": s} for k, s in ((1, 2.0), (2, 3.0))]
    write(tmp_path / "a.json", {"run": "r", "models": {}, "environment": {"dtype": "f"}, "tables": {"t": rows}})
    result = json.loads((tmp_path / "a.json").read_text("utf-8"))
    best = Table(title="", rows="t", columns={"m": "{method}", "k": "{k}"}, best={"by": ["run"], "of": "speed"})
    assert markdown(best, [result]).splitlines()[2:] == ["| m (lossy) | 2 |"]
    wide = Table(title="", rows="t", columns={"m": "{type}"}, pivot={"by": "{k}", "cell": "{speed:.1f}"})
    assert markdown(wide, [result]).splitlines() == ["| m | 1 | 2 |", "| --- | --- | --- |", "| f | 2.0 | 3.0 |"]
    assert markdown(wide.model_copy(update={"without": {"k": [1, 2]}}), [result]) == ""


def test_numbers_of_conclusions_are_those_of_their_files(tmp_path: Path) -> None:
    for _, experiment in experiments(BENCH):
        told = re.sub(r"\{.*?\}|`.*?`|\(the paper.*?\)", "", experiment.conclusions)
        assert not re.search(r"\d\.\d|\d ?%|\d (times|percent)", told), experiment.title
    rows = [{"method": f"chain {k}", "speed": {"value": k / 2, "low": 0, "high": 9}} for k in (3, 1, 2)]
    results = [{"run": "r", "models": {}, "environment": {}, "tables": {"t": [*rows, {"method": "plain", "speed": 7}]}}]
    fact = {"rows": "t", "of": "speed", "where": {"method": "chain *"}}
    text = "{chains:.1f} times, at least {chains[low]:.1f}, nearly {chains:.0e} in {chains[count]} runs."
    asked = Experiment(title="", kind="loop", runs={}, conclusions=text, facts={"chains": fact})
    assert (
        concluded(asked, results, Path("x.yaml")) == "0.5 to 1.5 times, at least 0.5, nearly 5e-01 to 2e+00 in 3 runs."
    )
    alone = {"chains": fact | {"where": {"method": "chain 2"}}}
    same = Experiment(title="", kind="loop", runs={}, conclusions="{chains:.1f}", facts=alone)
    assert concluded(same, results, Path("x.yaml")) == "1.0"
    with pytest.raises(ConfigurationError, match=r"x.yaml: no row has .* 'chains'; correct facts.chains"):
        concluded(asked, [], Path("x.yaml"))


def test_the_overview_leaves_cells_empty_where_nothing_was_measured_and_tells_machines_apart() -> None:
    line = {"label": "a", "experiment": "one", "rows": "t", "cell": "{a:.1fx}"}
    asked = {"marker": "", "columns": {n: {"run": n} for n in "pqrs"}, "lines": [line]}
    machines = {"p": {"kernels": "avx2"}, "q": {"kernels": "avx512", "instructions": "AVX512"}, "r": {}}
    results = [
        {"run": run, "models": {}, "tables": {"t": [{"a": 2}]}, "environment": {"threads": n, "processor": "CPU", **of}}
        for n, (run, of) in enumerate(machines.items(), 1)
    ]
    assert overview(Overview.model_validate(asked), lambda name: results).splitlines()[2:] == [
        "| a | 2.0x | 2.0x ¹ | 2.0x ² |  |",
        "",
        "Measured with 1 thread of CPU, kernels avx2; ¹ 2 threads of CPU with AVX512, kernels avx512; "
        "² 3 threads of CPU, PyTorch's kernels.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("title: a", "kind: field required"),
        ("{title: a, kind: methods, runs: {}, tables: [{title: b}]}", "tables.0.rows: field required"),
        ("{title: a, kind: loop, runs: {b: {pears: c}}}", "runs.b.pears: extra inputs are not permitted"),
        ("{title: a, kind: lop, runs: {b: {}}}", "there is no kind of experiment 'lop' (did you mean 'loop'"),
        (
            "{title: a, kind: controllers, settings: {seeds: a}, runs: {b: {}}}",
            "settings of 'a': seeds: input should be",
        ),
        ("{title: a, kind: controllers, made_by: make it, runs: {b: {}}}", "'a' is made by `make it`"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        experiment = load(path)
        for name, each in chosen(experiment, ()).items():
            execute(experiment, path, name, each, tmp_path / "out")


def test_recorded_simulations_agree_with_the_specification_and_printed_updates_fail() -> None:
    """Spec §7; Eq. 3-4 give up drafting after one token, Eq. 8 drafts on as if everything were accepted."""
    recorded = documents(BENCH / "controllers.yaml")[0]["tables"]["speeds"]
    rows = {(row["scenario"], row["controller"]): row for row in recorded}
    expected = [row for row in recorded if "expected" in row]
    assert len(expected) == 16
    assert all(row["speed"] == pytest.approx(row["expected"], rel=0.02) for row in expected)
    kind = controllers.Controllers(tokens=600)
    for name, (c, text) in controllers.scenarios().items():
        assert rows[name, "beta-ts as printed"]["drafts_per_round"] < 1.2
        assert rows[name, "cali-ts as printed"]["drafts_per_round"] > 20
        assert min(rows[name, each]["to_best"] for each in controllers.FAILING) < 0.9
        if name in ("fixed 0.6, c 0.15", "per token, c 0.1"):
            for controller in ("beta-ts", "optimal-stopping"):
                found = kind.speeds(controllers.CONTROLLERS[controller], text, c)["speed"]
                assert found == pytest.approx(rows[name, controller]["speed"], rel=0.15)


def test_load_aware_drafting_is_compared_with_the_fastest_fixed_depth_of_each_load(tmp_path: Path) -> None:
    rows = run("load-aware", tmp_path)["tables"]["serving"]
    for load_ in (1, 2):
        speeds = {row["method"]: row["tokens_per_second"]["value"] for row in rows if row["load"] == load_}
        aware = speeds.pop("load-aware")
        (row,) = (row for row in rows if row["load"] == load_ and row["method"] == "load-aware")
        assert row["fastest"] == max(speeds, key=speeds.__getitem__)
        assert row["to_fastest"]["value"] == pytest.approx(aware / max(speeds.values()))
