"""benchmarks/candidates.py: ratios and their intervals, runs that survive a kill, the whole run and its tables."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwood import TabularModel
from draftwood.engine import Engine

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which are no package of the library."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import beams_items
        import candidates
        import candidates_readme
        import candidates_report
        import candidates_settings

        yield SimpleNamespace(
            main=candidates,
            items=beams_items,
            report=candidates_report,
            settings=candidates_settings,
            readme=candidates_readme,
        )
    finally:
        sys.path.remove(str(BENCHMARKS))


def record(seconds: float = 1.0, tokens: int = 10, **values: Any) -> dict[str, Any]:
    names = ("draft_seconds", "verify_seconds", "sampling_seconds", "other_seconds", "first_forwards")
    counts = {"later_rounds": 4, "rounds": 5, "drafting_rounds": 4, "accepted_shares": 3.0, "drafted_lengths": 16}
    rest = {"target_rows": 49, "prompt": 10, "nats": 1.0, "score": 1.0, "timed": True}
    return {**dict.fromkeys(names, 0.0), **counts, **rest, "seconds": seconds, "tokens": tokens, **values}


class Speeds:
    """Stands for models: a setting's seconds and score are given by its family, slower and faster by the item."""

    def __init__(self, bench: Any, until: int = 10**9) -> None:
        self.bench, self.until = bench, until
        self.runs: list[tuple[str, Any]] = []

    def run(self, setting: Any, item: Any) -> dict[str, Any]:
        if len(self.runs) == self.until:
            raise KeyboardInterrupt
        self.runs.append((setting.key, item.key))
        pace = 1 + item.number % 3 * 5  # slow moments, in which whole turns lie
        seconds = {"plain": 3.0, "target-initialised 2,4,3,1,1": 1.0}.get(setting.family, 1.5)
        lucky = setting.about["lossy"] and item.number % 2
        return record(seconds * pace, score=0.0 if lucky else 1.0, nats=2.0 if lucky else 1.0)

    def together(self, settings: Any, item: Any) -> list[dict[str, Any]]:
        return [self.run(setting, item) | {"timed": False} for setting in settings]


def test_the_paper_s_settings_are_all_there_once(bench: Any) -> None:
    settings = bench.settings.static()
    assert len({setting.key for setting in settings}) == len(settings) == 2 * (2 + len(bench.settings.TREES))
    rows = {setting.family: setting.about["rows"] for setting in settings}
    assert rows["mcsd 4,2,2,1"] == 4 + 8 + 16 + 16 + 1
    assert rows["target-initialised 2,4,3,1,1"] == 2 * (1 + 40)  # the paper counts 40 drafts below each token
    assert rows["target-initialised 2,3,2,1,1"] <= rows["mcsd 4,2,2,1"]
    assert {s.family for s in settings if s.about["lossy"]} == {f for f in rows if f.startswith("target-initialised")}
    first = bench.settings.widths(decision=bench.settings.DecisionFile("a.safetensors", "1"))
    other = bench.settings.widths(decision=bench.settings.DecisionFile("a.safetensors", "2"))
    kept = {setting.key for setting in first} & {setting.key for setting in other}
    assert len(first) == 3 + 5 * 2 * 2 and len(kept) == 3 + 5 * 2  # another model's runs are other runs
    assert [s.label for s in first if s.about["lossy"] and s.about["width"] == 1] == []


def test_the_drafted_length_leaves_roots_out(bench: Any) -> None:
    def length(*parents: int) -> int:
        return bench.items.drafted_length(SimpleNamespace(forest_parent=list(parents)))

    assert [length(), length(-1), length(-1, -1), length(-1, 0, 1, 1, 0), length(-1, -1, 1, 2)] == [0, 0, 0, 2, 2]


@pytest.mark.parametrize("initial", [1, 2])
def test_alpha_of_a_perfect_draft_is_one(bench: Any, initial: int) -> None:
    """The tree has 3 layers; a draft that is the target is accepted whole, whoever draws the first token."""
    model = TabularModel.random(6, seed=0)
    setting = bench.settings.Setting(
        "static", "x", "x", {"name": "mcsd", "tree": [1, 1, 1], "initial": initial}, {"temperature": 1.0}, True
    )
    result = Engine(model, [model]).generate([1], setting.method, setting.sampling, max_new_tokens=25)
    item = SimpleNamespace(document=SimpleNamespace(domain="stories", reference={}))
    found = bench.items.described(result, setting, item)
    assert found["accepted_shares"] == pytest.approx(found["drafting_rounds"])
    assert max(map(bench.items.drafted_length, result.rounds)) == 3


def test_the_ratio_of_sums_and_its_interval(bench: Any) -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(1, 2, size=(200, 1)) * [1.0, 2.0] * rng.uniform(0.9, 1.1, size=(200, 2))
    tokens = np.full((200, 2), 10.0)
    found = bench.report.pooled(seconds, tokens, 0, 1)
    assert found["low"] < found["ratio"] < found["high"] and found["ratio"] == pytest.approx(2, rel=0.03)
    assert found["high"] - found["low"] < 0.1
    assert bench.report.pooled(seconds, tokens * [3, 1], 0, 1)["ratio"] == pytest.approx(3 * found["ratio"])


