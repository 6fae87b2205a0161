"""Papers beside measurements: transcribed tables hold together, and an experiment runs to its page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.kinds import learned
from benchmarks.kinds.learned import Exit, Exits, Learned, Places, Recorded, Steps, learn_for, shapes
from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED, load
from draftwood.errors import ConfigurationError
from draftwood.eval.report.measures import MEASURES
from draftwood.eval.reproduce import exhibits, page, reproducing, results
from draftwood.eval.reproduce.paper import PAPERS, Paper, Scale
from draftwood.eval.reproduce.paper import load as paper
from draftwood.eval.reproduce.reproducing import Evaluation
from draftwood.eval.running import Job, by_round
from draftwood.models.grown import grow_checkpoint
from draftwood.models.heads.exit import load as exit_of

TINY = Scale(items=1, seeds=1, tokens=4)


@pytest.mark.parametrize("name", PAPERS)
def test_every_exhibit_of_a_paper_says_how_it_follows_from_the_evaluations(name: str) -> None:
    """Whatever an exhibit names is there: measures, evaluations, methods at every scale, tasks, rows of the paper."""
    said = paper(name)
    made = Places({"calibration": "c", "decision": "d", "hidden": "h"}, [Exit(1, 1, "distributions", "e")])
    made.exits += [Exit(1, 1, "text", "f"), Exit(1, 1, "mixture", "g"), Exit(1, 0, "mixture", "h")]
    figures = [figure.name for each in said.exhibits for figure in each.figures()]
    assert len(set(figures)) == len(figures) and set(said.scales) == {"small", "full"}
    for scale in said.scales:
        found = reproducing.evaluations(said, scale, made)
        assert list(found) == list(said.evaluations)
        for one in found.values():
            assert next(iter(one.settings)) == "plain decoding" and set(one.tasks) <= set(said.tasks)
        for exhibit in said.exhibits:
            ours = exhibit.ours
            assert bool(ours.of) != bool(ours.shows)
            named = [*ours.table, *ours.trends, *ours.trends.values(), *(each.y for each in ours.figures)]
            named += [each.x for each in ours.figures if each.kind == "front"]
            named += [each.measure for each in (*ours.compare, *ours.rank, *ours.say)]
            assert {*named} - {""} <= {*MEASURES}, exhibit.id
            for asked in ours.compare:
                of = results.Measured(found[asked.evaluation or ours.of].settings, {}, {})
                assert of.choose(exhibits.Chosen(match=asked.of)), (exhibit.id, asked.of)
                for task in said.tasks if not asked.together else [""]:
                    if task in (ours.tasks or found[ours.of].tasks):
                        low, high = exhibits.theirs(asked, exhibit, said, task)
                        assert 0 < low <= high
            if ours.of:
                of = results.Measured(found[ours.of].settings, {}, {})
                chosen = [ours.methods, *ours.lines.values(), *(each.of for each in ours.say)]
                full = [each for each in chosen if scale == "full" or "t=0.7, gamma=3" not in each.match]
                assert all(map(of.choose, full)), exhibit.id
                assert {label for each in ours.rank for label in each.rows.values()} <= {*of.settings}


@pytest.mark.parametrize("name", PAPERS)
def test_no_row_of_a_table_is_there_twice(name: str) -> None:
    for each in paper(name).exhibits:
        heads = [tuple(cell for cell in row if isinstance(cell, str)) for row in each.rows]
        assert len(set(heads)) == len(heads), each.id


def test_numbers_of_the_papers_hold_together() -> None:
    eesd = paper("eesd")
    main, ablation = eesd.exhibit("tables-1-3"), eesd.exhibit("table-4")
    assert len(main.rows) == 64
    for method in ("Beta-TS", "Cali-TS"):  # Table 4, 5 and 7 repeat rows of Table 1
        for data in ("GSM8K", "XSum"):
            where = {"Data_set": data, "Target": "LLaMA-2-13B", "Method": f"EESD + {method}"}
            assert main.number("Speed-up", **where) == ablation.number(f"{data}, speed-up", Method=f"EESD + {method}")
            assert main.number("HM, %", **where) == ablation.number(f"{data}, HM", Method=f"EESD + {method}")
    for table, ending, name in (
        ("table-5", " + Beta-TS", "Beta-TS over fixed K"),
        ("table-7", ", tree", "tree over chain"),
    ):
        exhibit = eesd.exhibit(table)
        ratios = []
        for row in exhibit.rows:
            target, method = (str(exhibit.value(row, column)) for column in ("Target", "Method"))
            for column in ("GSM8K, speed-up", "XSum, speed-up"):
                faster = exhibit.number(column, Target=target, Method=method + ending)
                ratios += [value / float(exhibit.value(row, column)) for value in faster]
        assert len(ratios) == 8
        assert exhibit.ends(name) == pytest.approx((min(ratios), max(ratios)), abs=1e-4)
    times = eesd.exhibit("table-8")
    parts = [[float(times.value(row, part)) for part in times.stacks] for row in times.rows]
    sums = [sum(row) for row in parts]
    assert sums == pytest.approx([34.81, 33.58, 12.18, 11.69], abs=0.006)  # Table 11's
    faster = (sums[0] / sums[1], sums[2] / sums[3])
    assert times.ends("Cali-TS over Beta-TS") == pytest.approx((min(faster), max(faster)), abs=1e-4)
    for place, part in enumerate(("drafting", "verification", "sampling")):
        shares = [100 * row[place] / total for row, total in zip(parts, sums, strict=True)]
        assert times.ends(f"share of {part}, %") == pytest.approx((min(shares), max(shares)), abs=1e-3)
    dsbd = paper("dsbd").exhibit("table-1")
    for data in ("SQuAD", "Spider"):  # what the text says of the table: much better answers at about the same speed
        for models in ("Llama-2", "OPT"):
            scores = {
                method: dsbd.number("EM/EA, %", Data_set=data, Models=models, Method=method)[0]
                for method in ("Multinomial", "SpecDecode", "SpecInfer", "DSBD")
            }
            assert max(scores, key=lambda name: scores[name]) == "DSBD"
    mcsd = paper("mcsd")
    forks, both = mcsd.exhibit("table-3"), mcsd.exhibit("table-4")
    for data in ("MT-Bench", "Alpaca", "TriviaQA"):  # Table 4 repeats Table 3
        for model in ("Llama 2-7B Chat", "Vicuna-7B"):
            repeated = both.number(f"alpha, {model}", Data_set=data, Draft="Llama-68M", Temperature="1")
            assert forks.number("alpha", Data_set=data, Target=model, Method="Fork") == repeated


def test_a_paper_that_does_not_hold_together_is_refused() -> None:
    one = paper("dsbd").exhibit("table-1").model_dump()
    with pytest.raises(ValueError, match="as many cells"):
        type(paper("dsbd").exhibit("table-1")).model_validate({**one, "rows": [["SQuAD", 1.0]]})
    with pytest.raises(ValueError, match="does not have"):
        type(paper("dsbd").exhibit("table-1")).model_validate({**one, "stacks": ["nothing"]})


class Texts(HTMLParser):
    """Ids and the text that a reader sees; nothing may be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        assert not any(str(found.get(name, "#")).lstrip()[:1] != "#" for name in ("src", "href"))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load()


