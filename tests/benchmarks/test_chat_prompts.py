"""Answers by kind of text: nothing held out is trained on, arms take turns, and what is missing is a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench import Bench
from benchmarks.engines import file_cell
from benchmarks.execute import execute
from benchmarks.experiment import ExperimentRun, find, load
from benchmarks.kinds import chat_prompts
from benchmarks.kinds.chat_prompts import ChatPrompts
from benchmarks.pages import chat_prompts as page
from benchmarks.pages import tables
from benchmarks.pairs import Pair
from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from recipes import shared_prompts
from recipes.shared_prompts import split, write

ROWS: dict[str, list[dict[str, Any]]] = {
    "alpaca": [{"prompt": "Name a river.", "reference": "The Rhine."}],
    "gsm8k": [{"question": f"What is {i} and {i}?", "solution": f"{2 * i}"} for i in range(30)],
    "humaneval": [{"prompt": f"def f{i}():\n", "canonical_solution": f"    return {i}\n"} for i in range(30)],
    "mt_bench": [{"category": "coding" if i % 4 else "writing", "turns": [f"Write {i}."]} for i in range(12)],
    "spec_bench": [{"category": "math", "turns": ["What is 29 and 29?"]}, {"category": "qa", "turns": ["Who is it?"]}],
    "squad": [{"prompt": "Where?", "context": "There."}],
    "xsum": [{"document": "Some news. " * i} for i in range(1, 26)],
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "data"
    for name, rows in ROWS.items():
        (place / name).mkdir(parents=True)
        (place / name / "part.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(place))
    return place


def test_what_is_held_out_is_not_trained_on(data: Path, tmp_path: Path) -> None:
    train, held_out = split(data)
    assert {kind: len(texts) for kind, texts in held_out.items()} == {"chat": 2, "maths": 20, "code": 20, "summary": 20}
    assert not {*train} & {text for texts in held_out.values() for text in texts}  # one is in two data sets
    assert len(train) == len({*train}) == 10 + 10 + 1 + 1 + 1 + 10
    write(data, tmp_path / "out")
    assert (tmp_path / "out" / "train.jsonl").read_text("utf-8").count("\n") == len(train)
    with pytest.raises(ConfigurationError, match="give a directory with the data sets"):
        split(tmp_path)
    assert chat_prompts.held_out(("maths", "squad"), 1) == {"maths": held_out["maths"][:1], "squad": ["Where?"]}
    assert [*chat_prompts.held_out(None, 1)] == [*held_out]


def test_what_the_papers_ask_is_not_trained_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompts, "ASKED", {"gsm8k": 5, "humaneval": 4})
    write(data, tmp_path)
    train, own, given = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("train", "papers/prompts", "papers/given")
    )
    left = [row for row in train if row not in own]
    asked = {f"What is {i} and {i}?" for i in range(5)} | {f"Write {i}." for i in range(12)}
    asked |= {shared_prompts.CODE.format(f"def f{i}():\n") for i in range(4)}
    assert {row["messages"][0]["content"] for row in left} == asked - {"Write 0.", "Write 4."}  # these are held out
    assert len(given) == 25 + 1 + 26 + 1 and {"text": "There."} in given
    assert not any(f"def f{i}():" in json.dumps(given) for i in range(4))


def test_arms_take_turns_and_the_page_shows_them(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(engine: Engine, message: str) -> list[int]:  # the embedded pair has no chat template
        return engine.tokens(message)

    monkeypatch.setattr(chat_prompts, "encoded", encoded)
    path = find("chat-prompts")
    arms = {"plain": {"name": "autoregressive"}, "lookup": {"name": "lookup"}, "default": {}}
    experiment = load(path).model_copy(update={"settings": {"arms": arms, "trained": "", "draws": 2}})
    out = tmp_path / "results" / "chat-prompts"
    monkeypatch.setattr(chat_prompts, "TRAINED", tmp_path / "data")  # nothing for this target
    rows = execute(experiment, path, "greedy", ExperimentRun(), out, smoke=True)["tables"]
    assert {row["failure"] for row in rows["failures"]} == {"give --llama-python PATH, a Python with llama-cpp-python"}
    speed = {(row["temperature"], row["kind"], row["arm"]): row for row in rows["speed"]}
    assert len(speed) == 2 * 3 * 3
    for (temperature, kind, arm), row in speed.items():
        assert row["answers"] == 2 * row["speed_up"]["n"] == (4 if kind == "all" else 2)  # two of a message
        assert row["tokens_per_second"]["value"] > 0
        assert temperature or row["same_text"] == 1
        assert arm != "plain" or row["speed_up"]["value"] == row["tau"] == 1
    assert speed[0, "all", "default"]["method"] == "eesd"  # the embedded target has an exit
    monkeypatch.setattr(tables, "RESULTS", out.parent)
    shown = page.section()
    assert "| greedy | 0 | plain | " in shown and "Four beams" not in shown and "with AMX" not in shown
    execute(
        experiment, find("chat-prompts-amx"), "greedy", ExperimentRun(), out.with_name("chat-prompts-amx"), smoke=True
    )
    assert "with AMX: `greedy`, T = 0: " in page.section()
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert page.section() == ""


def test_a_grown_model_is_loaded_once(tmp_path: Path) -> None:
    """What was grown with it lies beside it, so that its default is that of the engine that there is."""
    bench = Bench(ExperimentRun(), tmp_path, models=Pair("grown", EMBEDDED / "target", None, tmp_path))
    kind = ChatPrompts(arms={"plain": {"name": "autoregressive"}, "default": {}})
    assert kind.engine(bench, None, True) is kind.engine(bench, None, False) is bench.engine
    assert bench.engine.default_method.name == "eesd"


def test_an_engines_answers_end_where_they_should() -> None:
    class Counting:
        def answer(self, prompt: list[int], count: int, temperature: float, end: list[int]) -> list[int]:
            return [*range(count)]

    job = {"prompts": [[1], [2, 3]], "tokens": 5, "temperature": 0.0, "end": [0]}
    answers = file_cell.answers(Counting(), job)
    assert [one["tokens"] for one in answers] == [[0, 1, 2, 3, 4]] * 2
    assert file_cell.longest(job) >= 2 + 5 + file_cell.MAX_DRAFTED
