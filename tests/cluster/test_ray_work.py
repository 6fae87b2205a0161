"""Work that processes on Ray share gives the files of one process: evaluations, experiments, texts, training."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from ray_commands import Process, alive, finish
from safetensors.torch import load_file

from draftwood import load

pytest.importorskip("ray", reason="engines on Ray need the extra scale: pip install 'draftwood[scale]'")
pytestmark = pytest.mark.ray

RAY = ("--replicas", 2, "--ray")
EXPERIMENT = """
title: What a step costs
kind: training
settings: {steps: 1, batch: 1, context: 32}
runs:
  first: {}
  second: {draft_of: embedded}
"""


def test_shared_work_gives_the_same_files(pair: list[str], tmp_path: Path) -> None:
    """Of evaluations all but times, of texts to train on every byte."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Story: In\nProblem: Rosa\n")
    evaluation = ("eval", *pair, "--tasks", "qa", "--limit", 3, "--seeds", 2, "--max-new-tokens", 8, "--warmup", 0)
    corpus = ("train", "corpus", *pair[:2], "--count", 70, "--prompts", prompts, "--max-new-tokens", 8)
    ray = ("--replicas", 2, "--ray")
    for command in ((*evaluation, "--out", tmp_path / "one"), (*evaluation, "--out", tmp_path / "two", *ray)):
        finish(*command)
    kept = [
        [
            {key: value for key, value in json.loads(line).items() if key not in ("seconds", "rounds", "joules")}
            for line in (tmp_path / name / "items.jsonl").read_text().splitlines()
        ]
        for name in ("one", "two")
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 3 * 2 * 3
    for command in ((*corpus, "--out", tmp_path / "one.jsonl"), (*corpus, "--out", tmp_path / "two.jsonl", *ray)):
        finish(*command)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_runs_of_an_experiment_are_shared(tmp_path: Path) -> None:
    """The same files but for times, and for what says when and by which command they were made."""
    file = tmp_path / "costs.yaml"
    file.write_text(EXPERIMENT)
    found = []
    for name, more in (("one", ()), ("two", RAY)):
        finish("eval", file, "--out", tmp_path / name, *more)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["first.json", "second.json"]
        found.append([measured(tmp_path / name / f"{run}.json") for run in ("first", "second")])
    assert found[0] == found[1] and len(found[0][0]["tables"]["cost"]) == 4


def measured(path: Path) -> dict[str, Any]:
    """A result file without times."""
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for key in ("began", "command"):
        del document["environment"][key]
    for row in document["tables"]["cost"]:
        assert row.pop("seconds") > 0
    return document


def test_training_goes_on_where_a_process_dies(command: Command, target: Path, tmp_path: Path) -> None:
    """Two processes end with the weights of one up to rounding, though one of them was killed on the way."""
    texts = tmp_path / "texts.jsonl"
    lines = [{"tokens": [1 + (i * j) % 9 for j in range(5 + i % 40)]} for i in range(150)]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shape = ("--steps", 24, "--batch", 64, "--context", 64, "--held-out", 4, "--warmup", 2, "--save-every", 4)
    flags = ("train", "medusa", "--target", target, "--data", texts, *shape, "--precision", "float32", "--distill", 0.5)
    assert command(*flags, "--out", tmp_path / "one").code == 0
    saved = tmp_path / "two" / "run.safetensors"
    process = Process(*flags, "--out", tmp_path / "two", *RAY)
    try:
        until = time.monotonic() + 120
        while not saved.exists():
            assert time.monotonic() < until and process.process.poll() is None, process.said
            time.sleep(0.005)
        os.kill(process.below("ray::Process")[0], signal.SIGKILL)
        assert process.process.wait(120) == 0, process.said
    finally:
        process.close()
    assert "all go on from the last save" in "".join(process.said)
    one, two = (load_file(tmp_path / name / "run.safetensors") for name in ("one", "two"))
    for name in one:
        if name.startswith("weight/"):
            torch.testing.assert_close(two[name], one[name], atol=1e-3, rtol=1e-2)
    assert len(json.loads((tmp_path / "two" / "curve.json").read_text())) == 2


def test_engines_of_two_processes_each(long_target: Path, tmp_path: Path) -> None:
    """A split target on Ray answers as one process does, and leaves nobody behind."""
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    asked = [{"custom_id": f"{i}", "prompt": f"{i} Story", "max_tokens": 200, "ignore_eos": True} for i in range(8)]
    source.write_text("".join(json.dumps(line) + "\n" for line in asked))
    options = ("--default", "temperature=0", "--tensor-parallel", 2, "--threads", 1, "--ray")
    process = Process("batch", source, "--target", long_target, "--out", out, *options)
    try:
        while not (followers := process.below("parallel.follower")):
            assert process.process.poll() is None, process.said
            time.sleep(0.05)
        assert process.process.wait(120) == 0, process.said
    finally:
        process.close()
    assert len(followers) == 1
    until = time.monotonic() + 20
    while alive(followers[0]):
        assert time.monotonic() < until
        time.sleep(0.05)
    engine = load(long_target, backend="pytorch")
    answers = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, out.read_text().splitlines())}
    assert len(answers) == 8
    for line in asked:
        alone = engine.generate(line["prompt"], sampling={"temperature": 0}, max_new_tokens=200, ignore_eos=True)
        assert answers[line["custom_id"]]["choices"][0]["text"] == alone.text