def test_a_killed_benchmark_goes_on_and_runs_nothing_twice(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    settings = bench.settings.static((1.0,))
    todo = bench.settings.prompts(2, 1, 64, ("qa", "stories"))
    assert [item.tokens for item in todo] == [24, 64, 24, 64]
    warm = len({setting.family for setting in settings})
    first, second = Speeds(bench, until=warm + 11), Speeds(bench)
    with pytest.raises(KeyboardInterrupt):
        bench.items.gather(bench.items.Store(path, 1), first, settings, todo, "first")
    bench.items.gather(bench.items.Store(path, 1), second, settings, todo, "second")
    made = first.runs[warm:] + second.runs[warm:]
    assert sorted(made) == sorted((setting.key, item.key) for setting in settings for item in todo)
    third = Speeds(bench, until=0)
    bench.items.gather(bench.items.Store(path, 1), third, settings, todo, "third")
    assert third.runs == []


def test_speed_is_a_ratio_inside_turns_and_quality_is_paired(bench: Any, tmp_path: Path) -> None:
    settings = bench.settings.static((0.7, 1.0))
    store = bench.items.Store(tmp_path / "runs.jsonl", 1)
    todo = bench.settings.prompts(12, 1, 64, ("qa", "stories"))
    bench.items.gather(store, Speeds(bench), settings, todo, "runs")
    rows = {row["label"]: row for row in bench.report.speeds(settings, store, todo)}
    for temperature in ("0.7", "1"):
        best, chain = (rows[f"{name}, T={temperature}"] for name in ("target-initialised 2,4,3,1,1", "speculative"))
        assert best["speed_up"]["low"] == best["speed_up"]["high"] == pytest.approx(3)
        assert chain["pooled"]["ratio"] == pytest.approx(2) and chain["domains"]["qa"]["runs"] == 12
        assert best["alpha"] == 0.75 and best["tau"] == 2 and best["target_rows_per_round"] == 8
    headline = bench.report.headlines(settings, store, todo)
    assert [(row["over"], row["under"]) for row in headline] == list(bench.settings.AGAINST) * 2
    assert headline[0]["speed_up"]["median"] == pytest.approx(1.5) and headline[1]["speed_up"]["median"] == 1
    good = {row["label"]: row["domains"] for row in bench.report.qualities(settings, store, todo, samples=200)}
    lossy, chain = (good[f"{name}, T=1"] for name in ("target-initialised 2,4,3,1,1", "speculative"))
    assert lossy["qa"]["score"] == 0.5 and lossy["qa"]["score_difference"]["to_plain"] == -0.5
    assert lossy["qa"]["score_difference"]["interval"][1] < 0 < lossy["all"]["perplexity_ratio"]["to_plain"] - 1
    assert chain["qa"]["score_difference"] == {"to_plain": 0.0, "interval": [0.0, 0.0]}
    lost = bench.report.losses(
        bench.report.qualities(settings, store, todo, samples=9), bench.settings.HEADLINE[0], 1.0
    )
    assert lost["qa"]["score_difference"]["to_plain"] == -0.5 and set(lost["stories"]) == {"perplexity_ratio"}
    assert "score" not in lossy["stories"] and lossy["all"]["documents"] == 24


def test_quality_takes_many_scored_documents_and_few_others(bench: Any) -> None:
    items = bench.settings.judged(5, 2, 1, 40, ("stories", "qa"))
    assert [(item.task, item.number) for item in items if item.task == "stories"] == [("stories", 0), ("stories", 1)]
    assert [item.number for item in items if item.task == "qa"] == [0, 1, 2, 3, 4]


def test_a_whole_run_and_its_tables(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real models, few settings: both parts conclude, nothing runs twice, and README's table is written."""
    monkeypatch.setattr(bench.settings, "TREES", {n: bench.settings.TREES[n] for n in bench.settings.HEADLINE})
    monkeypatch.setattr(bench.settings, "AGAINST", (bench.settings.HEADLINE,))
    monkeypatch.setattr(bench.report, "AGAINST", (bench.settings.HEADLINE,))
    monkeypatch.setenv("DRAFTWOOD_PAIRS", str(tmp_path / "pairs"))
    words = ["--quick", "--domains", "qa", "--temperatures", "1", "--widths", "2", "--other-draft", ""]
    options = bench.main.options_of([*words, "--decision-prompts", "14", "--out", str(tmp_path)])
    options.tokens = 8
    run = bench.main.Bench(options)
    for part in options.part:
        run.part(part)
    result = json.loads((tmp_path / "candidates-embedded-float32.json").read_text())
    labels = [row["label"] for row in result["parts"]["widths"]["speed"]["embedded"]]
    assert {"fork W=2, longest, T=1", "fork W=2, longest, decision, T=1"} <= set(labels)
    assert result["parts"]["widths"]["decision"]["embedded"]["judgement"]["auc"] >= 0
    assert str(tmp_path) not in json.dumps(result["parts"]["widths"]["speed"])  # no place of one machine
    assert result["parts"]["static"]["headline"][0]["speed_up"]["median"] > 0
    table = bench.readme.candidates_table([result])
    assert re.search(r"^\| embedded \| float32 \| 1 \| target-initialised 2,4,3,1,1 \(lossy\) \| 82 \| ", table, re.M)
    assert re.search(r"^\| embedded \| float32 \| 1 \| target-.* over mcsd 4,2,2,1 \| \d+\.\d\dx ", table, re.M)
    assert re.search(r"^\| .* \| longest wins, lossy, decision model \| 2: \d+\.\d\dx \(\d\.\d\d\) \|$", table, re.M)
    for block in table.split("\n\n")[1:]:
        assert len({line.count("|") for line in block.splitlines()}) == 1
    before = run.store(run.name).path.read_text()
    again = bench.main.Bench(options)
    for part in options.part:
        again.part(part)
    assert again.store(run.name).path.read_text() == before


def test_bad_flags_are_refused(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--domains", "poems"], ["--target", "x"], ["--other-draft", "large"]):
        with pytest.raises(SystemExit):
            bench.main.options_of(words)
    errors = capsys.readouterr().err
    assert "no domain 'poems'" in errors and "both a target and a draft" in errors and "no pair 'large'" in errors
