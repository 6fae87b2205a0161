"""Training heads: the loss by hand, resuming bit for bit, what is saved and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_decoder import VOCAB, decoder

from draftwood import ConfigurationError, Engine, ModelError
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads.medusa import FILE, Heads, load, save
from draftwood.train.exit_layer import ExitRun
from draftwood.train.heads import HeadRun
from draftwood.train.settings import HeadSettings
from draftwood.train.texts import Texts

END, CONTEXT = 0, 12


def texts(rows: int = 24, held_out: int = 4) -> Texts:
    """Runs of 1, 2, 3, ... from random beginnings, with ends between."""
    random = np.random.default_rng(1)

    def row() -> list[int]:
        filled: list[int] = []
        while len(filled) < CONTEXT:
            start = int(random.integers(1, 10))
            filled += [*range(start, start + int(random.integers(3, 8))), END]
        return filled[:CONTEXT]

    made = np.array([row() for _ in range(rows + held_out)], dtype=np.int32)
    return Texts(made[:rows], made[rows:], "digest", END)


def settings(**options: Any) -> HeadSettings:
    values = {"steps": 6, "batch": 4, "warmup": 1, "precision": "float32", "heads": 3, "rate": 3e-2, **options}
    return HeadSettings(**values)


def run(out: Path, target: Decoder | None = None, **options: Any) -> HeadRun:
    return HeadRun(target or decoder(), texts(), settings(**options), out)


@pytest.mark.parametrize("distill", [0.0, 0.3])
def test_loss_by_hand(tmp_path: Path, distill: float) -> None:
    """sum_k 0.8^k of the mean over places t without an end in t+1..t+k, of what is k + 1 places ahead."""
    job = run(tmp_path, distill=distill)
    tokens = torch.from_numpy(texts().train[:3].astype(np.int64))
    hidden, answer = job._read(tokens, True)
    assert answer is not None
    torch.manual_seed(0)
    for part in job.exit.parameters():
        part.data += 0.1 * torch.randn_like(part)
    logits = job.exit.train_forward(hidden)
    expected = 0.0
    for k in (1, 2, 3):
        each = []
        for row in range(3):
            for t in range(CONTEXT - k - 1):
                if END in tokens[row, t + 1 : t + k + 1].tolist():
                    continue
                log_q = torch.log_softmax(logits[k - 1, row, t], -1)
                log_p = answer[row, t + k]
                nll = -log_q[tokens[row, t + k + 1]]
                kl = (log_p.exp() * (log_p - log_q)).sum()
                each.append(float(((1 - distill) * nll + distill * kl).detach()))
        expected += 0.8**k * sum(each) / len(each)
    counts = [int(here.sum()) for here in job.counted(tokens)]
    got = job.loss(logits, tokens, answer if distill else None, counts)
    assert float(got.detach()) == pytest.approx(expected, rel=1e-5)


def test_places_behind_any_end_do_not_count(tmp_path: Path) -> None:
    """Also behind a token that ends texts, but is not put between them."""
    other = 9
    made = replace(texts(), ends=frozenset({other}))
    job = HeadRun(decoder(), made, settings(), tmp_path)
    tokens = torch.tensor([[5, 6, 7, other, 1, 2, 3, END, END, END]])
    seen = [here[0].tolist() for here in job.counted(tokens)]
    assert seen[0] == [True, True, False, True, True, True, False, False]
    assert seen[1] == [True, False, False, True, True, False, False]
    of_answer = tokens.clone()
    of_answer[:, :6] = ~of_answer[:, :6]
    for head, here in enumerate(job.counted(of_answer), 1):  # the head of state t drafts the token t + head + 1
        assert here[0].tolist() == [one and t + head + 1 >= 6 for t, one in enumerate(seen[head - 1])]
    (of_exit,) = ExitRun.counted(job, tokens)
    assert of_exit[0].tolist() == [True] * 7 + [False] * 2


def test_they_begin_as_the_targets_head() -> None:
    target = decoder()
    tokens = torch.arange(1, 9)[None]
    x = target.train_layers(target.embedded(tokens, torch.arange(8)[None]), 0, 4)
    for shared in (False, True):
        heads = Heads.of(target, 2, shared)
        logits = heads.train_forward(target.normed(x))
        assert logits.shape == (2, 1, 8, VOCAB)
        assert torch.allclose(logits, target.train_forward(tokens).expand(2, -1, -1, -1), atol=1e-5)
        count = sum(part.numel() for part in heads.parameters())
        assert count == 2 * (24 * 24 + 24 + (0 if shared else 24 * VOCAB))


@pytest.mark.parametrize("shared", [False, True])
def test_training_lowers_the_loss_of_the_heads_only(tmp_path: Path, shared: bool) -> None:
    target = decoder()
    before = {name: part.detach().clone() for name, part in target.named_parameters()}
    job = run(tmp_path, target, steps=40, shared=shared)
    list(job.train(100, 100, torch.float32))
    first, last = job.progress.curve[0], job.progress.curve[-1]
    for k in (1, 2, 3):
        assert last[f"loss_{k}"] < 0.8 * first[f"loss_{k}"]
        assert 0 <= last[f"agreement_{k}"] <= 1 and 0 < last[f"acceptance_{k}"] < 1
    assert last["acceptance"] == last["acceptance_1"]
    assert all(torch.equal(part, before[name]) for name, part in target.named_parameters())
    assert all(part.grad is None for part in target.parameters())


def test_a_gain_is_that_of_a_token_of_each_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadRun, "cost", 0.15)
    point = {"acceptance": 0.8, "acceptance_1": 0.8, "acceptance_2": 0.75, "acceptance_3": 0.72}
    assert run(tmp_path).expected_gain(point) == pytest.approx(2.832 / 1.15)


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    list(whole.train(100, 3, torch.float32))
    broken = run(tmp_path / "broken")
    steps = broken.train(2, 3, torch.float32)
    for _ in range(3):
        next(steps)
    steps.close()  # given up after step 3, and saved there
    again = run(tmp_path / "broken")
    assert again.progress.step == 3
    list(again.train(2, 3, torch.float32))
    assert again.progress.step == whole.progress.step == 6
    one, other = (load_file(tmp_path / name / FILE) for name in ("whole", "broken"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert again.progress.curve == whole.progress.curve
    with pytest.raises(ConfigurationError, match="holds a run whose heads is 3, not 2; give the same settings"):
        run(tmp_path / "broken", heads=2)


def test_a_resumed_run_keeps_the_ranks_that_were_measured(tmp_path: Path) -> None:
    target = decoder()
    for number in range(2):
        steps = run(tmp_path, target).train(100, 100, torch.float32)
        next(steps)
        steps.close()
        ranks = load(tmp_path, target).ranks
        assert len(ranks) == 3 and sum(ranks[0]) > 0, number


@pytest.mark.parametrize("last", [4, 6])
def test_an_interrupted_step_is_measured_when_the_run_goes_on(
    tmp_path: Path, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right after a step that is to be measured, the last one too; till then the figures say whose they are."""
    target = decoder()
    whole = run(tmp_path / "whole", target)
    list(whole.train(100, 2, torch.float32))
    broken, step = run(tmp_path / "broken", target), HeadRun.step

    def interrupted(job: HeadRun) -> dict[str, float]:
        figures = step(job)
        if job.progress.step == last:
            raise KeyboardInterrupt
        return figures

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HeadRun, "step", interrupted)
        list(broken.train(100, 2, torch.float32))
    trained = artifact.load(tmp_path / "broken" / FILE, "heads").about["trained"]
    assert (trained["steps"], trained["measured"]) == (last, last - 2)
    again = run(tmp_path / "broken", target)
    list(again.train(100, 2, torch.float32))
    assert again.progress.curve == whole.progress.curve
    trained = artifact.load(tmp_path / "broken" / FILE, "heads").about["trained"]
    assert (trained["steps"], trained["measured"]) == (6, 6)
    assert trained["acceptance"] == whole.progress.curve[-1]["acceptance"]


