"""Methods in turns on the same items: a study resumes, compares what belongs together, and writes what was found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.command import started
from benchmarks.execute import write
from benchmarks.papers import dsbd, learned
from benchmarks.papers.__main__ import app, check_target, counted, differing, made_by
from benchmarks.papers.models import Models
from benchmarks.papers.page import amount, findings
from benchmarks.papers.settings import PLAIN, PaperSettings, TaskUse, papers
from benchmarks.papers.study import Size, Study
from draftwood.engine.loading import EMBEDDED, load
from draftwood.errors import ConfigurationError
from draftwood.eval import evaluation, provenance
from draftwood.eval.provenance import content
from draftwood.eval.tasks import TASKS

PARTS = {"dsbd": ["beams"], "mcsd": ["trees", "shapes", "forks", "forks-greedy"], "eesd": ["methods", "control"]}

SMALL = PaperSettings(
    title="Two methods",
    scale={"items": None, "seeds": None, "tokens": None},  # type: ignore[arg-type]
    tasks={"MT-Bench": TaskUse(task="mt_bench", embedded="stories"), "SQuAD": TaskUse(task="squad", embedded="qa")},
    sweeps={
        "first": {  # type: ignore[dict-item]
            "where": "§1",
            "sampling": {"temperature": 0.0},
            "paper": [
                {"label": PLAIN, "name": "autoregressive"},
                {"label": "chain", "name": "speculative", "gamma": 3},
            ],
            "ours": [{"label": "lost", "name": "eesd", "exit": "EXIT"}],
        }
    },
)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models("embedded", load(), EMBEDDED / "target")


def test_a_study_compares_methods_on_the_same_items_and_resumes(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(SMALL, models, Size(4, 1, 6), tmp_path)
    found = study.run("first")
    assert study.notes == ["lost is left out: no EXIT was trained."] and found.labels == [PLAIN, "chain"]
    runs = {(record["task"], record["place"], record["method"]): record for record in found.records}
    assert len(runs) == 16

    def rate(task: str, number: int) -> float:
        mine = [each for key, each in runs.items() if (key[0], key[2]) == (task, number)]
        return float(sum(each["tokens"] for each in mine) / sum(each["seconds"] for each in mine))

    each = [rate(task, 1) / rate(task, 0) for task in ("stories", "qa")]
    both = found.faster("chain", PLAIN)
    assert both is not None and both["value"] == pytest.approx((each[0] * each[1]) ** 0.5) and both["n"] == 8
    alone = found.faster("chain", PLAIN, ["SQuAD"])
    assert alone is not None and alone["value"] == pytest.approx(each[1])
    assert found.measure("speed-up", "SQuAD", PLAIN) is None is found.measure("speed-up", "SQuAD", "lost")
    assert found.measure("speed-up", "SQuAD", "chain") == pytest.approx(alone) and found.faster("lost", PLAIN) is None

    cut = replace(found, records=[record for record in found.records if record["task"] != "qa"])
    assert cut.faster("chain", PLAIN) is None and cut.faster("chain", PLAIN, ["MT-Bench"]) is not None
    unscored = [
        {**record, "status": "failed", "stage": "score"} if (record["task"], record["place"]) == ("qa", 0) else record
        for record in found.records
    ]
    scores = replace(found, records=unscored).table("SQuAD", [PLAIN])
    assert found.by_score("SQuAD", [PLAIN])
    assert scores[0, 3].tolist() == [0, 1, 1, 1]  # what could not be scored is no wrong answer

    def perplexity(number: int) -> float:
        mine = [each for key, each in runs.items() if (key[0], key[2]) == ("qa", number)]
        return math.exp(sum(each["nats"] for each in mine) / sum(each["tokens"] for each in mine))

    less = found.perplexity("chain", PLAIN, ["SQuAD"])
    assert less is not None and less["value"] == pytest.approx(perplexity(1) / perplexity(0))
    assert found.perplexity("lost", PLAIN) is None
    assert 0 < found.value("alpha", "MT-Bench", "chain") <= 1 < found.value("tau", "MT-Bench", "chain")
    study.compare("Table 1", "speed", (1.0, None), both)
    tables = study.tables()
    assert tables["tables"]["findings"][0]["here"]["n"] == 8 and tables["environment"]["git_commit"]
    rows = [(row["task"], row["method"], row["settings"]) for row in tables["tables"]["rows"]]
    assert rows[:2] == [("MT-Bench", PLAIN, "the paper's"), ("MT-Bench", "chain", "the paper's")] and len(rows) == 4
    assert not any("lossy" in row for row in tables["tables"]["rows"])
    monkeypatch.setattr(evaluation.Runner, "record", lambda *arguments: pytest.fail("measured again"))
    again = Study(SMALL, models, Size(4, 1, 6), tmp_path).run("first")
    assert again.faster("chain", PLAIN) == both


def test_more_items_at_another_commit_are_told(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Study(SMALL, models, Size(1, 1, 6), tmp_path).run("first")
    monkeypatch.setattr(provenance, "commit", lambda: "f00d" * 10)
    study = Study(SMALL, models, Size({"MT-Bench": 1, "SQuAD": 2}, 1, 6), tmp_path)
    assert len(study.run("first").records) == 6
    (told,) = [note for note in study.notes if note.endswith("are the commits of its runs.")]
    assert told.startswith("first: ") and ", f00df00df are" in told


def test_items_that_drafts_learnt_from_are_counted(models: Models, tmp_path: Path) -> None:
    asked = Study(SMALL, models, Size(3, 1, 6), tmp_path).instances(["SQuAD"])["SQuAD"][1]
    lines = [
        {"messages": [{"role": "user", "content": f"Hm. {max(each.turns[0].splitlines(), key=len)}"}]} for each in asked
    ]
    (told := tmp_path / "told.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[1:]), "utf-8")
    for given in ({"prompts": str(told)}, {"given": str(told)}, {"texts": told}, {"seen": [told]}):
        study = Study(SMALL, replace(models, **given), Size(3, 1, 6), tmp_path)  # type: ignore[arg-type]
        assert len(study.instances(["SQuAD"])["SQuAD"][1]) == 3
        assert study.notes == ["SQuAD: 2 of 3 items stand in what drafts learnt from."]


def test_eq_14_is_the_papers_formula(models: Models, tmp_path: Path) -> None:
    """v_d / ((alpha - v_d) r_d + v_d), alpha the seconds of a drafted token over those of a token of plain decoding."""
    found = Study(SMALL, models, Size(3, 1, 12), tmp_path).run("first")
    mine, plain = found.of("chain", "MT-Bench"), found.of(PLAIN, "MT-Bench")
    drafted, accepted, emitted, seconds = (
        sum(each["rounds"][name] for each in mine) for name in ("drafted", "accepted", "emitted", "draft_seconds")
    )
    token = sum(each["seconds"] for each in plain) / sum(each["tokens"] for each in plain)
    v, r, alpha = accepted / drafted, accepted / emitted, seconds / drafted / token
    guess, share = (found.measure(name, "MT-Bench", "chain") for name in ("Eq. 14", "measured/Eq. 14"))
    assert guess is not None and guess["value"] == pytest.approx(v / ((alpha - v) * r + v))
    measured = found.value("speed-up", "MT-Bench", "chain")
    assert share is not None and share["value"] == pytest.approx(measured / guess["value"])
    assert found.measure("Eq. 14", "MT-Bench", PLAIN) is None


def test_equal_quality_is_never_out_of_reach() -> None:
    """The best where none is as good; of several as good the fastest; of equal baselines the fastest."""
    tokens, seconds = np.full(4, 100.0), np.array([1.0, 2.0, 4.0, 5.0])  # two candidates, two baselines
    for scores, chosen in (
        ([9, 9, 9, 9], (0, 2)),
        ([8, 9, 9, 9], (1, 2)),
        ([7, 8, 9, 9], (1, 2)),
        ([9, 9, 8, 9], (0, 3)),
    ):
        sums = np.stack([tokens, seconds, np.array(scores, float), np.full(4, 10.0), np.zeros(4)], axis=1)[..., None]
        first, second = dsbd.at_equal_quality(2)(sums)
        assert (int(first[0]), int(second[0])) == chosen, scores


@pytest.mark.parametrize("name", ["dsbd", "mcsd", "eesd"])
def test_what_is_compared_is_measured(name: str) -> None:
    """Labels and data sets of the papers' values are those of the settings."""
    script, paper = import_module(f"benchmarks.papers.{name}"), papers()[name]
    known = {label for sweep in paper.sweeps for label in paper.methods(sweep)}
    kept = {label for sweep in paper.sweeps for label in paper.methods(sweep, full=False)}
    tables = [table for key, table in vars(script).items() if key.startswith("TABLE")]
    named = {key for table in tables for key in table if isinstance(key, str)}
    named |= {label for table in tables for key in table if isinstance(key, tuple) for label in key}
    assert named - {*paper.tasks} <= kept <= known
    assert {use.embedded for use in paper.tasks.values()} <= {*TASKS}


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["dbsd"], "'dbsd' is not one of 'dsbd', 'mcsd', 'eesd'"),
        (
            ["dsbd", "--items", "0"],
            "--items 0 is neither a number from 1 nor one of a task of this paper (SQuAD, Spider)",
        ),
        (["dsbd", "--items", "XSum=3"], "--items XSum=3 is neither"),
        (["dsbd", "--items", "SQuAD=1"], "--items says nothing of Spider; say --items Spider=30, too"),
        (["dsbd", "--pair", "grown-13x768"], "there is no pair 'grown-13x768'"),
        (["mcsd", "--part", "tree"], "there is no part 'tree' (did you mean 'trees'?)"),
        (["dsbd", "--data", "nowhere", "--items", "1"], "nowhere has no squad/*dev*.json* or squad/*.json*"),
        (["mcsd", "--drafter", "eagle", "--head", "nowhere"], "nowhere"),
        (["eesd", "--heads", "nowhere"], "nowhere"),
        (["eesd", "--exit", "nowhere"], "nowhere"),
    ):
        assert started(app, "benchmarks.papers", arguments) == 2
        shown = capsys.readouterr()
        assert not shown.out and sentence in shown.err and shown.err.count("\n") == 1


