"""benchmarks/early_exit.py: its statistics, runs that survive a kill, lifted predictors, targets and tables."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.depth.calibrated import PLACES, Calibration, Trained, save_calibration
from draftwood.depth.rules import Growth
from draftwood.models.decoder import DecoderConfig
from draftwood.models.identity import fingerprint, fingerprints
from draftwood.models.replicas import Copies

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which are no package of the library."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import beams_items
        import candidates_settings
        import early_exit
        import early_exit_items
        import early_exit_models
        import early_exit_readme
        import early_exit_report
        import early_exit_settings
        import early_exit_shown

        yield SimpleNamespace(
            main=early_exit,
            runs=beams_items,
            prompts=candidates_settings.prompts,
            items=early_exit_items,
            models=early_exit_models,
            readme=early_exit_readme,
            report=early_exit_report,
            settings=early_exit_settings,
            shown=early_exit_shown,
        )
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def trained(bench: Any) -> Any:
    shapes = bench.settings.shapes((1, 2), (1, 2))
    return bench.settings.Trained("calibration.safetensors", {shape: f"exits/{shape.name}/exit" for shape in shapes})


def record(seconds: float, drafted: int = 0, accepted: int = 0, **values: Any) -> dict[str, Any]:
    """Ten tokens; a round of six reads the prompt. Of four rounds 0.4 s are drafting and 1.2 s verifying."""
    times = {"draft_seconds": 0.4, "verify_seconds": 1.2, "sampling_seconds": 0.3, "other_seconds": 0.1}
    counts = {"tokens": 10, "rounds": 5, "later_rounds": 4, "drafted": drafted, "later_drafted": drafted}
    rest = {"accepted_drafts": accepted, "controller_seconds": 0.01, "digest": "a", "first_forwards": 0.4}
    return {"timed": True, **times, **counts, **rest, "seconds": seconds, **values}


class Speeds:
    """Stands for models: a setting's seconds are given by its label and domain, slower and faster by the item."""

    def __init__(self, seconds: Any, until: int = 10**9) -> None:
        self.seconds, self.until = seconds, until
        self.runs: list[tuple[str, Any]] = []

    def run(self, setting: Any, item: Any) -> dict[str, Any]:
        if len(self.runs) == self.until:
            raise KeyboardInterrupt
        self.runs.append((setting.key, item.key))
        pace = 1 + item.number % 3 * 5  # slow moments, in which whole turns lie
        drafts = {} if setting.family == "plain" else {"drafted": 8, "accepted": 5}
        whole = record(1.0, **drafts)
        spent = pace * self.seconds(setting.label, item.task)
        return {**whole, "seconds": spent, "first_forwards": 0.0, "draft_seconds": 0.0, "verify_seconds": 0.0}


def gathered(bench: Any, trained: Any, group: str, path: Path, seconds: Any, limit: int = 6) -> Any:
    """(settings, store, items) after all runs."""
    settings = bench.settings.settings(group, trained, 0.0, "digest")
    store, items = bench.runs.Store(path, 1), bench.prompts(limit, 1, 64, ("qa", "stories"))
    bench.runs.gather(store, Speeds(seconds), settings, items, "runs")
    return settings, store, items


def test_settings_are_all_there_once_and_name_no_machine(bench: Any, trained: Any) -> None:
    first = {g: bench.settings.settings(g, trained, 1.0, "first") for g in bench.settings.GROUPS}
    keys = [setting.key for settings in first.values() for setting in settings]
    assert len(set(keys)) == len(keys)
    other = [s.key for g in first for s in bench.settings.settings(g, trained, 1.0, "other")]
    assert not set(keys) & set(other)  # runs of other weights are other runs
    fewer = replace(trained, exits={})
    assert not {s.key for s in bench.settings.settings("controllers", fewer, 1.0, "first")} & set(keys)  # other turns
    assert {s.about.get("controller") for s in first["tables"]} - {None} == set(trained.controllers)
    assert [s.about["fixed"] for s in first["controllers"] if "fixed" in s.about] == list(bench.settings.SWEEP)
    assert [s.about["layers"] for s in first["exits"][1:]] == [1, 2, 1]
    assert [s.about["depth"] for s in first["exits"][1:]] == [1, 1, 2]  # the one on text alone is an ablation
    cali = next(s for s in first["tables"] if s.about.get("controller") == "cali-ts")
    assert cali.method["depth"] == "cali-ts:{kept}/calibration.safetensors"
    assert bench.items.resolved(cali.method, Path("/a"))["depth"] == "cali-ts:/a/calibration.safetensors"