def test_what_was_trained_is_loaded_and_drafts(tmp_path: Path) -> None:
    target = decoder()
    job = run(tmp_path, target, steps=30)
    list(job.train(100, 100, torch.float32))
    heads = load(tmp_path, target)
    assert not heads.shared and heads.count == 3
    hidden = torch.randn(5, 24)
    assert torch.allclose(heads.train_forward(hidden), job.exit.train_forward(hidden), atol=1e-4)
    method = {"name": "medusa", "heads": str(tmp_path), "tree": [2, 1, 1]}
    prompt = texts().held_out[0][:6].tolist()
    result = Engine(target).generate(prompt, method, {"temperature": 0}, max_new_tokens=16)
    plain = Engine(target).generate(prompt, "autoregressive", {"temperature": 0}, max_new_tokens=16)
    assert result.tokens == plain.tokens
    target.home = tmp_path.parent
    tmp_path.rename(tmp_path.parent / "heads")
    beside = Engine(target).generate(prompt, {**method, "heads": None}, {"temperature": 0}, max_new_tokens=16)
    assert [r.drafted for r in beside.rounds] == [r.drafted for r in result.rounds]


def test_shared_heads_are_small_and_load(tmp_path: Path) -> None:
    target = decoder()
    job = run(tmp_path, target, shared=True)
    list(job.train(100, 100, torch.float32))
    heads = load(tmp_path, target, packed=False)
    assert heads.shared and not heads.out
    hidden = torch.randn(5, 24)
    assert torch.allclose(heads.train_forward(hidden), job.exit.train_forward(hidden), atol=1e-5)
    assert heads.weight_bytes == 4 * (3 * (24 * 24 + 24) + 24 * VOCAB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "greater than or equal to 1"),
        ({"heads": 17}, "less than or equal to 16"),
        ({"decay": 0.0}, "greater than 0"),
        ({"steps": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **options)


def test_nothing_to_train_on(tmp_path: Path) -> None:
    empty = Texts(texts().train[:0], texts().held_out, "digest", END)
    with pytest.raises(ConfigurationError, match="there is nothing to train on"):
        HeadRun(decoder(), empty, settings(), tmp_path)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    target = decoder()
    save(Heads.of(decoder(1), 2).weights(), tmp_path, fingerprint(decoder(1)))
    with pytest.raises(ModelError, match=r"was trained for another target .* `draftwood train medusa`"):
        load(tmp_path, target)
    save(Heads.of(target, 2).weights(), tmp_path, fingerprint(target))
    load(tmp_path, target)
    whole = artifact.load(tmp_path / FILE, "heads")
    for settings in ({**whole.settings, "heads": 3}, {**whole.settings, "heads": "2"}, {}):
        replace(whole, settings=settings).save(tmp_path / FILE)
        with pytest.raises(ModelError, match=r"is damaged .* make it again with `draftwood train medusa`"):
            load(tmp_path, target)
