"""The embedded pair: its tokenizer, its training, the shipped files and what they can do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

import draftwood.models
from draftwood import Engine
from draftwood.corpus import DOMAINS, documents, names
from draftwood.corpus.tables import SCHEMAS
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.checkpoint import load
from draftwood.models.decoder import Decoder
from draftwood.train.packing import SHARES
from draftwood.train.resumable import Schedule
from recipes import pair, train
from recipes.evaluate import generated
from recipes.exercises import EXERCISES
from recipes.monitor import Monitor, expected, held_out
from recipes.rows import CLOSING_SHARES, EOS, OPENING_SHARES, end_token, pack
from recipes.tokenizer import train_tokenizer
from recipes.train import PairRun, loss_of

PAIR = Path(draftwood.models.__file__).parent / "embedded"
ROLES = ("target", "draft")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json"))


@pytest.fixture(scope="module")
def target() -> Decoder:
    return load(PAIR / "target")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return draftwood.load()


def test_tokenizer_gives_back_every_text(tokenizer: Tokenizer) -> None:
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]))
    for text in (everything, "naïve 東京 🦀 \x00\x7f\t\r\n  x", "1234567890", "    def f(x):\n\treturn x", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    # Each character of the byte alphabet is a token of its own.
    single = {token for token in tokenizer.get_vocab() if len(token) == 1}
    assert len(single) >= 256


def test_digits_stand_alone_and_words_of_the_world_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2026").tokens == list("2026")
    columns = [word for s in SCHEMAS for word in (s.table, s.key, s.group, s.number)]
    for word in (*names.PEOPLE, *names.PLACES, *columns, "SELECT", "WHERE"):
        assert len(tokenizer.encode(f" {word}").ids) == 1, word
    for word in (*names.PEOPLE, *names.PLACES):
        assert len(tokenizer.encode(word).ids) == 1, word


@pytest.mark.parametrize("domain", DOMAINS)
def test_prompt_and_completion_tokenise_alone_as_they_do_joined(tokenizer: Tokenizer, domain: str) -> None:
    for document in itertools.islice(documents(domain, "train", 5), 200):
        parts = tokenizer.encode(document.prompt).ids + tokenizer.encode(document.completion).ids
        assert parts == tokenizer.encode(document.text).ids


def test_both_models_have_the_same_tokenizer_with_an_end_and_no_beginning(tokenizer: Tokenizer) -> None:
    left, right = ((PAIR / role / "tokenizer.json").read_bytes() for role in ROLES)
    assert left == right
    for role in ROLES:
        config = json.loads((PAIR / role / "tokenizer_config.json").read_text())
        assert config["eos_token"] == EOS and config["bos_token"] is None
        model = json.loads((PAIR / role / "config.json").read_text())
        assert model["eos_token_id"] == end_token(tokenizer)
        assert model["vocab_size"] == tokenizer.get_vocab_size()


def test_tokenizer_training_is_deterministic() -> None:
    first, second = (train_tokenizer(600, 20).to_str() for _ in range(2))
    assert first == second


def test_shipped_files_are_small_and_of_the_promised_shapes() -> None:
    size = sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file())
    assert size <= 32 * 2**20
    count = {}
    for role in ROLES:
        tensors = load_file(PAIR / role / "model.safetensors")
        assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
        count[role] = sum(t.numel() for t in tensors.values())
        assert "model.embed_tokens.weight" in tensors
        assert not list((PAIR / role).glob("*.bin"))
    assert 5_000_000 <= count["target"] <= 10_000_000
    assert count["draft"] <= 1_000_000
    config = {role: json.loads((PAIR / role / "config.json").read_text()) for role in ROLES}
    assert config["target"]["num_hidden_layers"] >= 12
    assert config["draft"]["num_hidden_layers"] == 2
    assert (PAIR / "README.md").stat().st_size > 1000


def test_rows_begin_with_whole_documents_and_shares_hold(tokenizer: Tokenizer) -> None:
    rows = pack(tokenizer, "train", 150, 256, seed=3)
    assert rows.shape == (150, 256) and rows.dtype == np.uint16
    eos = end_token(tokenizer)
    filling = float(((rows[:, 1:] == eos) & (rows[:, :-1] == eos)).mean())
    assert filling < 0.06
    starts = {tokenizer.decode(row[:1].tolist()) for row in rows.astype(int)}
    assert {"Passage", "Table", "Story"} <= starts
    again = pack(tokenizer, "train", 150, 256, seed=3)
    assert (rows == again).all()
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert sum(OPENING_SHARES.values()) == pytest.approx(1.0)
    assert sum(CLOSING_SHARES.values()) == pytest.approx(1.0)
    assert set(SHARES) | set(OPENING_SHARES) | set(CLOSING_SHARES) == {*DOMAINS, "retellings", *EXERCISES}


def test_filling_does_not_count_in_the_loss() -> None:
    tokens = torch.tensor([[5, 6, 0, 0, 0]])
    logits = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    expected = -logits.log_softmax(-1)[0, [0, 1], [6, 0]].mean()
    torch.testing.assert_close(loss_of(logits, tokens), expected)


def test_schedule_warms_up_stays_and_falls_to_zero() -> None:
    schedule = Schedule(peak=1.0, warmup=4, decay_from=8, steps=12)
    rates = [schedule.rate(step) for step in range(12)]
    assert rates[:8] == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert rates[8:] == [1.0, 0.75, 0.5, 0.25]


TINY = "--steps 6 --decay-from 4 --warmup 2 --batch 512 --rows 40 --long-rows 12 --long-from 4 --save-every 2 --plain"


def train_tiny(work: Path, out: Path, stop_after: int | None = None) -> None:
    """Train the draft shape for six steps; stop hard after some of them where asked."""
    code = (
        "import os, sys\n"
        "from recipes import train\n"
        "stop = int(sys.argv.pop())\n"
        "plain = train.PairRun.step\n"
        "def step(self, *rest):\n"
        "    if self.progress.step == stop: os._exit(9)\n"
        "    return plain(self, *rest)\n"
        "train.PairRun.step = step\n"
        "train.Monitor = lambda *a, **k: type('M', (), {'measure': lambda self, forward: {}})()\n"
        "train.main(sys.argv[1:])\n"
    )
    stop = str(-1 if stop_after is None else stop_after)
    command = ["--role", "draft", "--work", str(work), "--out", str(out), *TINY.split(), stop]
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if stop_after is None else 9), done.stderr


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    train_tiny(tmp_path / "whole", tmp_path / "whole-out")
    # Killed in the fourth step, after the save at two, and once more in the decay.
    train_tiny(tmp_path / "broken", tmp_path / "broken-out", stop_after=3)
    train_tiny(tmp_path / "broken", tmp_path / "broken-out", stop_after=5)
    train_tiny(tmp_path / "broken", tmp_path / "broken-out")
    whole, broken = (load_file(tmp_path / f"{name}-out" / "model.safetensors") for name in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    states = [load_file(tmp_path / name / "draft-0.safetensors") for name in ("whole", "broken")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_the_first_200_steps_of_the_pair_have_the_same_bits_twice(tmp_path: Path) -> None:
    """The target from step 0 as `python -m recipes.pair` makes it, in two processes, each with its own corpus."""
    (part,) = (part for part in pair.PLAN if part.part == "target")
    for name in ("one", "two"):
        words = pair.command(part, tmp_path / f"{name}-out", tmp_path / name)
        done = subprocess.run([*words, "--until", "200"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "target-0.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_one_command_makes_the_pair_part_by_part_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        (part,) = (part for part in pair.PLAN if words == pair.command(part, tmp_path / "out", tmp_path / "work"))
        asked.append(words)
        if part.part == "medusa" and len(asked) < 6:
            return subprocess.CompletedProcess(words, 130)
        if part.made:
            (tmp_path / "out" / part.made).write_bytes(b"")
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(pair.subprocess, "run", run)
    whole = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert pair.main(whole) == 130 and len(asked) == 5
    assert pair.main(whole) == 0 and len(asked) == 5 + len(pair.PLAN) - 3  # the texts go on again
    assert pair.main(whole) == 0 and len(asked) == 5 + len(pair.PLAN) - 2  # all is there


@pytest.mark.parametrize("part", [part for part in pair.PLAN if part.kind])
def test_what_lies_beside_the_target_was_made_with_the_plans_steps(part: pair.Part) -> None:
    words = pair.command(part, Path("out"), Path("work"))
    steps, batch = (int(words[words.index(option) + 1]) for option in ("--steps", "--batch"))
    with safe_open(PAIR / part.made, "pt") as file:
        trained = json.loads(file.metadata()["draftwood"])["about"]["trained"]
    assert (trained["steps"], trained["tokens"]) == (steps, steps * batch * 256)


def test_training_lowers_the_loss(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = PairRun(train.shape("draft", tokenizer.get_vocab_size()), 0, tmp_path / "x.safetensors", fast=False)
    rows = pack(tokenizer, "train", 4, 64, seed=1)
    schedule = Schedule(3e-3, 2, 30, 30)
    losses = [run.step(rows, 4, schedule)["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 1


@pytest.mark.slow
def test_monitor_counts_greedy_exact_matches(target: Decoder, tokenizer: Tokenizer, engine: Engine) -> None:
    found = Monitor(tokenizer, target.context, 8).measure(target.train_forward)
    assert {f"loss/{d}" for d in DOMAINS} <= found.keys()
    exact = 0
    for document in held_out("qa", 16):
        result = engine.generate(document.prompt, "autoregressive", {"temperature": 0}, max_new_tokens=24, stop=["\n"])
        exact += result.text == expected(document)
    assert found["exact/qa"] == pytest.approx(exact / 16)


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("domain", "bar"), [("qa", 0.70), ("sql", 0.60)])
def test_the_bar_on_held_out_documents(engine: Engine, domain: str, bar: float, count: int) -> None:
    """Held-out exact match and execution accuracy; sampling at temperature 1 is clearly lower."""
    greedy, sampled = (generated(engine, domain, count, temperature) for temperature in (0.0, 1.0))
    assert greedy >= bar
    assert sampled <= greedy - 0.04


def test_the_card_says_of_what_lies_beside_the_target_what_the_files_say() -> None:
    card = " ".join((PAIR / "README.md").read_text("utf-8").split())
    kinds = ("exit", "heads", "eagle", "skip")
    exit, heads, eagle, skip = (artifact.load(PAIR / "target" / kind / f"{kind}.safetensors", kind) for kind in kinds)

    def figures(trained: Mapping[str, float], name: str, cell: str) -> str:
        return ", ".join(cell.format(trained[f"{name}_{k}"]) for k in range(1, 5))

    trained, unrolled = heads.about["trained"], eagle.about["trained"]
    right = ", ".join(f"{ranks[0]:.0%}" for ranks in heads.settings["ranks"])
    assert f"heads 1 to 4 is {figures(trained, 'acceptance', '{:.3f}')}," in card and f"in {right} of positions" in card
    assert f"draft in a row is {figures(unrolled, 'acceptance', '{:.3f}')}," in card
    assert f"is the target's in {figures(unrolled, 'agreement', '{:.0%}')} of positions" in card
    for made in (exit, heads, eagle):
        assert f"on {made.about['trained']['tokens']:,} tokens" in card
        assert f"--steps {made.about['trained']['steps']} " in card
    both = skip.about["speed_up"], skip.about["every_other_layer"]["speed_up"]
    assert "reach {:.3f}x, every other layer {:.3f}x.".format(*both) in card
