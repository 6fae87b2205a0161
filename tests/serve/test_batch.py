"""Files of requests: what lines may be, what becomes of wrong ones, and that no end of the process loses one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from draftwood import ConfigurationError, DraftwoodError, Engine, RequestError, load
from draftwood.serve.batch import BatchProgress, run
from draftwood.util.jsonl import Journal

COMPLETION = {"prompt": "Story: In", "max_tokens": 12, "seed": 7}


@pytest.fixture(scope="module")
def engine(talker: Path, draft: Path) -> Engine:
    return load(talker, draft)


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def answers(out: Path) -> dict[str, Any]:
    """Lines of answers by id; each is there once."""
    found = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert not [name for name, times in Counter(line["custom_id"] for line in found).items() if times > 1]
    return {line["custom_id"]: line for line in found}


def texts(out: Path) -> dict[str, str]:
    return {name: line["response"]["body"]["choices"][0]["text"] for name, line in answers(out).items()}


def test_all_forms_of_requests(engine: Engine, tmp_path: Path) -> None:
    source = written(
        tmp_path / "requests.jsonl",
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": COMPLETION},
        {"custom_id": "b", **COMPLETION},
        "",
        {**COMPLETION, "n": 2, "speculation": {"name": "mcsd", "tree": [2, 1]}},
        '"Story: In"',
        {"custom_id": "chat", "messages": [{"role": "user", "content": "Hi"}], "seed": 1},
        {"input": "Hi", "seed": 1},
    )
    told: list[int] = []
    outcome = run(
        engine,
        source,
        tmp_path / "out.jsonl",
        "speculative",
        3,
        {"max_tokens": 12, "seed": 7},
        lambda now: told.append(now.answered),
    )
    assert outcome == BatchProgress(requests=6, answered=6, made=6, failed=1)  # /v1/responses has no max_tokens
    assert told == [0, 1, 2, 3, 4, 5, 6]
    found = answers(tmp_path / "out.jsonl")
    assert set(found) == {"a", "b", "line-4", "line-5", "chat", "line-7"}
    alone = engine.generate("Story: In", "speculative", max_new_tokens=12, seed=7).text
    for name in "ab":
        line = found[name]
        assert line["error"] is None and line["response"]["status_code"] == 200
        assert line["id"] == f"batch_req_{line['response']['request_id']}"
        body = line["response"]["body"]
        assert body["choices"][0]["text"] == alone and body["object"] == "text_completion"
    assert len(found["line-4"]["response"]["body"]["choices"]) == 2
    assert found["line-5"]["response"]["body"]["choices"][0]["text"] == alone
    assert found["chat"]["response"]["body"]["choices"][0]["message"]["content"] == (
        engine.generate([{"role": "user", "content": "Hi"}], "speculative", max_new_tokens=12, seed=1).text
    )
    assert "no field 'max_tokens'" in found["line-7"]["error"]["message"]


def test_what_is_wrong_with_a_line_is_its_answer(engine: Engine, tmp_path: Path) -> None:
    wrong = {
        "line-1": "{",
        "line-2": "[1]",
        "line-3": {"custom_id": 5, "prompt": "a"},
        "get": {"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": COMPLETION},
        "embeddings": {"custom_id": "embeddings", "url": "/v1/embeddings", "body": {}},
        "nothing": {"custom_id": "nothing"},
        "more": {"custom_id": "more", "url": "/v1/completions", "body": {}, "more": 1},
        "stream": {"custom_id": "stream", **COMPLETION, "stream": True},
        "field": {"custom_id": "field", **COMPLETION, "temprature": 1},
        "long": {"custom_id": "long", "prompt": "a" * 1000},
        "method": {"custom_id": "method", **COMPLETION, "speculation": "specinfre"},
        "model": {"custom_id": "model", **COMPLETION, "model": "gpt"},
    }
    source = written(tmp_path / "requests.jsonl", *wrong.values(), {"custom_id": "right", **COMPLETION})
    outcome = run(engine, source, tmp_path / "out.jsonl")
    assert (outcome.answered, outcome.failed) == (13, 12)
    found = answers(tmp_path / "out.jsonl")
    assert found.pop("right")["error"] is None
    assert set(found) == set(wrong)
    said = {name: line["error"]["message"] for name, line in found.items()}
    assert all(line["response"]["status_code"] in (400, 404) for line in found.values())
    assert "not JSON" in said["line-1"] and "must be a text" in said["line-3"] and "'POST'" in said["get"]
    assert "did you mean 'temperature'" in said["field"] and "did you mean 'specinfer'" in said["method"]
    assert "leave out stream" in said["stream"] and "context" in said["long"]
    assert found["model"]["error"]["code"] == "model_not_found"


def test_a_default_streams_nothing(engine: Engine, tmp_path: Path) -> None:
    source = written(tmp_path / "requests.jsonl", COMPLETION, {**COMPLETION, "stream": False})
    outcome = run(engine, source, tmp_path / "out.jsonl", defaults={"stream": True})
    assert (outcome.answered, outcome.failed) == (2, 1)
    assert "leave out stream" in answers(tmp_path / "out.jsonl")["line-1"]["error"]["message"]


def test_what_is_there_is_not_asked_again(engine: Engine, tmp_path: Path) -> None:
    """A torn last line is repaired, and finished answers stay as they are."""
    lines = [{"custom_id": f"{i}", **COMPLETION, "seed": i} for i in range(6)]
    source, out = written(tmp_path / "requests.jsonl", *lines), tmp_path / "out.jsonl"
    run(engine, source, out)
    right, content = texts(out), out.read_bytes()
    whole = content.splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:3]) + whole[3][:40])
    outcome = run(engine, source, out)
    assert (outcome.answered, outcome.made) == (6, 3)
    assert texts(out) == right and out.read_bytes().startswith(b"".join(whole[:3]))
    assert run(engine, source, out).made == 0


def test_files_that_cannot_be_used(engine: Engine, tmp_path: Path) -> None:
    source, out = written(tmp_path / "requests.jsonl", COMPLETION), tmp_path / "out.jsonl"
    for other, why in (
        ("none", "cannot be read: No such file"),
        ("empty", "is empty"),
        ("twice", "has the custom_id 'a' twice"),
    ):
        file = tmp_path / f"{other}.jsonl"
        if other != "none":
            written(file, *[{"custom_id": "a", **COMPLETION}] * (2 * (other == "twice")))
        with pytest.raises(RequestError, match=why):
            run(engine, file, out)
    assert not out.exists()
    with pytest.raises(ConfigurationError, match="holds the requests"):
        run(engine, source, source)
    with pytest.raises(ConfigurationError, match=r"cannot be written \(Is a directory\)"):
        run(engine, source, tmp_path)
    with pytest.raises(ConfigurationError, match="something else than answers"):
        run(engine, source, written(tmp_path / "other.jsonl", {"custom_id": "a", **COMPLETION}))


def test_a_broken_engine_answers_nothing(talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that it cannot compute any more are left for the next time."""
    lines = [{"custom_id": f"{i}", **COMPLETION} for i in range(4)]
    source, out = written(tmp_path / "requests.jsonl", *lines), tmp_path / "out.jsonl"

    def broken(self: Any) -> None:
        raise RuntimeError("the machine is on fire")

    with monkeypatch.context() as patch:
        patch.setattr("draftwood.runtime.scheduler.Scheduler.step", broken)
        with pytest.raises(DraftwoodError, match="the engine is broken: the machine is on fire"):
            run(load(talker), source, out)
    assert out.read_bytes() == b""
    assert run(load(talker), source, out).failed == 0


KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch
from draftwood import load
from draftwood.serve.batch import run
torch.set_num_threads(1)
target, source, out = map(Path, sys.argv[1:])
engine = load(target)
for most in (3, 9, 15):
    child = os.fork()
    if not child:
        run(engine, source, out, concurrency=4)
        os._exit(0)
    while (out.read_bytes().count(b"\\n") if out.exists() else 0) < most:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(out.read_bytes().count(b"\\n"))
print(run(engine, source, out, concurrency=4).made)
"""


@pytest.mark.slow
def test_three_kills_lose_nothing_and_repeat_nothing(engine: Engine, talker: Path, tmp_path: Path) -> None:
    lines = [{"custom_id": f"{i}", **COMPLETION, "seed": i, "max_tokens": 8 + i % 8} for i in range(40)]
    source, out = written(tmp_path / "requests.jsonl", *lines), tmp_path / "out.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(talker), str(source), str(out)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *there, made = map(int, done.stdout.split())
    assert there == sorted(there) and there[-1] + made == 40 and made > 0
    alone = load(talker)
    assert texts(out) == {
        line["custom_id"]: alone.generate(line["prompt"], seed=line["seed"], max_new_tokens=line["max_tokens"]).text
        for line in lines
    }


def test_the_command(command: Command, talker: Path, tmp_path: Path) -> None:
    source, out = written(tmp_path / "requests.jsonl", {"prompt": "a"}, {"prompt": "b"}), tmp_path / "new" / "out.jsonl"
    flags = ["batch", source, "--target", talker, "--default", "max_tokens=3", "--default", "seed=1"]
    done = command(*flags, "--out", out)
    assert done.code == 0 and "2 of 2 requests answered, 2 of them now, 0 with an error" in done.out
    assert all(line["response"]["body"]["usage"]["completion_tokens"] == 3 for line in answers(out).values())
    again = command(*flags, "--out", out, "--json")
    assert again.code == 0
    assert again.document == {"out": str(out), "requests": 2, "answered": 2, "made": 0, "failed": 0}
    failed = command(*flags, "--default", "nonsense=1", "--out", tmp_path / "failed.jsonl")
    assert failed.code == 1 and "2 with an error" in failed.out
    missing = command("batch", tmp_path / "none.jsonl", "--out", out)
    assert missing.code == 2 and "cannot be read" in missing.err


def test_ctrl_c_keeps_what_is_finished(
    command: Command, talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"custom_id": f"{i}", **COMPLETION} for i in range(8)]
    source, out = written(tmp_path / "requests.jsonl", *lines), tmp_path / "out.jsonl"
    kept = Journal.add

    def add(self: Journal, record: dict[str, Any]) -> None:
        kept(self, record)
        if record["custom_id"] == "2":
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", add)
        done = command("batch", source, "--target", talker, "--out", out, "--concurrency", 1)
    assert done.code == 130 and "3 of 8 requests answered" in done.out
    assert set(answers(out)) == {"0", "1", "2"}
    assert command("batch", source, "--target", talker, "--out", out).code == 0
    assert len(answers(out)) == 8