def test_items_are_counted_by_task() -> None:
    tasks = ("GSM8K", "XSum", "HumanEval")
    assert counted([], tasks) is None and counted(["30"], tasks) == 30
    assert (
        counted(["XSum=5", "30"], tasks)
        == counted(["30", "XSum=5"], tasks)
        == {"GSM8K": 30, "XSum": 5, "HumanEval": 30}
    )
    assert counted(["XSum=5"], tasks) == {"XSum": 5}
    assert amount({"GSM8K": 30, "XSum": 5}, 3, None) == "GSM8K 30, XSum 5 items, 3 seeds"


def test_an_exit_can_learn_from_the_targets_text_alone(models: Models, tmp_path: Path) -> None:
    rows = [{"text": f"{source}\u2028{i}", "source": source} for i, source in enumerate(("target", "given", "target"))]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    study = Study(SMALL, replace(models, texts=texts), Size(1, 1, 4), tmp_path / "out")
    own = learned.texts_of(study, "target").read_text("utf-8")
    assert [json.loads(line) for line in own.split("\n") if line] == [rows[0], rows[2]]
    assert learned.texts_of(study, "mixed") == texts
    texts.write_text(json.dumps({"text": "a"}), "utf-8")
    with pytest.raises(ConfigurationError, match="says of no text that the target wrote it"):
        learned.texts_of(study, "target")


