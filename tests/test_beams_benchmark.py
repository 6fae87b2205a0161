"""benchmarks/beams.py: fronts and speed at equal quality, runs that survive a kill, and examples/beams.py."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which are no package of the library."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import beams
        import beams_fronts
        import beams_items
        import beams_readme
        import beams_report
        import beams_settings

        yield SimpleNamespace(
            main=beams,
            fronts=beams_fronts,
            items=beams_items,
            report=beams_report,
            settings=beams_settings,
            readme=beams_readme,
        )
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_a_front_keeps_what_nothing_beats(bench: Any) -> None:
    points = [(10.0, 0.5), (8.0, 0.7), (8.0, 0.6), (7.0, 0.7), (5.0, 0.4), (4.0, 0.9), (10.0, 0.3)]
    assert bench.fronts.front(points) == [(10.0, 0.5), (8.0, 0.7), (4.0, 0.9)]


def test_pooling_averages_where_quality_falls(bench: Any) -> None:
    points = [(8.0, 0.4), (10.0, 0.5), (6.0, 0.6), (4.0, 0.9), (2.0, 0.8)]
    assert bench.fronts.pooled(points) == [(9.0, pytest.approx(0.45)), (6.0, 0.6), (3.0, pytest.approx(0.85))]


def test_speed_is_interpolated_along_a_front(bench: Any) -> None:
    curve = [(10.0, 0.5), (8.0, 0.7), (4.0, 0.9)]
    assert bench.fronts.speed_at(curve, 0.1) == 10.0  # the fastest point is better than asked for
    assert bench.fronts.speed_at(curve, 0.5) == 10.0
    assert bench.fronts.speed_at(curve, 0.6) == pytest.approx(9.0)
    assert bench.fronts.speed_at(curve, 0.8) == pytest.approx(6.0)
    assert bench.fronts.speed_at(curve, 0.9) == 4.0
    assert bench.fronts.speed_at(curve, 0.91) is None


def test_a_front_twice_as_fast_is_twice_as_fast_at_equal_quality(bench: Any) -> None:
    theirs = [(10.0, 0.5), (8.0, 0.7), (4.0, 0.9)]
    ours = [(2 * speed, quality) for speed, quality in theirs]
    found = bench.fronts.at_equal_quality([*ours, (1.0, 0.1)], theirs)
    assert [found[name] for name in ("median", "low", "high")] == pytest.approx([2, 2, 2])
    assert (found["from"], found["to"]) == (0.5, 0.9)
    # one setting of ours, in the middle: compared up to its quality, where theirs has 8
    found = bench.fronts.at_equal_quality([(12.0, 0.7)], theirs)
    assert (found["low"], found["high"], found["to"]) == (pytest.approx(1.2), pytest.approx(1.5), 0.7)
    # worse than their fastest: no figure rather than a flattering one
    assert bench.fronts.at_equal_quality([(99.0, 0.4)], theirs)["median"] is None


def record(**values: Any) -> dict[str, Any]:
    names = ("draft_seconds", "verify_seconds", "sampling_seconds", "other_seconds", "first_forwards")
    zero = {name: 0.0 for name in names}
    return {**zero, "timed": True, "later_rounds": 2, "seconds": 1.0, "tokens": 10, "nats": 1.0, "score": 1.0, **values}


def test_the_prompt_counts_as_one_more_round(bench: Any) -> None:
    long = record(seconds=10.0, first_forwards=5.0, draft_seconds=1.0, verify_seconds=3.0, later_rounds=2)
    short = record(seconds=6.0, first_forwards=5.5, later_rounds=0)  # took the setting's mean round
    np.testing.assert_allclose(bench.fronts.decode_seconds([[long], [short]]), [[7.0], [2.5]])


def test_a_slow_moment_hits_all_settings_alike(bench: Any) -> None:
    rng = np.random.default_rng(1)
    seconds = np.outer(np.ones(9), [1.0, 2.0, 4.0]) * rng.uniform(0.9, 1.1, size=(9, 1))
    slow = seconds * np.where(np.arange(9) == 3, 20, 1)[:, None]
    found = []
    for taken in (seconds, slow):
        rows = [[record(seconds=value) for value in row] for row in taken]
        found.append(bench.fronts.Speeds(rows, 50, rng).whole)
        assert found[-1][0] / found[-1][1] == pytest.approx(2) and found[-1][1] / found[-1][2] == pytest.approx(2)
    assert found[1] == pytest.approx(found[0], rel=0.1)


def qualities(bench: Any, scores: np.ndarray, repeats: int = 1) -> Any:
    """Of documents [document, setting], each repeated."""
    rows = [[record(score=value, nats=2.0 - value) for value in row] for row in scores for _ in range(repeats)]
    numbers = [number for number in range(len(scores)) for _ in range(repeats)]
    return bench.fronts.Qualities(numbers, rows, 400, np.random.default_rng(0))


def test_scores_perplexity_and_their_intervals(bench: Any) -> None:
    scores = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    good = qualities(bench, scores)
    np.testing.assert_allclose(good.score, [0.5, 1.0])
    np.testing.assert_allclose(good.perplexity, np.exp([0.15, 0.1]))
    width = np.ptp(np.percentile(good.score_samples, [2.5, 97.5], axis=0), axis=0)
    assert width[0] > 0.4 and width[1] == 0
    repeated = qualities(bench, scores, repeats=5)  # repeats of a document are no further documents
    again = np.ptp(np.percentile(repeated.score_samples, [2.5, 97.5], axis=0), axis=0)
    np.testing.assert_allclose(again, width)


def test_settings_chosen_on_other_documents_do_not_flatter_themselves(bench: Any) -> None:
    """Forty settings of ours, all as good as beam sampling of width 1: by luck some seem as good as wider beams."""
    rng = np.random.default_rng(5)
    count = 40
    speed = np.concatenate([np.linspace(9.9, 10.1, count), [10.0, 8.0, 6.0]])
    chances = [0.8] * (count + 1) + [0.85, 0.9]
    families = {"dsbd": range(count), "beam sampling": range(count, count + 3)}
    flattered, fitted = [], []
    for _ in range(20):
        good = qualities(bench, (rng.random((200, count + 3)) < chances).astype(float))
        found = bench.fronts.compared(families, speed, np.tile(speed, (400, 1)), good, "score")
        flattered.append(found["median"])
        if found["cross_fitted"] is not None:
            fitted.append(found["cross_fitted"])
        if found["by_width"][0] is not None:
            assert found["interval"][0] <= found["median"] <= found["interval"][1] * 1.05
    assert np.mean(flattered) > 1.1  # 1 is true
    assert np.mean(fitted) - 1 < 0.7 * (np.mean(flattered) - 1)


class Counting:
    """Stands for models: counts runs, and dies when it is told to."""

    def __init__(self, until: int = 10**9) -> None:
        self.runs: list[tuple[str, Any]] = []
        self.until = until

    def run(self, setting: Any, item: Any) -> dict[str, Any]:
        if len(self.runs) == self.until:
            raise KeyboardInterrupt
        self.runs.append((setting.key, item.key))
        return record(seconds=1.0 + item.number)

    def together(self, settings: Any, item: Any) -> list[dict[str, Any]]:
        return [self.run(setting, item) | {"timed": False} for setting in settings]


def test_a_killed_benchmark_goes_on_and_runs_nothing_twice(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    settings = bench.settings.pareto(bench.settings.coarse(bench.settings.Grid()))
    todo = bench.settings.items(("qa", "sql"), 3, 1)
    warm = len({setting.family for setting in settings})
    first, second = Counting(until=warm + 20), Counting()
    with pytest.raises(KeyboardInterrupt):
        bench.items.gather(bench.items.Store(path, 1), first, settings, todo, "first")
    with path.open("a") as file:
        file.write('{"setting": "cut by a ki')
    bench.items.gather(bench.items.Store(path, 1), second, settings, todo, "second")
    kept = [(line["setting"], tuple(line["item"])) for line in map(json.loads, path.read_text().splitlines())]
    assert sorted(kept) == sorted((setting.key, item.key) for setting in settings for item in todo)
    assert kept == first.runs[warm:] + second.runs[warm:]
    third = Counting(until=0)
    bench.items.gather(bench.items.Store(path, 1), third, settings, todo, "third")  # nothing is left, not even to warm
    found, rows = bench.items.Store(path, 1).matrix(settings, todo)
    assert found == todo and len(rows[0]) == len(settings)
    other = bench.items.Store(path, 2)  # with other threads: the clock says something else, scores do not
    assert len(other.missing(settings, todo)) == len(todo) and not other.missing(settings, todo, timed=False)


def test_runs_without_a_clock_say_nothing_of_speed(bench: Any, tmp_path: Path) -> None:
    settings = bench.settings.table()
    todo = bench.settings.items(("qa",), 2, 1)
    store, lab = bench.items.Store(tmp_path / "runs.jsonl", 1), Counting()
    bench.items.gather(store, lab, settings, todo, "quality", timed=False)
    assert store.missing(settings, todo, timed=False) == []
    assert len(store.missing(settings, todo)) == 2
    assert store.matrix(settings, todo) == ([], [])
    bench.items.gather(store, lab, settings, todo, "nothing in no time", minutes=-1)
    assert len(store.missing(settings, todo)) == 2


def test_the_paper_s_settings_are_all_there_once(bench: Any) -> None:
    settings = bench.settings.pareto(bench.settings.Grid())
    assert len({setting.key for setting in settings}) == len(settings) == 4 + 5 * 2 * 3 * 2
    parts = [
        setting for part in ("table", "search", "overhead", "memory") for setting in getattr(bench.settings, part)()
    ]
    assert len({setting.key for setting in parts}) == len(parts)
    wide = {(s.about["width"], s.about["draft_width"]) for s in bench.settings.search() if "gamma" in s.about}
    assert wide == {(w, wide) for w in (2, 4, 8) for wide in (w, w * 3 // 2, 2 * w)}


def test_a_whole_run_and_its_tables(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real models, few settings: all parts conclude, and README's table can be written from the file."""
    monkeypatch.setattr(bench.report, "SAMPLES", 50)
    words = ["--quick", "--part", "table", "--part", "memory", "--part", "pareto", "--draft-widths", "2"]
    options = bench.main.options_of([*words, "--tasks", "sql", "--out", str(tmp_path)])
    options.limit, options.tokens = 1, 8
    run = bench.main.Bench(options)
    for part in options.part:
        run.part(part)
    result = json.loads((tmp_path / "beams-embedded-float32.json").read_text())
    row = result["parts"]["table"]["found"]["sql"]["settings"][0]
    assert row["tokens_per_second"] > row["tokens_per_second_with_prompt"] > 0
    assert row["tau"] == row["mean_width"] == 1 and row["score"] in (0, 1) and row["perplexity"] >= 1
    slots = {row["label"]: row for row in result["parts"]["memory"]["found"]}
    assert slots["multinomial"]["to_multinomial"]["median"] == 1
    assert slots["dsbd, one cache"]["slots"] <= slots["dsbd, width 4"]["slots"]
    assert slots["dsbd, width 4"]["row_per_beam_slots"] == pytest.approx(4 * slots["multinomial"]["row_per_beam_slots"])
    table = bench.readme.beams_table([result])
    assert re.search(
        r"^\| embedded \| float32 \| sql \| top-k 10, top-p 0.8 \| multinomial \| \d+\.\d% ", table, re.MULTILINE
    )
    lines = run.store.path.read_text()
    again = bench.main.Bench(options)
    again.part("table")
    assert again.store.path.read_text() == lines
    assert set(json.loads((tmp_path / "beams-embedded-float32.json").read_text())["parts"]) == set(options.part)


def test_the_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "beams.py"))
    printed = capsys.readouterr().out
    forwards = {name: int(count) for name, count in re.findall(r"^([\w-]+) +(\d+) forwards", printed, re.MULTILINE)}
    assert list(forwards) == ["beam-sampling", "dsbd", "beam-search", "speculative-beam-search"]
    assert forwards["dsbd"] < forwards["beam-sampling"]
    assert forwards["speculative-beam-search"] < forwards["beam-search"]
    ranked = [float(value) for value in re.findall(r"^  perplexity +([\d.]+)", printed, re.MULTILINE)]
    assert len(ranked) == 4 and ranked == sorted(ranked)
    assert "the same beams: True" in printed