def tiny(name: str, methods: int = 99) -> dict[str, Evaluation]:
    """A paper's evaluations on one item, cut to their first methods."""
    return {
        each: replace(found, settings=dict(list(found.settings.items())[:methods]), scale=TINY)
        for each, found in reproducing.evaluations(paper(name), "small", Places()).items()
    }


def written(name: str, evaluations: Mapping[str, Evaluation], out: Path) -> tuple[str, list[str]]:
    """The page and the sentences of its comparisons."""
    said = paper(name)
    found = results.read(out, {each: one.settings for each, one in evaluations.items()})
    shown = exhibits.shown(said, found, Places())
    path, _ = page.write(said, name, shown, found, out, "small", Places())
    return path.read_text("utf-8"), [one.sentence for _, one in exhibits.main_findings(shown)]


def check(text: str, said: Paper) -> None:
    reader = Texts()
    reader.feed(text)
    assert {each.id for each in said.exhibits} <= reader.ids
    words = " ".join(reader.words)
    assert not re.search(r"\b(nan|NaN|None|inf)\b", words.partition("Configuration of every row")[0])


def test_results_of_a_pair_of_ours_bear_its_name_and_no_place(tmp_path: Path) -> None:
    page.write(paper("dsbd"), "dsbd", [], {}, tmp_path, "full", Places(pair="grown-12x768"))
    document = json.loads((tmp_path / page.RESULTS).read_text("utf-8"))
    assert (document["run"], document["models"]["pair"]) == ("dsbd-12x768", "grown-12x768")
    assert document["made_by"].endswith(" --target grown-12x768/target --draft grown-12x768/draft")


