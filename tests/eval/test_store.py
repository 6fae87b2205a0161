"""A directory of results: nothing is lost or repeated, whatever happens to the process that writes it."""

import json
from pathlib import Path

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.store import Store, key_of, write_json

SETUP = {"methods": ["a", "b"], "seeds": (0, 1)}


def filled(directory: Path, count: int) -> None:
    with Store(directory, SETUP) as store:
        for number in range(count):
            store.add(f"run {number}", {"value": number, "text": "Ünïcode\n\ud800"})


def test_records_are_there_again(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with Store(tmp_path, SETUP) as store:
        assert [record["value"] for record in store.records.values()] == [0, 1, 2]
        store.add("run 3", {"value": 3})
        with pytest.raises(ValueError, match="is there already"):
            store.add("run 3", {"value": 4})
    assert len((tmp_path / "items.jsonl").read_bytes().splitlines()) == 4


def test_a_line_is_on_the_disk_when_add_returns(tmp_path: Path) -> None:
    with Store(tmp_path, SETUP) as store:
        store.add("run", {"value": 1})
        assert json.loads((tmp_path / "items.jsonl").read_text()) == {"key": "run", "value": 1}


@pytest.mark.parametrize("left", [0, 1, 7, -1])
def test_a_torn_last_line_is_dropped_and_its_run_may_be_made_again(tmp_path: Path, left: int) -> None:
    filled(tmp_path, 2)
    path = tmp_path / "items.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:left])
    with Store(tmp_path, SETUP) as store:
        assert list(store.records) == ["run 0"]
        store.add("run 1", {"value": 1})
    with Store(tmp_path, SETUP) as store:
        assert list(store.records) == ["run 0", "run 1"]


def test_a_damaged_line_inside_is_not_passed_over(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    path = tmp_path / "items.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"key": "run 0"', b'{"key'))
    with pytest.raises(ConfigurationError, match=r"line 1 of .* is damaged"), Store(tmp_path, SETUP):
        pass


@pytest.mark.parametrize("line", [b'{"key": 1}', b"[]", b'{"key": "a", "b": Infinity}', b"1" * 4000, b"[" * 10**5])
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, line: bytes) -> None:
    filled(tmp_path, 1)
    with (tmp_path / "items.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigurationError, match=r"line 2 of .* is damaged"), Store(tmp_path, SETUP):
        pass


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    path = tmp_path / "items.jsonl"
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(ConfigurationError, match=r"line 2 of .* holds the key 'run 0', which is there already"):
        Store(tmp_path, SETUP).__enter__()


def test_a_directory_belongs_to_one_configuration_and_one_process(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    with pytest.raises(ConfigurationError, match=r"another configuration \(different: methods, more\)"):
        Store(tmp_path, {**SETUP, "methods": ["a"], "more": 1}).__enter__()
    with Store(tmp_path, SETUP), pytest.raises(ConfigurationError, match="another process writes to"):
        Store(tmp_path, SETUP).__enter__()
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="is not what"):
        Store(tmp_path, SETUP).__enter__()
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigurationError, match="results without"):
        Store(tmp_path, SETUP).__enter__()


def test_sessions_are_written_down(tmp_path: Path) -> None:
    for number in range(2):
        with Store(tmp_path, SETUP) as store:
            store.note_session({"number": number})
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["sessions"] == [{"number": 0}, {"number": 1}]
    assert document["configuration"] == {"methods": ["a", "b"], "seeds": [0, 1]}


def test_documents_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_keys_tell_runs_apart() -> None:
    assert key_of("h", 0, {"a": 1, "b": 2}, 3) == key_of("h", 0, {"b": 2, "a": 1}, 3)
    assert len({key_of("h", 0, {"a": 1}, seed) for seed in range(5)} | {key_of("h", 1, {"a": 1}, 0)}) == 6
