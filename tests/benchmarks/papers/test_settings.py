"""'The paper's' settings are those of a table kept as data, with the papers' numbers, wherever a page names them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from benchmarks.execute import read
from benchmarks.experiment import find, load
from benchmarks.pages.readme import METHODS
from benchmarks.papers.models import LEARNED, Models
from benchmarks.papers.page import RESULTS
from benchmarks.papers.settings import OURS, PAPERS, PLAIN, SIZED, files, papers
from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.train.settings import ExitSettings, WritingSettings


def parsed(paper: str, sweep: str) -> dict[str, Method]:
    """The paper's methods of a sweep."""
    entries = papers()[paper].methods(sweep)
    return {label: Method.parse(entry.options) for label, entry in entries.items() if entry.whose == PAPERS}


def test_the_table_has_the_numbers_of_the_papers() -> None:
    found = [method.as_dict() for method in parsed("dsbd", "beams").values() if method.name == "dsbd"]
    beams = {(m["draft_width"], m["threshold"], m["gamma"]) for m in found if not m["one_cache"]}
    assert beams == set(product((2, 3, 4, 5, 6), (0.7, 0.9), (2, 3)))  # §4.2
    assert papers()["dsbd"].sweeps["beams"].sampling == {"temperature": 1.0, "top_k": 10, "top_p": 0.8}
    trees, forks = parsed("mcsd", "trees"), parsed("mcsd", "forks")
    assert trees["speculative, gamma=4"].as_dict()["gamma"] == 4
    ours = trees["target-init. 2,4,3,1,1"].as_dict()
    assert (ours["verify"], ours["initial"], ours["tree"]) == ("longest", 2, [4, 3, 1, 1]) and not ours["replacement"]
    fork = forks["fork W=16"].as_dict()
    assert (fork["width"], fork["gamma"], fork["verify"]) == (16, 5, "longest")
    assert papers()["mcsd"].sweeps["forks"].sampling == {"temperature": 1.0}
    methods, control = parsed("eesd", "methods"), parsed("eesd", "control")
    assert methods["vanilla, K=10"].as_dict()["gamma"] == methods["self-spec, K=10"].as_dict()["gamma"] == 10
    assert all(methods[f"eesd + {name}-ts"].as_dict()["gamma"] is None for name in ("beta", "cali"))  # Algorithm 1
    assert {f"eesd, K={k}" for k in range(1, 11)} <= control.keys()
    taught = papers()["eesd"].training
    settings = ExitSettings(**taught["settings"])
    assert (settings.distill, settings.rate, settings.depth) == (0, 1e-3, 1)
    assert WritingSettings(given="corpus", **taught["writing"]).greedy == (3, 5)
    sized = {
        name
        for paper in papers().values()
        for sweep in paper.sweeps
        for name, entry in paper.methods(sweep).items()
        if entry.whose == SIZED
    }
    assert sized == {
        "speculative",
        "specinfer",
        *(f"dsbd, one beam kept, t={t}" for t in (0.7, 0.9)),
        "medusa",
        *(f"eesd + {name}-ts, tree" for name in ("beta", "cali")),
    }
    assert papers()["mcsd"].scale.model_dump() == {
        "items": {"MT-Bench": 80, "TriviaQA": 250, "Alpaca": 250},
        "seeds": None,
        "tokens": 200,
    }
    assert papers()["eesd"].scale.model_dump() == {"items": 500, "seeds": 10, "tokens": 512}


@pytest.mark.parametrize("paper", papers())
def test_every_option_that_is_named_is_there_and_no_label_stands_for_two(paper: str) -> None:
    for name, sweep in papers()[paper].sweeps.items():
        every, few = papers()[paper].methods(name), papers()[paper].methods(name, full=False)
        assert next(iter(every)) == next(iter(few)) == PLAIN and few.items() <= every.items()
        assert len({Method.parse(entry.options) for entry in every.values()}) == len(every)
        for entry in every.values():
            assert "depth" in entry.options or not hasattr(Method.parse(entry.options), "depth"), entry
        assert {*(sweep.tasks or ())} <= {*papers()[paper].tasks}
    some = papers()["eesd"].methods("methods", only=["vanilla*", "*beta-ts"])
    assert [*some] == [PLAIN, "eesd + beta-ts", "vanilla, K=10"]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_results_called_the_papers_were_measured_with_its_settings(file: Path) -> None:
    document = read(file)
    paper = papers()[document["paper"]]
    for row in document["tables"]["rows"]:
        known = paper.methods(row["sweep"])
        if row["method"].startswith("exit, N="):
            continue
        assert known[row["method"]].whose == row["settings"]
        assert known[row["method"]].options == row["options"] or row["settings"] == OURS, row["method"]


def test_rows_of_other_pages_that_are_called_the_papers_have_its_settings() -> None:
    parts = load(find("headline")).settings["parts"]
    named = {label: at for label, at in METHODS.items() if "the paper's" in label}
    assert named
    known = {method for name in papers() for sweep in papers()[name].sweeps for method in parsed(name, sweep).values()}
    for part, _, label in named.values():
        (options,) = ({**m} for m in parts[part]["methods"] if m["label"] == label)
        assert options.pop("label") == label and Method.parse(options) in known


def test_what_stands_for_trained_files_is_replaced_or_asked_for(tmp_path: Path) -> None:
    models = Models("m", None, tmp_path)  # type: ignore[arg-type]
    options = papers()["eesd"].methods("control")["eesd, cali-ts, no model part"].options
    own = models.own(options, {"EXIT": "e", "CALIBRATION": "c"})
    assert own["exit"] == "e" and own["depth"] == "cali-ts:path=c,model_deviation=10"
    with pytest.raises(ConfigurationError, match="no EXIT was trained"):
        models.own(options, {})
    assert LEARNED == ("EXIT", "CALIBRATION", "OUTPUT", "HIDDEN")


def test_chains_trees_and_forks_are_drawn_from_what_is_there(tmp_path: Path) -> None:
    models = Models("m", None, tmp_path, drafter={"drafter": "lookup"})  # type: ignore[arg-type]
    shapes = {}
    for paper, sweep in (("dsbd", "beams"), ("mcsd", "trees"), ("mcsd", "forks")):
        for label, entry in papers()[paper].methods(sweep).items():
            if "decisions" not in label:
                made = Method.parse(models.own(entry.options, {}))
                assert made.drafts_needed == (0, 0), label
                shapes[label] = made.as_dict()
    assert shapes["speculative, gamma=4"]["tree"] == [1, 1, 1, 1]
    assert (shapes["fork W=16"]["initial"], shapes["fork W=16"]["tree"]) == (16, [1] * 5)
    assert shapes["exact fork W=4"]["tree"] == [4, 1, 1, 1, 1] and shapes["specinfer"]["replacement"]
    with pytest.raises(ConfigurationError, match="give --draft"):
        models.own({"name": "speculative", "gamma": None}, {})


def test_a_data_set_that_is_not_there_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"has no squad/\*dev\*.json\* or squad/\*.json\*, the file of task squad"
    ):
        files("squad", tmp_path)
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "dev-v1.1.json").touch()
    assert files("squad", tmp_path).name == "dev-v1.1.json"
    assert {use.task for paper in papers().values() for use in paper.tasks.values()} == {
        task for task in ("squad", "spider", "triviaqa", "gsm8k", "humaneval", "xsum", "alpaca", "mt_bench")
    }