@pytest.mark.parametrize("name", PAPERS)
def test_a_page_of_nothing_has_all_exhibits(name: str, tmp_path: Path) -> None:
    text, _ = written(name, {}, tmp_path)
    check(text, paper(name))
    assert "Not measured yet" in text and "Not all of it has been measured yet" in text


def test_an_experiment_runs_to_its_page_and_goes_on_where_it_was_stopped(engine: Engine, tmp_path: Path) -> None:
    evaluations = tiny("dsbd", 4)

    def stop(job: Job) -> None:
        if (tmp_path / "cut" / "beams" / "items.jsonl").read_bytes().count(b"\n") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproducing.run(engine, evaluations, tmp_path / "cut", told=stop)
    text, _ = written("dsbd", evaluations, tmp_path / "cut")
    check(text, paper("dsbd"))
    assert "3 of 8 runs" in text and "Not all of it has been measured yet" in text
    counts: list[tuple[int, int]] = []
    reproducing.run(engine, evaluations, tmp_path / "cut", lambda made, expected: counts.append((made, expected)))
    reproducing.run(engine, evaluations, tmp_path / "whole")
    assert counts == [(3, 8)]
    text, _ = written("dsbd", evaluations, tmp_path / "cut")
    check(text, paper("dsbd"))
    settings = {"beams": evaluations["beams"].settings}
    found = [results.read(tmp_path / name, settings)["beams"] for name in ("cut", "whole")]
    timeless = [
        [{key: row[key] for key in ("quality", "method", "runs")} for row in each.summary["rows"]] for each in found
    ]
    assert timeless[0] == timeless[1] and len(timeless[0]) == 8
    row = found[0].row("qa", "speculative")
    assert row is not None
    v, r, hm = (row["decoding"][name]["value"] for name in ("acceptance_rate", "draft_share", "harmonic_mean"))
    assert hm == pytest.approx(2 * v * r / (v + r)) and 0 < row["decoding"]["alpha"]["value"] <= 1
    assert "Not all of it has been measured yet" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_whole_experiments_on_one_item(name: str, engine: Engine, tmp_path: Path) -> None:
    evaluations = tiny(name)
    reproducing.run(engine, evaluations, tmp_path)
    text, sentences = written(name, evaluations, tmp_path)
    check(text, paper(name))
    assert len(sentences) > 4 and not all("not measured here" in sentence for sentence in sentences)