def test_a_method_that_no_claim_is_about_has_no_row() -> None:
    assert findings([{"pair": "embedded", "tables": {"findings": []}}]).count("\n") == 1  # heads alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dsbd", "mcsd", "eesd"])
def test_a_whole_paper_on_two_items(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--items", "2", "--seeds", "1", "--max-new-tokens", "4", "--steps", "2", "--out", str(tmp_path)]
    assert started(app, "benchmarks.papers", [name, *flags]) == 0
    document = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert [part["part"] for part in document["parts"]] == [*PARTS[name]] and document["tables"]["rows"]
    assert {row["sweep"] for row in document["tables"]["rows"]} == {*PARTS[name]}
    assert all(each["here"] for each in document["tables"]["findings"] if "W=" not in each["what"])
    assert "| source | what | the paper |" in capsys.readouterr().out


def test_results_name_no_directory_of_the_machine() -> None:
    assert made_by(["mcsd", "--data", "/somewhere/sets", "--target", "~/models/a.gguf"]).endswith(
        "sets --target a.gguf"
    )


def test_what_was_cut_short_can_be_read_and_goes_on(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, calls = Study(SMALL, models, Size(2, 1, 4), tmp_path), iter([False] * 5 + [True] * 9)
    with monkeypatch.context() as patch:
        patch.setattr(Study, "over", property(lambda self: next(calls)))
        some = study.run("first")
    assert len(some.records) == 5 and "first: 5 of 8 runs were made in time." in study.notes
    assert some.faster("chain", PLAIN) is not None
    assert len(Study(SMALL, models, Size(2, 1, 4), tmp_path).run("first").records) == 8


@pytest.fixture
def taught(models: Models, tmp_path: Path) -> Callable[..., Study]:
    """Studies that train an exit on three short texts."""
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"Once there was a {colour} kite. " * 40}) for colour in ("red", "blue", "green")]
    texts.write_text("\n".join(lines) + "\n", "utf-8")
    own = replace(models, texts=texts)

    def study(steps: int = 1, out: str = "out", models: Models = own, **options: Any) -> Study:
        return Study(papers()["eesd"], models, Size(1, 1, 4), tmp_path / out, steps=steps, batch=1, **options)

    return study


