"""Training exit layers: the loss, what is frozen, accumulation, several processes, the shipped layer."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from own_texts import own_texts

import draftwood
from draftwood import Engine
from draftwood.corpus import documents
from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.checkpoint import load
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads import exit as exits
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.eagle import EagleRun
from draftwood.train.exit_layer import ExitRun, Rank
from draftwood.train.heads import HeadRun
from draftwood.train.resumable import Schedule
from draftwood.train.settings import EagleSettings, ExitSettings, HeadSettings
from draftwood.train.texts import Texts, read_texts, tokens_of

VOCAB, END = 23, 0


def decoder() -> Decoder:
    torch.manual_seed(3)
    made = Decoder(DecoderConfig(VOCAB, 16, 24, 3, 2, 1, 8, 64))
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.eval().requires_grad_(False)


def texts(filled: bool = False) -> Texts:
    rng = np.random.default_rng(1)
    rows = rng.integers(1, 8, (24, 20)).astype(np.int32)
    for number, row in enumerate(rows if filled else []):
        row[6 + number % 13 :] = END
    return Texts(rows[:20], rows[20:], "test", END)


SETTINGS = ExitSettings(layers=1, steps=8, batch=4, warmup=2, rate=1e-2, precision="float32")


def with_(**changes: object) -> ExitSettings:
    return SETTINGS.model_copy(update=changes)


@pytest.mark.parametrize("depth", [0, 1])
def test_only_the_exit_learns_and_it_learns(depth: int, tmp_path: Path) -> None:
    target = decoder()
    before = {name: part.clone() for name, part in target.named_parameters()}
    run = ExitRun(target, texts(), with_(steps=30, depth=depth), tmp_path)
    start = {name: part.clone() for name, part in run.exit.weights().items()}
    figures = list(run.train(100, 10, torch.float32))
    assert all(torch.equal(part, before[name]) for name, part in target.named_parameters())
    assert all(not torch.equal(part, start[name]) for name, part in run.exit.weights().items())
    assert run.progress.curve[-1]["loss"] < run.progress.curve[0]["loss"] - 1
    assert figures[-1]["loss"] < figures[0]["loss"] - 1
    assert run.progress.tokens == 30 * 4 * 20


def test_distillation_alone_teaches_what_the_target_says(tmp_path: Path) -> None:
    """Cross-entropy on text that the target would not write teaches something else."""
    ends = {}
    for weight in (0.0, 1.0):
        settings = with_(steps=40, distill=weight)
        run = ExitRun(decoder(), texts(), settings, tmp_path / str(weight))
        list(run.train(100, 100, torch.float32))
        ends[weight] = run.progress.curve
    assert ends[1.0][-1]["acceptance"] > ends[1.0][0]["acceptance"] + 0.1
    assert ends[1.0][-1]["acceptance"] > ends[0.0][-1]["acceptance"] + 0.1
    assert ends[0.0][-1]["loss"] < ends[1.0][-1]["loss"] - 0.3


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_loss_is_what_it_says(weight: float, tmp_path: Path) -> None:
    run = ExitRun(decoder(), texts(), with_(distill=weight), tmp_path)
    torch.manual_seed(0)
    tokens = torch.tensor([[3, 1, END, END, END], [2, END, 4, 5, 6]])
    logits = torch.randn(2, 5, VOCAB, dtype=torch.float64)
    log_p = torch.log_softmax(torch.randn(2, 5, VOCAB, dtype=torch.float64), -1)
    expected, places = 0.0, 0
    for row, column in itertools.product(range(2), range(4)):
        if tokens[row, column] == END and tokens[row, column + 1] == END:
            continue  # the filling of a row
        log_q = torch.log_softmax(logits[row, column], -1)
        p = log_p[row, column].exp()
        divergence = sum(float(p[v] * (log_p[row, column, v] - log_q[v])) for v in range(VOCAB))
        expected += (1 - weight) * -float(log_q[tokens[row, column + 1]]) + weight * divergence
        places += 1
    assert places == 6
    found = run.loss(logits, tokens, log_p if weight else None, [places])
    assert float(found) == pytest.approx(expected / places, abs=1e-12)


def test_an_exit_behind_all_layers_but_one_begins_as_the_target(tmp_path: Path) -> None:
    run = ExitRun(decoder(), texts(True), with_(layers=2), tmp_path)
    point = run.measure()
    assert point["acceptance"] == pytest.approx(1, abs=1e-5) and point["agreement"] == 1
    assert ExitRun(decoder(), texts(True), SETTINGS, tmp_path).measure()["acceptance"] < 0.9


def test_parts_of_a_step_add_up_to_the_step(tmp_path: Path) -> None:
    """However many places of each part count."""
    runs = [
        ExitRun(decoder(), texts(True), with_(accumulate=parts, distill=0.5), tmp_path / str(parts))
        for parts in (1, 2, 4)
    ]
    losses = [[run.step()["loss"] for _ in range(4)] for run in runs]
    for run, other in zip(runs[1:], losses[1:], strict=True):
        assert other == pytest.approx(losses[0], rel=1e-5)
        for name, part in run.exit.weights().items():
            torch.testing.assert_close(part, runs[0].exit.weights()[name], atol=1e-4, rtol=1e-3)


def test_every_row_is_read_once_in_each_epoch(tmp_path: Path) -> None:
    run = ExitRun(decoder(), texts(), SETTINGS, tmp_path)
    epochs = [np.concatenate([run.rows(5 * epoch + step) for step in range(5)]) for epoch in range(3)]
    ordered = [sorted(map(tuple, epoch.tolist())) for epoch in epochs]
    assert ordered[0] == sorted(map(tuple, run.texts.train.tolist())) == ordered[1] == ordered[2]
    assert not np.array_equal(epochs[0], epochs[1])


def test_the_rate_warms_up_and_falls_along_a_cosine() -> None:
    schedule = Schedule(2.0, 4, 24)
    assert [schedule.rate(step) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert schedule.rate(4) == 2.0 and schedule.rate(14) == pytest.approx(1.0)
    assert schedule.rate(23) == pytest.approx(1 + math.cos(math.pi * 19 / 20)) and schedule.rate(24) == 0


def test_held_out_texts_are_not_trained_on(tmp_path: Path) -> None:
    words = Tokenizer.load(EMBEDDED / "target")
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"tokens": [i + 5] * 6}) for i in range(60)]
    path.write_text("\n".join(lines))
    found = read_texts(str(path), words, 0, 16, 100, 100)
    seen, apart = (set(part.flatten().tolist()) - {0} for part in (found.train, found.held_out))
    assert len(apart) == 3 and len(seen) == 57 and not seen & apart
    (tmp_path / "long.txt").write_text("One day Mara went to the lake. " * 50)
    long = read_texts(str(tmp_path / "long.txt"), words, 0, 16, 100, 100)
    assert len(long.train) > 10 and len(long.held_out) == 1
    assert found.digest != long.digest


def test_answers_alone_are_learned_of_texts_with_prompts(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    lines = [{"tokens": [i + 5] * 4 + [i + 105] * 2, "prompt_tokens": 4} for i in range(20)]
    lines.insert(3, {"tokens": [99] * 40, "prompt_tokens": 39})  # two rows hold nothing but its prompt
    path.write_text("\n".join(map(json.dumps, lines)))
    words = Tokenizer.load(EMBEDDED / "target")
    whole, answers = (read_texts(str(path), words, 0, 16, 100, 100, whole=each) for each in (True, False))
    assert whole.digest != answers.digest
    assert (whole.train == 99).sum() == 40 and (~answers.train == 99).sum() == 7 and (answers.train == 99).sum() == 1
    assert {*np.unique(answers.train[answers.train >= 0])} == {0, 99, *range(105, 125)} - {123}
    assert answers.frequent(3).tolist()[0] == 0 and min(answers.frequent(4).tolist()[1:]) >= 105

    path.write_text(json.dumps({"tokens": [5, 6], "prompt_tokens": 2}) + "\n")
    with pytest.raises(draftwood.ConfigurationError, match="holds no text"):
        read_texts(str(path), words, 0, 16, 100, 100, whole=False)

    rows = torch.tensor([[~3, ~4, ~3, 6, 7, END, END, ~5, 8]])
    assert tokens_of(rows).tolist() == [[3, 4, 3, 6, 7, END, END, 5, 8]]
    job = ExitRun(decoder(), replace(texts(), train=rows.numpy()), with_(batch=1), tmp_path)
    assert job.counted(rows)[0].tolist() == [[False, False, True, True, True, False, False, True]]
    read, _ = job._read(tokens_of(rows), False)
    nats = F.cross_entropy(job.exit.train_forward(read)[0, [2, 3, 4, 7]], torch.tensor([6, 7, END, 8]))
    assert job.step()["loss"] == pytest.approx(float(nats.detach()), rel=1e-5)
    assert np.isfinite(job.measure()["loss"])


def test_a_save_that_fails_leaves_the_last_good_one(tmp_path: Path) -> None:
    run = ExitRun(decoder(), texts(), SETTINGS, tmp_path)
    run.measure()
    run.step()
    run.save(torch.float32)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"run.safetensors", "exit.safetensors"}
    for _ in range(3):
        run.step()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    small = len(before["exit.safetensors"])
    for room, sentence in ((small // 2, "run cannot be saved .* the last good one is still there"), (900, "last good")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # as a disk that is full after so many bytes
        try:
            with pytest.raises(draftwood.ModelError, match=sentence):
                run.save(torch.float32)
            with pytest.raises(draftwood.ModelError, match=r"cannot be written .* what was there before is whole"):
                exits.save(run.exit.weights(), tmp_path, fingerprint(run.target), 1, torch.float32)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = ExitRun(decoder(), texts(), SETTINGS, tmp_path)
    assert again.progress.step == 1
    again.step()
    run.save(torch.float32)
    assert ExitRun(decoder(), texts(), SETTINGS, tmp_path).progress.step == 4


def test_a_run_goes_on_with_the_rows_that_it_began_with_alone(tmp_path: Path) -> None:
    """Of others the order is another, and the most frequent tokens are."""
    run = ExitRun(decoder(), texts(), SETTINGS, tmp_path)
    run.save_state()
    fewer = replace(texts(), train=texts().train[:12])
    with pytest.raises(draftwood.ConfigurationError, match="holds a run whose rows is 20, not 12; give the same"):
        ExitRun(decoder(), fewer, SETTINGS, tmp_path)
    fewer = replace(fewer, held_out=texts().held_out[:1])
    with pytest.raises(draftwood.ConfigurationError, match="rows is 20, not 12, and whose held_out is 4, not 1; give"):
        ExitRun(decoder(), fewer, SETTINGS, tmp_path)
    del run.facts["rows"], run.facts["held_out"]
    run.save_state()
    with pytest.raises(draftwood.ConfigurationError, match="does not say its rows, held_out: it is of another kind"):
        ExitRun(decoder(), texts(), SETTINGS, tmp_path)


SCRIPT = """
import os, sys, torch
from pathlib import Path
from test_exit_layer import runs
from draftwood.train.exit_layer import Rank
torch.set_num_threads(1)
rank = Rank.here()
if rank.count > 1:
    torch.distributed.init_process_group("gloo")
