"""Answers in directories of files: every kill leaves each of them once, as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from draftwood import RequestError, load
from draftwood.serve.batch import run
from draftwood.serve.numbered_output import FileFormat, NumberedOutput


def record(number: int, error: Any = None) -> dict[str, Any]:
    body = {"choices": [{"text": f"Ünïcode {number}\n"}]}
    return {"id": "b", "custom_id": f"{number}", "response": {"status_code": 200, "body": body}, "error": error}


@pytest.fixture(params=["jsonl", "parquet"])
def kind(request: pytest.FixtureRequest) -> FileFormat:
    if request.param == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install 'draftwood[scale]'")
    return request.param  # type: ignore[no-any-return]


def ids(directory: Path, kind: FileFormat) -> list[str]:
    with NumberedOutput(directory, kind) as parts:
        return [found["custom_id"] for found in parts.recovered()]


def test_files_appear_when_they_are_full(tmp_path: Path, kind: FileFormat) -> None:
    for end in (5, 9):
        with NumberedOutput(tmp_path, kind, rows=2) as parts:
            begin = len(list(parts.recovered()))
            for number in range(begin, end):
                parts.add(record(number))
        assert ids(tmp_path, kind) == [f"{number}" for number in range(end)]
    assert len(list(tmp_path.glob(f"part-*.{kind}"))) == 4
    with NumberedOutput(tmp_path, kind, rows=2) as parts:
        assert len(list(parts.recovered())) == 9
        parts.finish()
        parts.finish()
    assert [path.stem for path in sorted(tmp_path.glob(f"part-*.{kind}"))] == [f"part-{i:05d}" for i in range(5)]
    assert (tmp_path / "unfinished.jsonl").read_bytes() == b""


@pytest.mark.parametrize("step", ["replace", "clear"])
def test_a_kill_between_file_and_journal(
    tmp_path: Path, kind: FileFormat, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
        NumberedOutput(tmp_path, kind, rows=2) as parts,
    ):
        patch.setattr("os.replace" if step == "replace" else "draftwood.util.jsonl.Journal.clear", killed)
        list(parts.recovered())
        for number in range(2):
            parts.add(record(number))
    with NumberedOutput(tmp_path, kind, rows=2) as parts:
        assert [found["custom_id"] for found in parts.recovered()] == ["0", "1"]
        parts.add(record(2))
    assert ids(tmp_path, kind) == ["0", "1", "2"]


def test_a_batch_into_a_directory(talker: Path, tmp_path: Path, kind: FileFormat) -> None:
    source = tmp_path / "requests.jsonl"
    lines = [{"custom_id": f"{i}", "prompt": "a", "max_tokens": 3, "seed": i} for i in range(3)]
    source.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"custom_id": "wrong"}]))
    engine, out = load(talker), tmp_path / "out"
    outcome = run(engine, source, out, parts=kind)
    assert (outcome.answered, outcome.failed) == (4, 1)
    (path,) = out.glob(f"part-*.{kind}")
    if kind == "jsonl":
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        texts = {row["custom_id"]: row["response"]["body"].get("choices", [{}])[0].get("text") for row in rows}
    else:
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(path).to_pylist()
        texts = {row["custom_id"]: row["text"] for row in rows}
        assert {row["custom_id"]: row["status_code"] for row in rows}["wrong"] == 400
        assert all(json.loads(row["body"]) for row in rows)
    assert texts == {
        "wrong": None,
        **{line["custom_id"]: engine.generate("a", max_new_tokens=3, seed=line["seed"]).text for line in lines},
    }
    again = run(engine, source, out, parts=kind)
    assert (again.answered, again.made, again.failed) == (4, 0, 1)


def test_requests_in_parquet(talker: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install 'draftwood[scale]'")
    import pyarrow.parquet

    source, out = tmp_path / "requests.parquet", tmp_path / "out.jsonl"
    rows = [
        {"custom_id": "a", "prompt": "a", "seed": 1, "url": None, "body": None},
        {
            "custom_id": "b",
            "prompt": None,
            "seed": None,
            "url": "/v1/completions",
            "body": '{"prompt": "a", "seed": 1}',
        },
        {"custom_id": None, "prompt": "a", "seed": 1, "url": None, "body": None},
    ]
    pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), source)
    assert run(load(talker), source, out, defaults={"max_tokens": 5}).failed == 0
    found = {line["custom_id"]: line for line in map(json.loads, out.read_bytes().splitlines())}
    assert set(found) == {"a", "b", "line-3"}
    assert len({line["response"]["body"]["choices"][0]["text"] for line in found.values()}) == 1
    source.write_text("nonsense")
    with pytest.raises(RequestError, match="is not Parquet"):
        run(load(talker), source, out)


def test_flags(command: Command, tmp_path: Path) -> None:
    """Options that need Ray say so."""
    for arguments in (("batch", "a.jsonl", "--out", tmp_path / "b.jsonl"), ("serve",)):
        done = command(*arguments, "--replicas", 2)
        assert done.code == 2 and "--replicas is for engines on Ray; give --ray too" in done.err
    assert "--autoscale is for engines" in command("serve", "--autoscale", "max_replicas=3").err
