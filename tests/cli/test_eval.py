"""`draftwood eval` and `draftwood tasks`: what they print, what they refuse, and that kills cost nothing."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from conftest import Command

from draftwood.eval.running import EvalJob, Runner


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags of a tiny pair whose context holds the corpus' prompts."""
    folder = tmp_path_factory.mktemp("roomy")
    target, draft = (tiny_models.write(folder / name, seed, context=2048) for seed, name in enumerate(("a", "b")))
    return ["--target", str(target), "--draft", str(draft)]


SMALL = ("--tasks", "qa,stories", "--limit", 2, "--max-new-tokens", 5)


def test_a_table_and_files(command: Command, roomy: list[str], tmp_path: Path) -> None:
    done = command("eval", "--out", tmp_path, *roomy, *SMALL, "--methods", "speculative:gamma=2")
    assert done.code == 0, done.err
    assert "qa  em, 2 items" in done.out and "stories  perplexity, 2 items" in done.out
    assert "8 of 8 runs · 0 failed · temperature 0 · 1 seed" in done.out
    assert "speculative" in done.out and "95% bootstrap" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines() if str(tmp_path) not in line)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["items.jsonl", "run.json", "summary.json"]
    before = (tmp_path / "items.jsonl").read_bytes()
    again = command("eval", "--out", tmp_path, *roomy, *SMALL, "--methods", "speculative:gamma=2", "--json")
    assert again.document["complete"] and (tmp_path / "items.jsonl").read_bytes() == before
    assert again.document == json.loads((tmp_path / "summary.json").read_text("utf-8"))
    other = command("eval", "--out", tmp_path, *roomy, *SMALL, "--methods", "speculative:gamma=3")
    assert other.code == 2 and "another configuration (different: methods)" in other.err


def test_an_interrupt_shows_what_is_there_and_the_command_goes_on(
    command: Command, roomy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("eval", "--out", tmp_path, *roomy, *SMALL, "--methods", "lookup")
    record = Runner.record
    calls = iter(range(100))

    def interrupted(runner: Runner, job: EvalJob) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return record(runner, job)

    monkeypatch.setattr(Runner, "record", interrupted)
    done = command(*arguments)
    assert done.code == 130 and "3 of 8 runs" in done.out
    done = command(*arguments)
    assert done.code == 0 and "8 of 8 runs" in done.out


def test_failures_are_shown(command: Command, pair: list[str], tmp_path: Path) -> None:
    done = command("eval", "--out", tmp_path, *pair, *SMALL[2:], "--tasks", "qa", "--methods", "lookup")  # context 96
    assert done.code == 0 and "4 failed" in done.out and "failed" in done.out.splitlines()[1]
    assert "RequestError: the prompt has" in done.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tasks", "sqll"], "did you mean 'sql'?"),
        (["--tasks", "code"], "runs programs that the model wrote, in a sandbox; confirm with --run-code"),
        (["--limit", "0"], "--limit is 0, but must be at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0, but must be at least 1"),
        (["--methods", "speculativ"], "did you mean 'speculative'?"),
        (["--tasks", "squad"], "name it with 'squad:path=FILE'"),
    ],
    ids=lambda value: value[0] + value[1] if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(
    command: Command, roomy: list[str], tmp_path: Path, arguments: list[str], sentence: str, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    done = command("eval", "--out", tmp_path / "out", *roomy, *arguments)
    assert done.code == 2 and sentence in done.err and not (tmp_path / "out").exists()


def test_results_that_cannot_be_written_are_told_of_before_the_work_and_what_was_measured_is_kept(
    command: Command, roomy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr("draftwood.engine.loading.load", lambda *models: pytest.fail("models were loaded"))
        done = command("eval", "--out", tmp_path / "file" / "out", *roomy)
    assert done.code == 2 and "file is not a directory; choose another --out" in done.err
    arguments = ["--out", tmp_path / "out", *roomy, "--tasks", "qa", "--limit", 2, "--methods", "lookup"]
    written = []

    def full(number: int) -> None:
        written.append(number)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        done = command("eval", *arguments)
    assert done.code == 2 and "cannot be written (No space left on device); what was finished is kept" in done.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["runs"]["made"] == 2
    assert command("eval", *arguments).code == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["complete"]


def test_tasks_are_listed(command: Command) -> None:
    assert "humaneval" in command("tasks").out
    named = {task["name"]: task for task in command("tasks", "--json").document}
    assert named["code"]["runs_code"] and not named["sql"]["runs_code"]
    assert "needs --run-code" in command("tasks", "code").out
    assert "databases" in command("tasks", "spider").out
    assert "did you mean 'spider'?" in command("tasks", "spidr").err


def steady(folder: Path) -> Any:
    """A summary without clocks, energy and sessions."""
    document = json.loads((folder / "summary.json").read_text("utf-8"))
    for row in document["rows"]:
        for name in ("timing", "energy"):
            row.pop(name)
        if row["paired"]:
            row["paired"] = {name: row["paired"][name] for name in ("same_tokens", "score_difference")}
    return {name: value for name, value in document.items() if name not in ("sessions", "energy")}


@pytest.mark.slow
def test_five_kills_at_random_lose_and_repeat_nothing(roomy: list[str], tmp_path: Path) -> None:
    """SIGKILL, each time after so many more lines and a moment."""
    rng = random.Random(7)

    def begin(out: Path) -> subprocess.Popen[bytes]:
        options = [*roomy, "--tasks", "qa,sql,stories", "--limit", "12", "--seeds", "2", "--temperature", "1"]
        command = [sys.executable, "-m", "draftwood", "eval", "--out", str(out), *options, "--max-new-tokens", "16"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = begin(whole)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint

    items = broken / "items.jsonl"

    def lines() -> int:
        return items.read_bytes().count(b"\n") if items.exists() else 0

    for _ in range(5):
        process = begin(broken)
        until = lines() + rng.randint(1, 25)
        while lines() < until:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.communicate()
    before = items.read_bytes()
    process = begin(broken)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint
    assert items.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    keys = [json.loads(line)["key"] for line in items.read_text("utf-8").splitlines()]
    assert len(keys) == len(set(keys)) == 3 * 12 * 2 * 3  # tasks, items, seeds, methods
    assert len(json.loads((broken / "run.json").read_text("utf-8"))["sessions"]) == 6
    assert steady(broken) == steady(whole)