def test_what_is_learned_is_learned_anew_of_something_else(
    taught: Callable[..., Study], models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exits by their steps and texts, predictors by their exit, decision models by what drafts."""
    first, again, longer = (learned.exit_layer(taught(steps)) for steps in (1, 1, 2))
    assert first == again != longer and first[1] == longer[1]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(texts.read_text("utf-8").splitlines()[::-1]) + "\n", "utf-8")
    assert learned.exit_layer(taught())[0] not in (first[0], longer[0])

    class Placed(Exception):
        pass

    def place(study: Study, *origins: Any) -> Path:
        raise Placed(origins)

    def origins(learn: Callable[..., object], *arguments: Any) -> str:
        with pytest.raises(Placed) as placed:
            learn(*arguments)
        return str(placed.value)

    monkeypatch.setattr(learned, "_place", place)
    of_exit = [origins(learned.predictor, taught(), exit) for exit in (first[0], first[0], longer[0])]
    assert of_exit[0] == of_exit[1] != of_exit[2]
    drafters = ({}, {}, {"drafter": "exit", "exit": first[0]}, {"drafter": "exit", "exit": longer[0]})
    own = [replace(models, drafter=each) for each in drafters]
    of_draft = [origins(learned.decision, taught(models=each), "output", 8, 8) for each in own]
    assert of_draft[0] == of_draft[1] and len({*of_draft}) == 3


def test_time_that_ends_during_training_loses_nothing(
    taught: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call goes on behind the last step, to the exit of a run that was not cut short."""
    steps: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Study, "over", property(lambda self: bool(steps)))
        with pytest.raises(ConfigurationError, match=r"^step 2 of 3 of exit, N=.* was not done in time; call again"):
            learned.exit_layer(taught(3, told=steps.append))
    place, label = learned.exit_layer(taught(3, told=steps.append))
    assert steps == [f"training {label}: step {step} of 3" for step in (1, 2, 3, 3)]
    assert content(place) == content(learned.exit_layer(taught(3, "whole"))[0])


def test_parts_say_where_their_models_differ(models: Models, tmp_path: Path) -> None:
    """A part of another target is refused, other drafts are told."""
    parts = [
        {"part": name, "origins": {**models.origins, "draft": draft}}
        for name, draft in (("a", "small (1f)"), ("b", "small (2e)"), ("c", "small (1f)"))
    ]
    assert differing(parts[:1]) == differing(parts[::2]) == []
    assert differing(parts) == [
        "Parts have different models as draft: small (1f) in a, small (2e) in b, small (1f) in c."
    ]
    for part in parts:
        write(tmp_path / "parts" / f"{part['part']}.json", {**part, "tables": {}})
    check_target(tmp_path, ["a", "b", "c"], models.origins)
    with pytest.raises(ConfigurationError, match=r"holds a of the target embedded, float32, not other; choose another"):
        check_target(tmp_path, ["a", "b", "c"], {**models.origins, "target": "other"})
