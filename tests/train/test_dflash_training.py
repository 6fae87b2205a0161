"""Training a DFlash head: it learns, goes on where it was stopped, and counts the places that drafting meets."""

from pathlib import Path

import pytest
import torch
from small_decoder import VOCAB, decoder
from test_eagle_training import texts

from draftwood import Engine
from draftwood.models.heads import dflash
from draftwood.train.dflash import DFlashRun
from draftwood.train.settings import DFlashSettings
from draftwood.train.texts import Texts

SETTINGS = DFlashSettings(steps=10, batch=4, rate=3e-3, warmup=2, precision="float32", block=4, distill=0.5)


def run(out: Path) -> DFlashRun:
    return DFlashRun(decoder(3), texts(), SETTINGS, out)


def test_a_run_learns_and_is_resumed(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    list(whole.train(100, 5, torch.float32))
    curve = whole.progress.curve
    assert curve[-1]["loss"] < curve[0]["loss"] and "acceptance_3" in curve[-1] and "acceptance_4" not in curve[-1]
    half = run(tmp_path / "half")
    for number, _ in enumerate(half.train(4, 5, torch.float32), 1):
        if number == 7:
            break  # given up, and saved
    again = run(tmp_path / "half")
    assert again.progress.step == 7
    list(again.train(100, 5, torch.float32))
    head = dflash.load(tmp_path / "whole", decoder(3), packed=False)
    for name, part in dflash.load(tmp_path / "half", decoder(3), packed=False).weights().items():
        assert torch.equal(part, head.weights()[name]), name
    engine = Engine(decoder(3), [head])
    plain = engine.generate([3, 4], "autoregressive", {"temperature": 0}, max_new_tokens=12)
    assert engine.generate([3, 4], "dflash", {"temperature": 0}, max_new_tokens=12).tokens == plain.tokens
    assert all(torch.equal(a, b) for a, b in zip(whole.target.parameters(), decoder(3).parameters(), strict=True))


def test_a_gain_is_that_of_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 4 drafts 3 tokens: 1 + .8 + .8 * .75 + .8 * .75 * .72 tokens in the time of 1.15 forwards."""
    monkeypatch.setattr(DFlashRun, "cost", 0.15)
    point = {"acceptance": 0.8, "acceptance_1": 0.8, "acceptance_2": 0.75, "acceptance_3": 0.72}
    assert run(tmp_path).expected_gain(point) == pytest.approx(2.832 / 1.15)


def test_places_end_where_texts_do(tmp_path: Path) -> None:
    """Behind an end token, which 0 is, nothing is drafted; the token itself is."""
    row = [3, 1, 4, 0, 5, 9, 2, 6, 5]
    rows = torch.tensor([row, row]).numpy()
    job = DFlashRun(decoder(3), Texts(rows, rows, "made up", 0), SETTINGS, tmp_path)
    tokens = torch.tensor([row])
    assert job._anchors(tokens).tolist() == [0, 4]
    assert [here[0].tolist() for here in job.counted(tokens)] == [[True, True]] * 3
    of_answer = torch.cat((~tokens[:, :3], tokens[:, 3:]), 1)
    assert [here[0].tolist() for here in job.counted(of_answer)] == [[False, True], [False, True], [True, True]]
    job._first = 2
    assert job._anchors(tokens).tolist() == [2, 6]
    assert [here[0].tolist() for here in job.counted(tokens)] == [[True, True], [False, True], [False, False]]
    logits = torch.randn(1, 2, 3, VOCAB, generator=torch.Generator().manual_seed(0))
    answer = torch.log_softmax(torch.randn(1, 9, VOCAB, generator=torch.Generator().manual_seed(1)), -1)
    first, second, third = job._places(logits, tokens, answer)
    assert (first[1].tolist(), second[1].tolist(), third[1].tolist()) == ([0, 6], [5], [])
    assert second[2] is not None and torch.equal(second[2], answer[0, 7:8])
    assert torch.equal(second[0], logits[0, 1:, 1])