for run in runs(Path(sys.argv[1]), rank):
    for _ in run.train(3, 4, torch.float32):
        if run.progress.step == int(sys.argv[2]):
            os._exit(9)
if rank.count > 1:
    torch.distributed.destroy_process_group()
"""


def runs(out: Path, rank: Rank) -> Iterator[ExitRun]:
    """One of each kind, on rows of different lengths, in two parts a step."""
    common = {**SETTINGS.model_dump(exclude={"layers", "depth"}), "accumulate": 2, "distill": 0.5}
    yield ExitRun(decoder(), texts(True), ExitSettings(layers=1, **common), out / "exit", rank)
    yield HeadRun(decoder(), texts(True), HeadSettings(heads=2, **common), out / "heads", rank)
    yield EagleRun(decoder(), texts(True), EagleSettings(unroll=2, vocabulary=6, **common), out / "eagle", rank)


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    """torchrun, gloo on the CPU: a step is that of one process up to rounding, also behind a kill; one saves."""
    script, environment = tmp_path / "train.py", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    for out, stop in (("two", 0), ("killed", 5), ("killed", 0)):
        command = [*torchrun, script, tmp_path / out, str(stop)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.returncode == 0) == (not stop), done.stderr
    for one, two, killed in zip(*(runs(tmp_path / name, Rank()) for name in ("one", "two", "killed")), strict=True):
        assert two.progress.step == killed.progress.step == 8 and not one.progress.step
        list(one.train(3, 4, torch.float32))
        for name, part in one.weights.items():
            torch.testing.assert_close(two.weights[name], part, atol=1e-4, rtol=1e-3)
            assert torch.equal(two.weights[name], killed.weights[name])
        for here, there in zip(one.progress.curve, two.progress.curve, strict=True):
            assert there == pytest.approx(here, rel=1e-3)
    with pytest.raises(draftwood.ConfigurationError, match="over 1 parts on 3 processes"):
        ExitRun(decoder(), texts(), SETTINGS, tmp_path / "odd", Rank(0, 3))


# -- the layer that is shipped -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    return draftwood.load()


def test_the_embedded_target_has_an_exit(engine: Engine) -> None:
    """Greedy text is plain decoding's, with more than two tokens a round, though nothing but the target is there."""
    alone = Engine(engine.target, tokenizer=engine.tokenizer, end_tokens=engine.end_tokens)
    made = {method: [0, 0] for method in ("eesd", "tree", "mcsd")}
    for domain in ("sql", "stories"):
        (document,) = itertools.islice(documents(domain, "held-out", 7), 1)
        options = {"sampling": {"temperature": 0}, "max_new_tokens": 40}
        plain = alone.generate(document.prompt, "autoregressive", **options).tokens
        for name, method in (
            ("eesd", {"name": "eesd"}),
            ("tree", {"name": "eesd", "tree": [3, 2, 1]}),
            ("mcsd", {"name": "mcsd", "drafter": "exit", "tree": [3, 2, 1]}),
        ):
            result = alone.generate(document.prompt, method, **options)
            assert result.tokens == plain
            made[name][0] += len(result.tokens)
            made[name][1] += result.metrics.rounds
    assert all(tokens > 2 * rounds for tokens, rounds in made.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_reduced_precision_gives_plain_decodings_text_too(dtype: str) -> None:
    """Layers in two runs give the logits of one bit for bit: near-ties fall the same way."""
    options = {"dtype": "float32", "quantize": "int8"} if dtype == "int8" else {"dtype": dtype}
    engine = draftwood.load(EMBEDDED / "target", **options)
    (document,) = itertools.islice(documents("stories", "held-out", 9), 1)
    asked = {"sampling": {"temperature": 0}, "max_new_tokens": 40}
    plain = engine.generate(document.prompt, "autoregressive", **asked)
    result = engine.generate(document.prompt, "eesd", **asked)
    assert result.tokens == plain.tokens and result.logprobs == plain.logprobs
    assert result.metrics.accepted > 5
    if dtype == "bfloat16":  # a tree's sums are equal up to rounding, which int8 may make a whole step of
        assert engine.generate(document.prompt, {"name": "eesd", "tree": [3, 2, 1]}, **asked).tokens == plain.tokens


@pytest.mark.slow
def test_the_shipped_exit_is_as_good_as_its_file_says(tmp_path: Path) -> None:
    target = load(EMBEDDED / "target", packed=False)
    path = artifact.companion(EMBEDDED / "target", "exit")
    known = artifact.load(path, "exit")
    texts = own_texts(tmp_path)
    assert texts.held_out.shape == (10, 256)
    run = ExitRun(target, texts, ExitSettings(layers=known.settings["layers"]), tmp_path)
    untrained = run.measure()
    run.exit = exits.load(path.parent, target, packed=False)
    point = run.measure()
    assert point["acceptance"] > 0.75 > untrained["acceptance"] + 0.3
    assert point["acceptance"] == pytest.approx(known.about["trained"]["acceptance"], abs=0.04)