def test_rates_times_and_shares_of_made_up_runs(bench: Any) -> None:
    rows = [[record(5.0), record(3.0, drafted=8, accepted=6)], [record(5.0), record(3.0, drafted=12, accepted=4)]]
    rows[1][1]["digest"] = "b"
    runs = bench.report.Runs(["qa", "sql"], rows, bench.report.decode_seconds(rows))
    found = runs.described(1, 0)
    assert (found["v_d"], found["r_d"]) == (0.5, 0.5) and found["harmonic_mean"] == 0.5
    assert found["tau"] == 2 and found["drafts_per_round"] == 2 and found["same_text"] == 0.5
    assert found["speed_up"]["median"] == pytest.approx(5.0 / 3.0)  # as much of each is the prompt's
    assert found["ms_per_round"]["verify"] == pytest.approx(300) and found["time_shares"]["draft"] == pytest.approx(0.2)
    assert found["controller_share"] == pytest.approx(0.02 / 4)
    a = (0.8 / 20) / (2.4 / 8)  # EESD App. D, Eq. 14
    assert found["draft_token_cost"] == pytest.approx(a)
    assert found["predicted_speed_up"] == pytest.approx(0.5 / ((a - 0.5) * 0.5 + 0.5))
    assert runs.described(0, 0)["harmonic_mean"] == 0
    assert [one["v_d"] for one in (runs.domain(name).described(1, 0) for name in ("qa", "sql"))] == [6 / 8, 4 / 12]


def test_a_domain_of_answers_of_one_round_has_no_endless_speed(bench: Any) -> None:
    """What a round costs without a prompt is known from the other domains."""
    short = record(1.2, drafted=3, accepted=3, later_rounds=0, rounds=1, draft_seconds=0.0, verify_seconds=0.0)
    short |= {"tokens": 4, "first_forwards": 1.1}
    rows = [[record(5.0), record(3.0, drafted=8, accepted=6)], [record(2.2, tokens=4), short]]
    runs = bench.report.Runs(["stories", "qa"], rows, bench.report.decode_seconds(rows))
    alone = runs.domain("qa").compared(1, 0)["speed_up"]["median"]
    assert alone == pytest.approx((2.2 - 0.4 + 0.4) / (1.2 - 1.1 + 0.4))


def test_the_best_controller_against_each_domain_s_best_k(bench: Any, trained: Any, tmp_path: Path) -> None:
    def seconds(label: str, domain: str) -> float:
        known = {
            "plain": 4.0,
            f"eesd, K={2 if domain == 'qa' else 6}": 2.0,
            "eesd + speedup-ts": 1.6 if domain == "qa" else 2.5,
            "eesd + beta-ts": 2.4,
            "eesd + cali-ts without model prediction": 1.0,  # an ablation is no controller to choose
        }
        return known.get(label, 3.0)

    settings, store, items = gathered(bench, trained, "controllers", tmp_path / "runs.jsonl", seconds)
    found = bench.report.against_fixed(settings, store, items)
    assert found["controller"] == "speedup-ts"
    assert {d: one["best_k"] for d, one in found["domains"].items()} == {"qa": 2, "stories": 6}
    assert found["domains"]["qa"]["to_best_k"]["median"] == pytest.approx(1.25)
    assert found["domains"]["stories"]["to_best_k"]["median"] == pytest.approx(0.8)
    assert found["to_beta_mean"] == pytest.approx((2.4 / 1.6 + 2.4 / 2.5) / 2)
    left = {one["what"]: one["speed"]["median"] for one in bench.report.ablated(settings, store, items)}
    assert left["without model prediction"] == pytest.approx(3) and len(left) == 5
    entry = {"groups": {"0": {}}, "against_fixed": {"0": found}}
    said = bench.report.targets("ablations", entry, 10)
    assert [one["reached"] for one in said] == [False, True]
    line = bench.shown.target_line(said[0])
    assert line.startswith("missed: speedup-ts over each domain's best fixed K, T=0; so in 1 of 2 domains, least in st")
    assert line.endswith("0.80 (0.80 to 0.80), wanted at least 1.00 of a large target")