LITTLE = {
    "decision": Recorded(prompts=14, tokens=16),
    "hidden": Recorded(prompts=14, tokens=16),
    "calibration": Recorded(prompts=10, tokens=16),
    "exits": Exits(layers=(1,), depths=(1,), steps=2, batch=2, texts=4),
    "costs": Steps(steps=1, batch=1, context=16),
}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:constrained_layout not applied"
)  # of a report's bars, whose methods have long names
@pytest.mark.parametrize("name", PAPERS)
def test_the_whole_path_of_scale_full_at_tiny_size(
    name: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be trained is, all methods of that scale run on an item, and page, results and figures are there."""
    monkeypatch.chdir(tmp_path)  # figures name methods with the places of what was trained, which should be short
    said, out = paper(name), Path("out")
    learn = {key: LITTLE[key] for key, wanted in said.scales["full"].learn if wanted}
    tiny = said.scales["full"].model_copy(update={"learn": Learned(**learn)})
    said = said.model_copy(update={"scales": {**said.scales, "full": tiny}})
    monkeypatch.setattr("draftwood.eval.reproduce.paper.load", lambda wanted: said)
    monkeypatch.setenv("DRAFTWOOD_PAIRS", str(tmp_path / "pairs"))
    asked = ["reproduce", name, "--scale", "full", "--limit", "1", "--seeds", "1", "--max-new-tokens", "3"]
    if name == "eesd":
        asked += ["--training-steps", "1"]
    assert command(*asked, "--out", out).code == 0
    document = json.loads((out / "results.json").read_text("utf-8"))
    assert document["complete"] and document["made_by"] == " ".join(["draftwood", *asked])
    learn = (said.resized("full", 1) if name == "eesd" else said).scales["full"].learn
    made = learn_for(load(), learn, out / reproducing.TRAINED, lambda what: None)
    wanted = {key: [*each.settings] for key, each in reproducing.evaluations(said, "full", made).items()}
    found: dict[str, list[str]] = {}
    for row in document["tables"]["methods"]:
        found.setdefault(row["evaluation"], []).append(row["method"])
    assert {key: [*dict.fromkeys(labels)] for key, labels in found.items()} == wanted
    check((out / page.PAGE).read_text("utf-8"), said)
    assert not any(row["here"] == "not measured here" for row in document["tables"]["comparisons"] if row["verdict"])


def test_a_directory_belongs_to_one_reproduction(tmp_path: Path) -> None:
    about = {"paper": "dsbd", "scale": "small", "models": {"target": "a"}}
    reproducing.claim(tmp_path / "out", about)
    reproducing.claim(tmp_path / "out", about)
    with pytest.raises(ConfigurationError, match=r"another reproduction \(different: scale\)"):
        reproducing.claim(tmp_path / "out", {**about, "scale": "full"})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(ConfigurationError, match="something else"):
        reproducing.claim(tmp_path / "full", about)
    (tmp_path / "out" / reproducing.ABOUT).write_text("{")
    with pytest.raises(ConfigurationError, match="not what `draftwood reproduce` wrote"):
        reproducing.claim(tmp_path / "out", about)
    with pytest.raises(ConfigurationError, match="did you mean 'dsbd'"):
        paper("dsdb")


def test_histograms_of_rounds() -> None:
    found = by_round([SimpleNamespace(depth_accepted=depth, layers=[]) for depth in (2, 0, 1)])  # type: ignore[misc]
    assert found == {"depth_counts": [1, 1, 1], "width_counts": []}


def test_what_was_trained_is_among_the_methods(tmp_path: Path) -> None:
    exits = [Exit(1, 1, "distributions", str(tmp_path / "a")), Exit(1, 1, "mixture", str(tmp_path / "b"))]
    made = Places({"calibration": str(tmp_path / "c")}, exits, {"heads": "none"})
    found = reproducing.evaluations(paper("eesd"), "small", made)
    assert "medusa" not in found["methods"].settings
    assert found["methods"].settings["eesd + cali-ts"].method["depth"] == f"cali-ts:{tmp_path / 'c'}"
    assert list(found["exits"].settings)[1:] == ["exit, N=1, 1 layer", "exit, N=1, 1 layer, the paper's way"]
    assert set(reproducing.evaluations(paper("eesd"), "small", Places())) == {"methods", "control", "calibration"}
    places = Places({"decision": str(tmp_path / "d")})
    forks = reproducing.evaluations(paper("mcsd"), "small", places)["forks"].settings
    decided = [name for name in forks if "decision" in name]
    assert decided and all(f"path={tmp_path / 'd'}" in forks[name].method["depth"] for name in decided)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits learn from a few short rows, and pairs lie in a directory of the test."""
    for name, size in (("CONTEXT", 16), ("HELD_OUT", 2)):
        monkeypatch.setattr(learned, name, size)
    monkeypatch.setenv("DRAFTWOOD_PAIRS", str(tmp_path / "pairs"))


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_exits_are_trained_once_for_a_pair_of_ours_and_all_that_grew_from_it(engine: Engine, tmp_path: Path) -> None:
    wanted = Learned(exits=Exits(layers=(1, 3), depths=(1,), taught=("text",), steps=1, batch=2, rows=4))
    small = learn_for(engine, wanted, tmp_path / "small", lambda what: None)
    assert [each.label for each in small.exits] == [
        *("exit, N=1, 1 layer", "exit, N=3, 1 layer", "exit, N=1, 1 layer, on text alone")
    ]
    grow_checkpoint(EMBEDDED / "target", tmp_path / "grown", "embedded:target", layers=13)
    grown = load(tmp_path / "grown")
    told: list[str] = []
    found = learn_for(grown, wanted, tmp_path / "large", told.append)
    assert not told and not found.missing and (small.pair, found.pair) == ("embedded", "")
    assert [each.label for each in found.exits] == [small.exits[0].label, small.exits[2].label]  # 3 is behind the added
    for mine, theirs in zip(found.exits, (small.exits[0], small.exits[2]), strict=True):
        assert Path(mine.place).is_relative_to(tmp_path / "large")
        assert exit_of(mine.place, grown.target).layers == exit_of(theirs.place, engine.target).layers == 1


@pytest.mark.parametrize(("name", "scale"), [("eesd", "small"), ("mcsd", "full")])
def test_the_size_of_training_is_refused_where_no_exit_is_trained(name: str, scale: str, command: Any) -> None:
    found = command("reproduce", name, "--scale", scale, "--training-steps", "9")
    assert found.code == 2 and "only eesd --scale full trains exits; leave --training-steps out" in found.err
    assert paper("eesd").resized("full", 9).scales["full"].sizes["training_steps"] == 9


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_exits_are_trained_once_and_what_that_took_is_shown(engine: Engine, tmp_path: Path) -> None:
    wanted = Learned(exits=LITTLE["exits"], costs=LITTLE["costs"])
    made = [learn_for(engine, wanted, tmp_path, lambda what: None) for _ in range(2)]
    assert [one.taught for one in made[0].exits] == ["distributions", "text", "mixture", "mixture"]
    assert made[0].rows == made[1].rows and made[0].costs == made[1].costs
    shown = {each.paper.id: each for each in exhibits.shown(paper("eesd"), {}, made[0])}
    cells = [row[1:] for row in shown["table-6"].tables[0].rows]
    assert [row[:2] for row in cells] == [*[["0.79M", "2"]] * 3, ["0.39M", "2"]] and all(
        float(row[2]) >= 0 for row in cells
    )
    costs = shown["table-6"].tables[1].rows
    assert [row[0] for row in costs] == ["eesd, N=1", "eesd, N=1, distilled", "medusa, 4 heads", "draft model"]


def test_exits_are_taught_by_distributions_and_those_of_the_first_shape_otherwise_too() -> None:
    found = shapes(Exits(layers=(0.25, 2), depths=(1, 2)), 4)
    first = "exit, N=1, 1 layer"
    assert [each.label for each in found] == [
        *(first, "exit, N=2, 1 layer", "exit, N=1, 2 layers"),
        *(f"{first}, on text alone", f"{first}, the paper's way", "exit, N=1, 0 layers, the paper's way"),
    ]
