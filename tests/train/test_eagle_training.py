"""Training an EAGLE head: it learns, goes on where it was killed, and what it measures is what drafting accepts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from own_texts import own_texts
from small_decoder import VOCAB, decoder

from draftwood import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.checkpoint import load
from draftwood.models.heads import eagle
from draftwood.models.heads.eagle_head import EagleHead, EagleNorms
from draftwood.train.eagle import EagleRun, begin_with
from draftwood.train.settings import EagleSettings
from draftwood.train.texts import Texts

SETTINGS = EagleSettings(steps=12, batch=4, rate=3e-3, warmup=2, precision="float32", unroll=2, distill=0.5)


def texts(seed: int = 0) -> Texts:
    """Rows that a small head can learn: each token follows from the one before."""
    rng = np.random.default_rng(seed)
    rows = np.empty((16, 24), np.int32)
    rows[:, 0] = rng.integers(1, VOCAB, 16)
    for place in range(1, 24):
        rows[:, place] = rows[:, place - 1] * 7 % (VOCAB - 1) + 1
    return Texts(rows[:12], rows[12:], "made up", 0)


def run(out: Path, **changes: object) -> EagleRun:
    return EagleRun(decoder(3), texts(), SETTINGS.model_copy(update=changes), out)


@pytest.mark.parametrize("vocabulary", [None, 12])
def test_a_run_learns_and_is_resumed(vocabulary: int | None, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", vocabulary=vocabulary)
    list(whole.train(100, 6, torch.float32))
    curve = whole.progress.curve
    assert curve[-1]["loss"] < curve[0]["loss"] and {"acceptance_1", "acceptance_2"} <= curve[-1].keys()
    half = run(tmp_path / "half", vocabulary=vocabulary)
    for number, _ in enumerate(half.train(4, 6, torch.float32), 1):
        if number == 7:
            break  # given up, and saved
    again = run(tmp_path / "half", vocabulary=vocabulary)
    assert again.progress.step == 7
    list(again.train(100, 6, torch.float32))
    head = eagle.load(tmp_path / "whole", decoder(3), packed=False)
    for name, part in eagle.load(tmp_path / "half", decoder(3), packed=False).weights().items():
        assert torch.equal(part, head.weights()[name]), name
    assert head.vocab_size == VOCAB and (head.words is None) == (vocabulary is None)
    engine = Engine(decoder(3), [head])
    plain = engine.generate([3, 4], "autoregressive", {"temperature": 0}, max_new_tokens=12)
    assert engine.generate([3, 4], "eagle", {"temperature": 0}, max_new_tokens=12).tokens == plain.tokens


def test_tokens_of_prompts_are_read_but_not_learned(tmp_path: Path) -> None:
    """The second step drafts a token behind the one that the first drafted, which may be the prompt's last."""
    job = run(tmp_path, vocabulary=12)
    known = job.exit.head.words.tolist()
    other = next(token for token in range(1, VOCAB) if token not in known)
    one, two, three = [token for token in known if token][:3]
    first, second = job.counted(torch.tensor([[~one, ~two, ~three, one, other, two, three]]))
    assert first[0].tolist() == [False, True, True, True, True]
    assert second[0].tolist() == [True, True, False, True]


def test_a_run_begins_with_a_trained_head_of_another_vocabulary(tmp_path: Path) -> None:
    small = run(tmp_path / "small", vocabulary=12, steps=40)
    list(small.train(100, 40, torch.float32))
    same = run(tmp_path / "same", vocabulary=12, start=str(tmp_path / "small"))
    assert same.measure()["acceptance"] == pytest.approx(small.progress.curve[-1]["acceptance"], abs=1e-6)
    larger = run(tmp_path / "larger", start=str(tmp_path / "small"))
    new, trained = larger.exit.head, small.exit.head
    assert torch.equal(new.decoder.head.weight[trained.words], trained.decoder.head.weight)
    assert torch.equal(new.fc.weight, trained.fc.weight)
    assert larger.measure()["loss"] < run(tmp_path / "anew").measure()["loss"]
    with pytest.raises(ConfigurationError, match="leave --start out"):
        begin_with(new, EagleHead.of(larger.target, reads=(1,)), larger.target)
    trained.norms = EagleNorms(output=True)
    with pytest.raises(ConfigurationError, match="other layers or norms"):
        begin_with(new, trained, larger.target)


def test_acceptance_of_a_restricted_vocabulary_is_of_all_tokens_that_the_target_may_say(tmp_path: Path) -> None:
    job = run(tmp_path, vocabulary=12, steps=20)
    list(job.train(100, 20, torch.float32))
    found, words, tokens = job.measure(), job.exit.head.words, torch.from_numpy(texts().held_out.astype(np.int64))
    read, log_p = job._read(tokens, True)
    assert log_p is not None
    q = job.exit.train_forward(read).detach().softmax(-1)  # [steps, B, T - 1, V_head]
    p = log_p.exp()[..., words]  # [B, T, V_head]
    accepted: list[list[float]] = [[], []]
    nats: list[float] = []  # of the tokens that the head knows, one step ahead
    number = {word: place for place, word in enumerate(words.tolist())}
    for row, text in enumerate(tokens.tolist()):
        for place in range(1, len(text) - 1):
            for step in range(2):
                if place > step and (not step or text[place] in number):
                    both = torch.minimum(p[row, place], q[step, row, place - 1])
                    accepted[step].append(float(both.sum()))
            if text[place + 1] in number:
                nats.append(-float(q[0, row, place - 1, number[text[place + 1]]].log()))
    assert float(p.sum(-1).mean()) < 0.95 and len(accepted[1]) < len(accepted[0]) - 4
    for step, each in enumerate(accepted, 1):
        assert found[f"acceptance_{step}"] == pytest.approx(np.mean(each), abs=1e-5)
    assert len(nats) < len(accepted[0]) and found["loss_1"] == pytest.approx(np.mean(nats), abs=1e-5)


@pytest.mark.slow
def test_the_shipped_head_is_as_good_as_its_file_says(tmp_path: Path) -> None:
    home = EMBEDDED / "target"
    target, path = load(home, packed=False), artifact.companion(home, "eagle")
    trained = artifact.load(path, "eagle").about["trained"]
    job = EagleRun(target, own_texts(tmp_path), EagleSettings(precision="float32"), tmp_path)
    job.exit.head = eagle.load(path.parent, target, packed=False)
    found = job.measure()
    for k in range(1, 5):
        assert found[f"acceptance_{k}"] == pytest.approx(trained[f"acceptance_{k}"], abs=0.06)
    assert path.stat().st_size < 3_000_000