def test_speed_targets_are_of_large_targets_and_time_of_all(bench: Any, trained: Any, tmp_path: Path) -> None:
    def seconds(label: str, domain: str) -> float:
        return {"plain": 4.2, "eesd + cali-ts": 2.0}.get(label, 2.5)

    settings, store, items = gathered(bench, trained, "tables", tmp_path / "runs.jsonl", seconds)
    rows = bench.report.speeds(settings, store, items)
    assert [row["label"] for row in rows][:2] == ["plain", "vanilla, K=4"] and set(rows[1]["domains"]) == {
        "qa",
        "stories",
    }
    entry = {"groups": {"0": {"tables": rows}}}
    small, large = (bench.report.targets("tables", entry, weights)[0] for weights in (10**6, 10**9))
    assert small["reached"] and large["reached"] and not small["meant_here"] and large["meant_here"]
    assert "eesd + cali-ts over plain" in large["what"] and large["found"] == pytest.approx(2.1)
    share = bench.report.targets("breakdown", entry, 10**9)[0]
    assert share["wanted"] == 0.01 and not share["reached"]  # 0.01 s of 0.4 s beside the forwards


def test_a_killed_benchmark_goes_on_and_runs_nothing_twice(bench: Any, trained: Any, tmp_path: Path) -> None:
    path, items = tmp_path / "runs.jsonl", bench.prompts(2, 1, 64, ("qa", "stories"))
    settings = bench.settings.settings("tree", trained, 0.0, "digest")
    warm = len({setting.family for setting in settings})
    first, second, third = (Speeds(lambda label, task: 1.0, until) for until in (warm + 7, 10**9, 0))
    with pytest.raises(KeyboardInterrupt):
        bench.runs.gather(bench.runs.Store(path, 1), first, settings, items, "first")
    bench.runs.gather(bench.runs.Store(path, 1), second, settings, items, "second")
    made = first.runs[warm:] + second.runs[warm:]
    assert sorted(made) == sorted((setting.key, item.key) for setting in settings for item in items)
    bench.runs.gather(bench.runs.Store(path, 1), third, settings, items, "third")


def test_a_lifted_predictor_says_the_same_of_replicated_states(bench: Any) -> None:
    before = DecoderConfig(8, 6, 8, 2, 2, 1, 4)
    copies = Copies.of(before, replace(before, hidden_size=15, num_attention_heads=4, num_key_value_heads=2))
    torch.manual_seed(0)
    small = Calibration(torch.randn(PLACES, 6), torch.randn(6), torch.randn(PLACES), torch.randn(6))
    large = bench.models.lift(small, copies)
    axis = copies.channels
    assert (axis.source < 0).sum() == 3  # silent
    target, draft = torch.randn(2, 6)

    def grown(state: torch.Tensor) -> torch.Tensor:
        return state[axis.source.clamp(min=0)].where(axis.source >= 0, torch.full((15,), 1e-8))

    for depth in (1, 4, 12):
        for state in (target, None):
            said = small.chance(Growth(depth, [0], None, [(0, 0)], draft[None]), state)
            lifted = large.chance(
                Growth(depth, [0], None, [(0, 0)], grown(draft)[None]), None if state is None else grown(state)
            )
            assert lifted == pytest.approx(said, abs=1e-5) and 0 < said < 1


