"""Tasks: original files of each data set, how items are asked, what their hashes stand for."""

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks import TASKS, Instance, Task, parse, parse_all, summarising

Write = Callable[[str, Any], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a document as JSON, or a list of rows as JSON lines, and gives the path."""

    def made(name: str, document: Any) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = name.endswith(".jsonl")
        path.write_text("\n".join(map(json.dumps, document)) + "\n" if lines else json.dumps(document), "utf-8")
        return str(path)

    return made


def asked(task: Task, limit: int | None = None, chat: bool = False) -> list[Instance]:
    return task.instances(limit, chat)


def squad_document(*entries: tuple[str, list[str]]) -> dict[str, Any]:
    qas = [
        {"id": f"q{i}", "question": question, "answers": [{"text": text, "answer_start": 0} for text in answers]}
        for i, (question, answers) in enumerate(entries)
    ]
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "Ash is red.", "qas": qas}]}]}


def test_squad_files_of_both_versions(write: Write) -> None:
    path = write("dev.json", squad_document(("What is red?", ["Ash", "the Ash"]), ("What is blue?", [])))
    first, second = asked(parse("squad", {"path": path, "shots": 0}))
    task = parse("squad", {"path": path})
    assert first.prompt() == "Passage: Ash is red.\nQuestion: What is red?\nAnswer:"
    assert first.item == "q0" and first.stop == ("\n",)
    assert task.score(first, [" The ash.\nQuestion: next"]) == {"em": 1, "f1": 1}
    assert task.score(first, [" a red ash"]) == {"em": 0, "f1": pytest.approx(2 / 3)}
    assert task.score(second, [" unanswerable"]) == {"em": 1, "f1": 1}
    assert task.score(second, [" Ash"]) == {"em": 0, "f1": 0}
    assert task.score(first, [" unanswerable"]) == {"em": 0, "f1": 0}


@pytest.mark.parametrize("chat", [False, True])
def test_questions_on_one_passage_are_drawn_together(write: Write, chat: bool) -> None:
    paragraphs = squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Ash"]))["data"][0]["paragraphs"]
    other = [{**paragraphs[0], "context": "Oak is green."}]
    path = write("dev.json", {"data": [{"title": "t", "paragraphs": [*paragraphs, *other]}]})
    task = parse("squad", {"path": path, "shots": 0})
    clusters = [task.cluster(instance) for instance in asked(task, chat=chat)]
    assert clusters[0] == clusters[1] != clusters[2] == clusters[3] and all(clusters)
    qa = parse("qa")
    assert qa.cluster(asked(qa, 1)[0]) == ""


def test_one_shot_shows_the_first_row_and_does_not_ask_it(write: Write) -> None:
    path = write("dev.json", squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Ash"]), ("Why?", ["red"])))
    instances = asked(parse("squad", {"path": path}), 1)
    assert [instance.item for instance in instances] == ["q1"]
    assert instances[0].prompt() == (
        "Passage: Ash is red.\nQuestion: What is red?\nAnswer: Ash\n\n"
        "Passage: Ash is red.\nQuestion: Who is red?\nAnswer:"
    )
    with pytest.raises(ConfigurationError, match="no items to ask"):
        asked(parse("squad", {"path": path, "shots": 3}))


def test_examples_may_come_from_another_file(write: Write) -> None:
    path = write("test.jsonl", [{"question": "One?", "answer": "#### 1"}, {"question": "Two?", "answer": "#### 2"}])
    other = write("train.jsonl", [{"question": "Nine?", "answer": "#### 9"}, {"question": "Ten?", "answer": "#### 10"}])
    instances = asked(parse("gsm8k", {"path": path, "shots_from": other, "shots": 2}))
    assert [instance.item for instance in instances] == ["0", "1"]
    assert instances[0].prompt() == (
        "Question: Nine?\nAnswer: #### 9\n\nQuestion: Ten?\nAnswer: #### 10\n\nQuestion: One?\nAnswer:"
    )
    with pytest.raises(ConfigurationError, match="has 2 rows, but 3 are to be shown"):
        asked(parse("gsm8k", {"path": path, "shots_from": other, "shots": 3}))


def test_chat_models_are_asked_in_turns_with_an_instruction(write: Write) -> None:
    path = write("dev.json", squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Ash"])))
    (instance,) = asked(parse("squad", {"path": path}), chat=True)
    messages = instance.prompt()
    assert isinstance(messages, list)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"].startswith("Answer with a span of the passage")
    assert messages[1]["content"] == "Ash" and messages[2]["content"].endswith("Who is red?\nAnswer:")
    assert instance.stop == ()  # the template ends the reply


def test_trivia_takes_all_aliases(write: Write) -> None:
    answer = {"Value": "New York", "Aliases": ["NYC"], "NormalizedAliases": ["big apple"]}
    path = write("qa.json", {"Data": [{"QuestionId": "t1", "Question": "Where?", "Answer": answer}]})
    task = parse("triviaqa", {"path": path, "shots": 0})
    (instance,) = asked(task)
    assert instance.item == "t1"
    assert [task.score(instance, [said])["em"] for said in (" nyc", " The Big-Apple!", " New York\nAnd", " York")] == [
        *(1, 1, 1, 0)
    ]


def test_gsm8k_wants_the_final_number(write: Write) -> None:
    rows = [
        {"question": "One?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"},
        {"question": "Two?", "answer": "#### 1,000"},
    ]
    task = parse("gsm8k", {"path": write("test.jsonl", rows)})
    (instance,) = asked(task)
    assert instance.prompt() == "Question: One?\nAnswer: 1 + 1 = 2\n#### 2\n\nQuestion: Two?\nAnswer:"
    assert task.score(instance, ["500 + 500 = $1,000.\n#### 1000"])["correct"] == 1
    assert task.score(instance, ["It is 999."])["correct"] == 0


@pytest.fixture
def spider(write: Write, tmp_path: Path) -> dict[str, Any]:
    tables = {
        "db_id": "towns",
        "table_names_original": ["town", "owner"],
        "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [1, "town_id"]],
        "column_types": ["text", "number", "text", "number"],
        "primary_keys": [1],
        "foreign_keys": [[3, 1]],
    }
    write("tables.json", [tables])
    (tmp_path / "database" / "towns").mkdir(parents=True)
    with sqlite3.connect(tmp_path / "database" / "towns" / "towns.sqlite") as connection:
        connection.executescript(
            "CREATE TABLE town (id INT, name TEXT); INSERT INTO town VALUES (2, 'Elm'), (1, 'Ash'), (3, 'Elm');"
        )
    connection.close()
    rows = [
        {"db_id": "towns", "question": "How many?", "query": "SELECT count(*) FROM town"},
        {"db_id": "towns", "question": "Names?", "query": "SELECT name FROM town"},
        {"db_id": "towns", "question": "Names by id?", "query": "SELECT name FROM town ORDER BY id"},
    ]
    return {"path": write("dev.json", rows)}


def test_spider_scores_what_queries_give(spider: dict[str, Any]) -> None:
    task = parse("spider", spider)
    names, by_id = asked(task)
    assert names.prompt() == (
        "Table town: id number primary key, name text\nTable owner: town_id number\nowner.town_id refers to town.id\n"
        "Question: How many?\nSQL: SELECT count(*) FROM town;\n\n"
        "Table town: id number primary key, name text\nTable owner: town_id number\nowner.town_id refers to town.id\n"
        "Question: Names?\nSQL:"
    )

    def right(instance: Instance, said: str) -> float:
        return task.score(instance, [said])["execution"]

    assert right(names, " SELECT name FROM town ORDER BY name") == 1
    assert right(names, " SELECT DISTINCT name FROM town") == 0  # duplicates count
    assert right(by_id, " SELECT name FROM town ORDER BY id") == 1
    assert right(by_id, " SELECT name FROM town ORDER BY id DESC") == 0
    assert task.score(names, [" SELECT nothing FROM town"]) == {"execution": 0, "valid": 0}
    assert task.score(names, [" DROP TABLE town"]) == {"execution": 0, "valid": 0}
    assert right(names, " SELECT name FROM town") == 1


def test_spider_says_what_it_lacks(spider: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="which does not exist; give tables or databases"):
        asked(parse("spider", {**spider, "databases": str(tmp_path / "no")}))
    with pytest.raises(ConfigurationError, match="needs the databases"):
        asked(parse("spider"))


def test_xsum_and_what_happens_without_the_library(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"document": f"A cat {i}.", "summary": f"Cat {i}.", "id": i} for i in range(2)]
    task = parse("xsum", {"path": write("test.json", rows)})
    (instance,) = asked(task)
    assert task.score(instance, [" cats 1\nmore"])["rouge1"] == 1
    summarising._scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(ConfigurationError, match=r"install the extra draftwood\[eval\]"):
        asked(task)


def test_conversations_have_turns_and_know_what_was_said(write: Write) -> None:
    rows = [{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["x", "y"]}]
    for name in ("mt_bench", "spec_bench"):
        task = parse(name, {"path": write("question.jsonl", rows)})
        (instance,) = asked(task)
        assert instance.prompt(()) == "User: Write.\nAssistant:"
        assert instance.prompt([" Done."]) == "User: Write.\nAssistant: Done.\n\nUser: Again.\nAssistant:"
        assert task.score(instance, ["a", "b"]) == {}  # nobody judges
        (chat,) = asked(task, chat=True)
        assert [message["content"] for message in chat.prompt([" Done."])] == ["Write.", "Done.", "Again."]
    row = {"instruction": "Count.", "input": "1 2", "output": "2"}
    (instance,) = asked(parse("alpaca", {"path": write("alpaca.json", [row])}))
    assert instance.prompt() == "User: Count.\n\n1 2\nAssistant:"


def test_humaneval_runs_its_tests(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that are run are checked here, their sandbox elsewhere."""
    from draftwood.eval.sandbox.programs import ProgramVerdict
    from draftwood.eval.tasks import code

    def unsafe(program: str, tests: str = "", functions: Sequence[str] = (), limits: object = None) -> ProgramVerdict:
        space: dict[str, object] = {}
        try:
            exec(program, space)
            exec(tests, {name: space[name] for name in functions})
        except Exception:
            return ProgramVerdict(False, "failed")
        return ProgramVerdict(True, "passed")

    monkeypatch.setattr(code, "run_program", unsafe)
    test = "def check(candidate):\n    assert candidate(4) == 2\n"
    row = {"task_id": "H/0", "prompt": "def half(x):\n", "entry_point": "half", "test": test}
    task = parse("humaneval", {"path": write("h.jsonl", [row])})
    (instance,) = asked(task)
    assert instance.prompt() == "def half(x):"
    assert task.score(instance, ["\n    return x // 2"]) == {"passed": 1}
    assert task.score(instance, ["    return x // 2"]) == {"passed": 1}
    assert task.score(instance, ["\n    return x"]) == {"passed": 0}
    (chat,) = asked(task, chat=True)
    assert task.score(chat, ["Here:\n```python\ndef half(x):\n    return x / 2\n```"]) == {"passed": 1}


@pytest.mark.parametrize("name", [name for name in TASKS if "path" not in TASKS[name].model_fields])
def test_the_embedded_world_asks_held_out_items_that_its_own_answers_solve(name: str) -> None:
    task = parse(name)
    if task.runs_code:
        task = task.model_copy()
        instances = [task.instance(item, (), False) for item, _ in zip(task.items(), range(2), strict=False)]
    else:
        instances = asked(task, 3)
    again = [task.instance(item, (), False) for item, _ in zip(task.items(), instances, strict=False)]
    assert [instance.hash for instance in instances] == [instance.hash for instance in again]
    assert len({instance.hash for instance in instances}) == len(instances)
    if name in ("math", "summaries", "bodies"):
        for instance in instances:
            assert task.score(instance, [instance.reference["completion"]]) == {task.metric: 1}
            wrong = " 1 + 1 = 2\nAnswer: -5" if name == "math" else " nothing"
            assert task.score(instance, [wrong]) == {task.metric: 0}
    if name == "sql":
        assert task.score(instances[0], [f" {instances[0].reference['sql']};"]) == {"execution": 1, "valid": 1}
        assert task.score(instances[0], [" SELECT 1 WHERE 0"])["execution"] == 0
    if name == "qa":
        assert task.score(instances[0], [f" {instances[0].reference['answers'][0]}"]) == {"em": 1, "f1": 1}


def test_hashes_stand_for_everything_that_decides_a_result(write: Write) -> None:
    path = write("dev.json", squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Ash"])))
    (base,) = asked(parse("squad", {"path": path}))
    others = [
        asked(parse("squad", {"path": path, "shots": 0}))[1],
        asked(parse("squad", {"path": path, "max_new_tokens": 5}))[0],
        asked(parse("squad", {"path": path}), chat=True)[0],
    ]
    other = write("other.json", squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Elm"])))
    others += asked(parse("squad", {"path": other}))
    assert len({base.hash, *(instance.hash for instance in others)}) == 5
    moved = write("moved/dev.json", squad_document(("What is red?", ["Ash"]), ("Who is red?", ["Ash"])))
    assert asked(parse("squad", {"path": moved}))[0].hash == base.hash  # where a file lies decides nothing


def test_the_library_datasets_is_used_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"'squad:path=FILE', or install the extra draftwood\[eval\]"):
        asked(parse("squad"))
    calls = []

    class Fake(ModuleType):
        def load_dataset(self, *names: Any, split: str) -> list[dict[str, Any]]:
            calls.append((*names, split))
            answers = {"text": ["Ash"], "answer_start": [0]}
            return [{"id": str(i), "context": "c", "question": "q", "answers": answers} for i in range(2)]

    monkeypatch.setitem(sys.modules, "datasets", Fake("datasets"))
    (instance,) = asked(parse("squad"))
    assert calls == [("rajpurkar/squad", None, "validation")] and instance.reference == {"answers": ["Ash"]}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("squat:path=x", r"there is no task 'squat' \(did you mean 'squad'\?\)"),
        ("squad:file=x", "task squad has no option 'file'"),
        ("squad:shots=-1", "option 'shots' is -1"),
        ("qa,qa:seed=1", "task qa is named twice"),
        ("squad:path=/nowhere/dev.json", "does not exist"),
        ("squad:path=.", "is a directory"),
    ],
)
def test_bad_specifications_are_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        [asked(task) for task in parse_all(spec)]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([{"question": "q"}], "at row 1: there is no field 'answers'"),
        ({"version": 1}, "at its beginning: there is no list of rows"),
        ([{"question": "q", "context": "c", "answers": 3}], "at row 1: 3 is no answer"),
        (["text"], "at row 1"),
    ],
    ids=["field", "no rows", "answers", "text"],
)
def test_files_that_are_something_else_are_refused(write: Write, document: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        asked(parse("squad", {"path": write("dev.json", document)}))


def test_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{}\n{")
    with pytest.raises(ConfigurationError, match="neither JSON nor JSON lines"):
        asked(parse("squad", {"path": str(path)}))


def test_specifications_hold_several_tasks() -> None:
    tasks = parse_all("qa, squad:path=a.json;shots=2,math:seed=3")
    assert [task.name for task in tasks] == ["qa", "squad", "math"]
    assert tasks[1].example_count == 2 and tasks[2].as_dict()["seed"] == 3
