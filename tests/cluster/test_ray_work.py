"""Work that processes on Ray share gives the files of one process: evaluations, texts, training.

Commands run in this process, on one Ray that is started for all of them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import Command
from ray_commands import alive, below
from safetensors.torch import load_file

from draftwood import load

pytest.importorskip("ray", reason="engines on Ray need the extra scale: pip install 'draftwood[scale]'")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")]  # of its own options

RAY = ("--replicas", 2, "--ray")


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    from draftwood.cluster.starting import started

    with started(None, 4):
        yield


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch, running: None) -> None:
    """Commands use the Ray that runs."""
    for module in ("starting", "batch"):
        monkeypatch.setattr(f"draftwood.cluster.{module}.started", lambda *given: nullcontext())


def test_shared_work_gives_the_same_files(command: Command, pair: list[str], tmp_path: Path) -> None:
    """Of evaluations all but times, of texts to train on every byte."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Story: In\nProblem: Rosa\n")
    evaluation = ("eval", *pair, "--tasks", "qa", "--limit", 3, "--seeds", 2, "--max-new-tokens", 8, "--warmup", 0)
    corpus = ("train", "corpus", *pair[:2], "--count", 70, "--prompts", prompts, "--max-new-tokens", 8)
    for name, more in (("one", ()), ("two", RAY)):
        assert command(*evaluation, "--out", tmp_path / name, *more).code == 0
        assert command(*corpus, "--out", tmp_path / f"{name}.jsonl", *more).code == 0
    kept = [
        [
            {key: value for key, value in json.loads(line).items() if key not in ("seconds", "rounds", "joules")}
            for line in (tmp_path / name / "items.jsonl").read_bytes().splitlines()
        ]
        for name in ("one", "two")
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 3 * 2 * 3
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_training_goes_on_where_a_process_dies(
    command: Command, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes end with the weights of one up to rounding, though one of them was killed on the way."""
    texts = tmp_path / "texts.jsonl"
    lines = [{"tokens": [1 + (i * j) % 9 for j in range(5 + i % 40)]} for i in range(150)]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shape = ("--steps", 24, "--batch", 64, "--context", 64, "--held-out", 4, "--warmup", 2, "--save-every", 2)
    flags = ("train", "medusa", "--target", target, "--data", texts, *shape, "--precision", "float32", "--distill", 0.5)
    assert command(*flags, "--out", tmp_path / "one").code == 0
    saved, killed = tmp_path / "two" / "run.safetensors", threading.Event()

    def kill() -> None:
        while not saved.exists():
            time.sleep(0.005)
        os.kill(below(os.getpid(), "ray::TrainingProcess")[0], signal.SIGKILL)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    with caplog.at_level(logging.WARNING, "draftwood"):
        assert command(*flags, "--out", tmp_path / "two", *RAY).code == 0
    assert killed.is_set() and "all go on from the last save" in caplog.text
    one, two = (load_file(tmp_path / name / "run.safetensors") for name in ("one", "two"))
    for name in one:
        if name.startswith("weight/"):
            torch.testing.assert_close(two[name], one[name], atol=1e-3, rtol=1e-2)
    assert len(json.loads((tmp_path / "two" / "curve.json").read_text())) == 2


def test_what_is_wrong_is_said_as_by_one_process(command: Command, target: Path, tmp_path: Path) -> None:
    flags = ("train", "eesd", "--target", target, "--out", tmp_path / "exit", "--batch", 3, *RAY)
    shown = command(*flags)
    assert shown.code == 2 and "a batch of 3 rows cannot be shared out evenly over 1 parts on 2 processes" in shown.err


def test_engines_of_two_processes_each(command: Command, long_target: Path, tmp_path: Path) -> None:
    """A split target on Ray answers as one process does, and leaves nobody behind."""
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    asked = [{"custom_id": f"{i}", "prompt": f"{i} Story", "max_tokens": 60, "ignore_eos": True} for i in range(8)]
    source.write_text("".join(json.dumps(line) + "\n" for line in asked))
    followers: list[int] = []

    def look() -> None:
        while not followers:
            followers.extend(below(os.getpid(), "parallel.follower"))
            time.sleep(0.05)

    threading.Thread(target=look, daemon=True).start()
    options = ("--default", "temperature=0", "--tensor-parallel", 2, "--threads", 1, "--ray")
    assert command("batch", source, "--target", long_target, "--out", out, *options).code == 0
    assert len(followers) == 1
    until = time.monotonic() + 20
    while alive(followers[0]):
        assert time.monotonic() < until
        time.sleep(0.05)
    engine = load(long_target, backend="pytorch")
    answers = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, out.read_bytes().splitlines())}
    assert len(answers) == 8
    for line in asked:
        alone = engine.generate(line["prompt"], sampling={"temperature": 0}, max_new_tokens=60, ignore_eos=True)
        assert answers[line["custom_id"]]["choices"][0]["text"] == alone.text