def test_every_method_of_the_tables_runs_and_its_controller_is_timed(bench: Any, trained: Any, tmp_path: Path) -> None:
    """On the embedded pair, with a predictor that knows nothing: greedy texts are those of plain decoding."""
    pair = bench.main.pair("embedded")
    lab = bench.items.ExitLab(pair.target, pair.draft, "float32", kept=tmp_path)
    engine = lab.engine
    exits = engine.method("eesd").models(engine.target, [])
    nothing = Calibration(torch.zeros(PLACES, 192), torch.zeros(192), torch.ones(PLACES), torch.zeros(192))
    whose = fingerprint(engine.target), fingerprints(exits)
    save_calibration(tmp_path / "calibration.safetensors", Trained(nothing, 0.2, 0.4, 0.7), *whose, {})
    item = bench.prompts(1, 1, 10, ("stories",))[0]
    settings = bench.settings.settings("tables", trained, 0.0, "digest")
    found = {setting.label: lab.run(setting, item) for setting in settings}
    assert {one["digest"] for one in found.values()} == {found["plain"]["digest"]}
    for label, one in found.items():
        assert one["tokens"] == 10 and one["accepted_drafts"] <= one["drafted"], label
        assert (one["drafted"] > 0) == (label != "plain") and one["later_drafted"] <= one["drafted"], label
    for name in trained.controllers:
        one = found[f"eesd + {name}"]
        assert 0 <= one["controller_seconds"] < one["seconds"], name
        assert (one["controller_seconds"] > 0) == (one["rounds"] > 1), name
    sizes = bench.models.sizes(pair, trained)
    assert sizes["exit"] > 0 and bench.shown.trainable({"about": {"trains": ["exit", "heads"]}}, sizes) == (
        sizes["exit"] + sizes["heads"]
    )


def test_readme_s_tables(bench: Any, trained: Any, tmp_path: Path) -> None:
    """Every part of a made-up result becomes rows as wide as their table's head."""
    parts: dict[str, Any] = {}
    for part, groups in bench.settings.PARTS.items():
        entry: dict[str, Any] = {"groups": {"0": {}}, "ablated": {}, "against_fixed": {}}
        for group in groups:
            known = gathered(bench, trained, group, tmp_path / "runs.jsonl", lambda label, task: len(label) / 7, 1)
            entry["groups"]["0"][group] = bench.report.speeds(*known)
            if group == "controllers":
                entry["ablated"]["0"] = bench.report.ablated(*known)
                entry["against_fixed"]["0"] = bench.report.against_fixed(*known)
        entry["sizes"] = {"target": 10**9, "draft": 10**7, "exit": 2 * 10**7, "heads": 10**6, "calibration": 1000}
        entry["targets"] = bench.report.targets(part, entry, 10**9)
        parts[part] = entry
    made = {name: {"parameters": 5, "acceptance": 0.8} for name in trained.exits.values()}
    cost = {"method": "eesd", "loaded": 10**8, "trainable": 10**7, "seconds_per_step": 0.5, "batch": 4, "context": 128}
    parts["exits"] |= {"exits": made, "cost": [cost]}
    machine = {"dtype": "bfloat16", "threads": 2, "processor": "One", "date": "2026-11-21"}
    about = {"pair": {"name": "grown", "target": {"parameters": 10**9}}, "environment": machine}
    result = {**about, "parts": parts}
    short = bench.readme.early_exit_table([result]).split("\n\n")
    whole = bench.readme.early_exit_details([result]).split("\n\n")
    assert (len(short), len(whole)) == (1 + 2, 2 * 8)
    for block in [*short[1:], *whole[1::2]]:
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert all(title.startswith(("## Table", "## Figure")) for title in whole[::2])
    assert "| grown | bfloat16 | medusa | 1M | 1B |" in short[1] and "eesd, the fastest tree in hindsight" in short[1]
    assert len(short[2].splitlines()) == 2 + 1 + 2 + 1 + 1 and "| missed |" in short[2]
    assert "| grown | bfloat16 | 0 | stories |" in whole[3]


def test_bad_flags_are_refused(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--domains", "poems"], ["--target", "x"], ["--behind", "0"]):
        with pytest.raises(SystemExit):
            bench.main.options_of(words)
    errors = capsys.readouterr().err
    assert "no domain 'poems'" in errors and "both a target and a draft" in errors and "at least 1 layer" in errors
