"""`draftwood train corpus` and `draftwood train eesd`: what they write, how they go on, and what they refuse."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from safetensors import safe_open

import draftwood
from draftwood.cli import running
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.heads import exit as exits
from draftwood.train import exit_layer
from draftwood.train.exit_layer import ExitRun
from draftwood.train.resumable import uninterrupted

SMALL = ("--context", 32, "--batch", 4, "--held-out", 4, "--warmup", 2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred lines of text in which some letters are more likely than others."""
    rng = random.Random(5)
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = ["".join(rng.choice("aaabbc d") for _ in range(rng.randrange(10, 40))) for _ in range(120)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def weights(out: Path) -> bytes:
    return (out / "exit.safetensors").read_bytes()


def test_an_exit_layer_is_trained_shown_and_used(command: Command, target: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "exit"
    flags = ("--target", target, "--data", texts, "--out", out, "--steps", 12, "--rate", 5e-3, *SMALL)
    shown = command("train", "eesd", *flags, "--measure-every", 6, "--save-every", 5, "--store", "float32")
    assert shown.code == 0
    assert shown.out.startswith(f"{out}: an exit after layer 1 of 2, ")
    assert "12 steps, 1,536 tokens" in shown.out and "held out: acceptance 0." in shown.out
    assert [line.split(":")[0] for line in shown.err.splitlines()] == ["step 6", "step 12"]
    curve = json.loads((out / "curve.json").read_text())
    assert [point["step"] for point in curve] == [0, 6, 12]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3  # it learns
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    made = artifact.load(out / "exit.safetensors", "exit")
    assert made.settings["layers"] == 1
    assert (made.about["trained"]["steps"], made.about["trained"]["tokens"]) == (12, 1536)
    # nothing is left to do, and no layer is made anew
    before = weights(out)
    again = command("train", "eesd", *flags, "--store", "float32", "--json").document
    assert again["new"] == 0 and again["steps"] == 12 and weights(out) == before
    generated = ("generate", "ab", "--target", target, "--temperature", 0, "--max-new-tokens", 20, "--json")
    plain = command(*generated, "--method", "autoregressive").document
    drafted = command(*generated, "--method", "eesd", "--set", f"exit={out}").document
    assert drafted["tokens"] == plain["tokens"] and drafted["metrics"]["drafted"] > 0


def step_of(out: Path) -> int:
    """Of the last save; safetensors files are replaced whole, so there is always one or none."""
    try:
        with safe_open(str(out / "run.safetensors"), "pt") as stored:
            return int(json.loads(stored.metadata()["progress"])["step"])
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("seed", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(
    seed: int, command: Command, target: Path, texts: Path, tmp_path: Path
) -> None:
    """Killed at a random step, without warning: bit for bit, in bfloat16 products and with accumulation."""
    shape = ("--steps", 40, "--distill", 0.5, "--accumulate", 2, "--save-every", 3, *SMALL)
    flags = [str(flag) for flag in ("--target", target, "--data", texts, *shape)]
    assert command("train", "eesd", *flags, "--out", tmp_path / "whole").code == 0
    out, stop = tmp_path / "killed", random.Random(seed).randrange(2, 25)
    slow = (
        "import sys, time; from draftwood.train.exit_layer import ExitRun; step = ExitRun.step\n"
        "def wait(self): time.sleep(0.02); return step(self)\n"
        "ExitRun.step = wait; import torch; torch.set_num_threads(1)\n"
        "from draftwood.cli.main import run; run(sys.argv[1:])"
    )
    arguments = [sys.executable, "-c", slow, "train", "eesd", *flags, "--out", str(out)]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        until = time.monotonic() + 120
        while step_of(out) < stop and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert stop <= step_of(out) < 40
    document = command("train", "eesd", *flags, "--out", out, "--json").document
    assert document["steps"] == 40 and 0 < document["new"] < 40
    assert weights(out) == weights(tmp_path / "whole")
    with (
        safe_open(str(out / "run.safetensors"), "pt") as one,
        safe_open(str(tmp_path / "whole/run.safetensors"), "pt") as two,
    ):
        assert set(one.keys()) == set(two.keys())
        assert all((one.get_tensor(name) == two.get_tensor(name)).all() for name in one.keys())  # noqa: SIM118
    assert [point["step"] for point in json.loads((out / "curve.json").read_text())] == [0, 40]


def test_an_interrupted_run_loses_no_step(
    command: Command, target: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C long before the first save, amid a step: what was trained is saved, and the result is the same."""
    flags = ("train", "eesd", "--target", target, "--data", texts, *SMALL, "--steps", 9, "--save-every", 1000)
    assert command(*flags, "--out", tmp_path / "whole").code == 0
    steps = []
    loss = ExitRun.loss

    def interrupted(*given: Any) -> Any:
        steps.append(None)
        if len(steps) == 6:
            raise KeyboardInterrupt
        return loss(*given)

    with monkeypatch.context() as patch:
        patch.setattr(ExitRun, "loss", interrupted)
        shown = command(*flags, "--out", tmp_path / "exit")
    assert shown.code == 130
    told = f"what was trained is saved in {tmp_path / 'exit'}; the same command goes on from there"
    assert told in " ".join(shown.err.split())
    document = command(*flags, "--out", tmp_path / "exit", "--json").document
    assert (document["steps"], document["new"]) == (9, 4)
    assert weights(tmp_path / "exit") == weights(tmp_path / "whole")


def test_ctrl_c_waits_for_the_optimizer() -> None:
    """Half of the weights must not be updated when a run is saved."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("all")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["all"]


def test_a_run_is_saved_every_few_minutes(
    command: Command, target: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_layer, "SAVE_SECONDS", -1)
    saves = []
    monkeypatch.setattr(ExitRun, "save", lambda run, *given: saves.append(run.progress.step))
    flags = ("train", "eesd", "--target", target, "--data", texts, *SMALL, "--steps", 3, "--save-every", 1000)
    (tmp_path / "exit").mkdir()
    assert command(*flags, "--out", tmp_path / "exit").code == 0
    assert saves == [1, 2, 3]


def test_a_pipe_is_told_of_progress(
    command: Command, target: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FIRST_LINE_SECONDS", -1)
    flags = ("train", "eesd", "--target", target, "--data", texts, *SMALL, "--steps", 3)
    first = command(*flags, "--out", tmp_path / "exit").err.splitlines()[0]
    assert first.startswith("1 of 3: loss ") and "held-out acceptance" in first


def test_a_full_disk_leaves_the_last_good_checkpoint(
    command: Command, target: Path, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "exit"
    flags = ("--target", target, "--data", texts, "--out", out, *SMALL, "--steps", 9)
    assert command("train", "eesd", *flags, "--save-every", 9).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "run.safetensors").unlink()  # the exit layer is there, the run begins anew
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))  # no file may be larger
    try:
        shown = command("train", "eesd", *flags, "--save-every", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert shown.code == 2 and not shown.out
    assert "error: the run cannot be saved to" in shown.err and "there is none before it" in shown.err
    left = {path.name: path.read_bytes() for path in out.iterdir()}
    assert left == {name: content for name, content in before.items() if name != "run.safetensors"}
    assert exits.load(out, checkpoint.load(target)).layers == 1


def test_what_cannot_be_trained_is_one_sentence(command: Command, target: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "short.txt").write_text("a few words")
    (tmp_path / "wrong.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')
    (tmp_path / "broken.jsonl").write_text('{"text": "good"}\n{"text": \n')
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "above.jsonl").write_text('{"tokens": [1, 2]}\n{"tokens": [1, 1099511627776]}\n')
    (tmp_path / "below.jsonl").write_text('{"tokens": [-1]}\n')
    out = tmp_path / "exit"
    for flags, sentence in (
        (("--layers", 2), "an exit after layer 2 does not fit a target of 2 layers; give 1 to 1"),
        (("--layers", 0), "an exit after layer 0 does not fit"),
        (("--exit-layers", 3), "an exit of 3 layers cannot begin as the last of 2"),
        (("--data", tmp_path / "none.txt"), "there is no file"),
        (("--data", tmp_path / "empty.jsonl"), "holds no text; give a file with at least two texts"),
        (("--data", tmp_path / "short.txt"), "holds too little text"),
        (("--data", tmp_path / "wrong.jsonl"), "wrong.jsonl, line 2, has neither text nor messages nor tokens"),
        (("--data", tmp_path / "broken.jsonl"), "broken.jsonl, line 2, is not JSON"),
        (("--data", tmp_path / "bytes.txt"), "is not valid UTF-8"),
        (("--data", tmp_path / "above.jsonl"), "has tokens outside of the model's vocabulary of"),
        (("--data", tmp_path / "below.jsonl"), "has tokens outside of the model's vocabulary of"),
        (("--distill", 1.5), "--distill is 1.5, but must be at most 1"),
        (("--divergence", "tv"), "divergence=tv is of distillation; give distill, a weight above 0"),
        (("--steps", 0), "--steps is 0, but must be at least 1"),
        (("--rate", 0), "--rate is 0.0, but must be above 0"),
        (("--accumulate", 3), "a batch of 4 rows cannot be shared out evenly over 3 parts"),
        (("--precision", "float16"), "--precision is float16, but must be 'bfloat16' or 'float32'"),
        (("--target", tmp_path), "has no config.json"),
    ):
        shown = command("train", "eesd", "--target", target, "--data", texts, "--out", out, *SMALL, *flags)
        assert shown.code == 2 and not shown.out
        assert shown.err.count("\n") == 1 and sentence in " ".join(shown.err.split()), shown.err
    assert not out.exists()
    flags = ("--target", target, "--data", texts, "--out", out, *SMALL, "--steps", 2)
    assert command("train", "eesd", *flags).code == 0
    other = command("train", "eesd", *flags, "--seed", 1)
    assert other.code == 2 and "holds a run whose seed is 0, not 1; give the same settings" in other.err
    (out / "run.safetensors").write_bytes(b"not a run")
    assert "run.safetensors is damaged" in command("train", "eesd", *flags).err
    method = ("--method", "eesd", "--set", f"exit={out}")
    shown = command("generate", "x", *method, "--max-new-tokens", 2)  # the embedded target
    assert shown.code == 2 and "was trained for another target" in shown.err
    shown = command("generate", "x", "--target", target, "--method", "eesd")
    assert shown.code == 2 and "has no exit layer next to its weights; make one with" in shown.err


# -- corpus ----------------------------------------------------------------------------------------------------------


def test_a_corpus_is_written_mixed_and_gone_on_with(
    command: Command, target: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\nthe\nx y\n")
    shape = ("--target", target, "--prompts", prompts, "--given", texts, "--share", 0.25, "--count", 41)
    flags = (*shape, "--max-new-tokens", 9, "--concurrency", 5, "--greedy", 3, 5)
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    document = command("train", "corpus", *flags, "--out", whole, "--json").document
    assert document == {"out": str(whole), "texts": 41, "by_target": 31, "new": 41}
    lines = [json.loads(line) for line in whole.read_text().splitlines()]
    engine = draftwood.load(target)
    given = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    seen = [line for line in lines if line["source"] == "given"]
    assert [line["text"] for line in seen] == given[:10]
    openings = set()
    written = [line for line in lines if line["source"] == "target"]
    for line in written:
        prompt, new = line["tokens"][: line["prompt_tokens"]], line["tokens"][line["prompt_tokens"] :]
        plain = engine.generate(prompt, "autoregressive", {"temperature": 0}, max_new_tokens=9).tokens
        same = next((i for i, (a, b) in enumerate(zip(new, plain, strict=False)) if a != b), len(new))
        assert same >= min(3, len(new)) and len(new) <= 9 and not engine.end_tokens & set(new[:-1])
        openings.add(same)
    assert len(openings) > 1 and len({tuple(line["tokens"]) for line in written}) > 20  # sampled behind the first few
    # a kill in the middle of a line
    content = whole.read_bytes()
    broken.write_bytes(content[: len(content) * 2 // 3])
    broken.with_suffix(".settings.json").write_bytes(whole.with_suffix(".settings.json").read_bytes())
    again = command("train", "corpus", *flags, "--out", broken, "--json").document
    assert 0 < again["new"] < 30 and broken.read_bytes() == content
    other = command("train", "corpus", *flags, "--out", broken, "--seed", 4)
    assert other.code == 2 and "was begun with other settings" in other.err and broken.read_bytes() == content
    broken.with_suffix(".settings.json").write_text("[" * 100_000)
    other = command("train", "corpus", *flags, "--out", broken)
    assert other.code == 2 and "was begun with other settings" in other.err and broken.read_bytes() == content
    run = command("train", "eesd", "--target", target, "--data", whole, "--out", tmp_path / "e", *SMALL, "--steps", 1)
    assert run.code == 0


@pytest.mark.parametrize(("kind", "drafted", "least"), [("medusa", 4, 6), ("eagle", 4, 6), ("dflash", 7, 8)])
def test_rows_too_short_to_learn_from_are_refused(
    command: Command, target: Path, texts: Path, tmp_path: Path, kind: str, drafted: int, least: int
) -> None:
    """The shortest rows that are taken teach every head something."""
    flags = ("train", kind, "--target", target, "--data", texts, *SMALL, "--steps", 1)
    shown = command(*flags, "--context", 2, "--out", tmp_path / "short")
    sentence = f"error: rows of 2 tokens are too short to learn to draft {drafted} in a row; give a context of at least"
    assert shown.code == 2 and shown.err.startswith(sentence) and shown.err.count("\n") == 1
    assert not (tmp_path / "short").exists()
    document = command(*flags, "--context", least, "--out", tmp_path / "made", "--json").document
    assert document[f"loss_{drafted}"] > 0


def test_what_cannot_be_written_is_one_sentence(command: Command, target: Path, texts: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\n")
    (tmp_path / "empty.txt").write_text("\n")
    for flags, sentence in (
        (("--prompts", tmp_path / "none.txt"), "cannot be read: No such file"),
        (("--prompts", tmp_path / "empty.txt"), "is empty; give one prompt a line"),
        (("--share", 0.5), "no given text; name it with --given"),
        (("--given", texts, "--share", 1), "must be from 0 to below 1"),
        (("--given", tmp_path / "empty.txt"), "holds no text"),
        (("--count", 0), "--count is 0, but must be at least 1"),
        (("--greedy", 5, 3), "from 5 to 3 greedy tokens is no range"),
    ):
        usual = ("--target", target, "--prompts", prompts, "--out", tmp_path / "out.jsonl")
        shown = command("train", "corpus", *usual, *flags)
        assert shown.code == 2 and not shown.out
        assert shown.err.count("\n") == 1 and sentence in " ".join(shown.err.split()), shown.err
    assert not (tmp_path / "out.jsonl").exists()
