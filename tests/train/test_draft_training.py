"""Training a draft model of the target: where it begins, resuming bit for bit, what is saved, and drafting with it."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file
from small_decoder import LAYERS, VOCAB, decoder
from test_heads import texts

import draftwood
from draftwood import ConfigurationError, ModelError
from draftwood.core.forest import Forest
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.heads.pruned import FILE, PrunedDraft, load, save
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.train.card import CARD, Origin, write_card
from draftwood.train.draft import DraftRun, layer_sets
from draftwood.train.runs import prepare, train
from draftwood.train.settings import DraftSettings, Saving, TextSource

ALL = torch.arange(VOCAB)
SOME = torch.tensor([0, 1, 2, 3, 5, 8])


def run(out: Path, target: Decoder | None = None, **options: Any) -> DraftRun:
    values = {"steps": 6, "batch": 4, "warmup": 1, "precision": "float32", "rate": 1e-2, "layers": 2, "search": 2}
    return DraftRun(target or decoder(), texts(), DraftSettings(**{**values, **options}), out)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits [V] after tokens, by the runtime."""
    forest = Forest.from_prompt(tokens)
    with torch.no_grad():
        return execute([Run(Session(model, model.new_cache(len(tokens) + 1)), forest, forest.roots)])[0].logits[0]


def test_with_all_layers_and_tokens_it_is_the_target() -> None:
    target, tokens = decoder(), [3, 1, 4, 1, 5]
    draft = PrunedDraft.of(target, range(LAYERS), ALL)
    torch.testing.assert_close(logits_of(draft, tokens), logits_of(target, tokens))


def test_tokens_that_it_does_not_know_are_one_and_never_drafted() -> None:
    target = decoder()
    draft = PrunedDraft.of(target, [0, 3], SOME)
    assert draft.n_layers == 2 and draft.vocab_size == VOCAB
    torch.testing.assert_close(logits_of(draft, [3, 7, 1]), logits_of(draft, [3, 11, 1]))
    logits = logits_of(draft, [3, 7, 1])
    assert all((logits[token] == ABSENT_LOGIT) == (token not in SOME) for token in range(VOCAB))
    with torch.no_grad():
        trained = draft.train_forward(draft.place[torch.tensor([[3, 7, 1]])])[0, -1]
    torch.testing.assert_close(logits[SOME], trained)


def test_acceptance_counts_unknown_tokens_as_rejected(tmp_path: Path) -> None:
    job = run(tmp_path, kept=[0, 1, 2, 3], layers=4, vocabulary=6)
    point = job.measure()
    tokens = torch.from_numpy(texts().held_out).long()
    p = torch.softmax(job.target.train_forward(tokens), -1)
    q = torch.zeros_like(p)
    q[..., job.exit.words] = torch.softmax(job.exit.train_forward(job.exit.place[tokens]), -1)
    (here,) = job.counted(tokens)
    wanted = torch.minimum(p, q).sum(-1)[:, :-1][here].mean()
    assert point["acceptance"] == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_it_ends_where_held_out_acceptance_no_longer_rises(tmp_path: Path) -> None:
    job = run(tmp_path, steps=40)
    rates = iter([0.1, 0.3, 0.2, 0.3, 0.9])

    def measure() -> dict[str, float]:
        job.progress.curve.append({"step": float(job.progress.step), "acceptance": next(rates)})
        return job.progress.curve[-1]

    job.measure = measure  # type: ignore[assignment, method-assign]
    list(job.train(100, 2, torch.float32, patience=2))
    assert job.progress.step == 6 and not job.done and job.stalled(2) and not job.stalled(3) and not job.stalled(None)
    again = run(tmp_path, steps=40)  # what was saved at the end, and is at its end
    assert again.progress.step == 6 and not list(again.train(100, 2, torch.float32, patience=2))


def test_layers_are_chosen_and_training_helps(tmp_path: Path) -> None:
    assert layer_sets(30, 6) == [[0, 6, 12, 17, 23, 29], [0, 1, 2, 27, 28, 29], [0, 1, 2, 3, 4, 29]]
    assert layer_sets(3, 1) == [[0], [2]]
    job = run(tmp_path, steps=40)
    assert job.settings.kept in layer_sets(LAYERS, 2) and job.settings.vocabulary == len(job.exit.words) < VOCAB
    list(job.train(100, 100, torch.float32))
    first, last = job.progress.curve[0], job.progress.curve[-1]
    assert last["loss"] < 0.8 * first["loss"] and last["acceptance"] > first["acceptance"]
    assert last["gain"] >= first["gain"] >= 1
    assert 0 < job.cost < 0.6


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    list(whole.train(100, 3, torch.float32))
    steps = run(tmp_path / "broken").train(2, 3, torch.float32)
    for _ in range(3):
        next(steps)
    steps.close()
    again = run(tmp_path / "broken")
    assert again.progress.step == 3
    list(again.train(2, 3, torch.float32))
    one, other = (load_file(tmp_path / name / FILE) for name in ("whole", "broken"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ConfigurationError, match="holds a run whose layers is 2, not 3"):
        run(tmp_path / "broken", layers=3)


def test_a_saved_draft_is_loaded_as_a_draft(tmp_path: Path) -> None:
    """By its directory, and with the bits of plain decoding."""
    target = checkpoint.load(tiny_models.write(tmp_path, 1), "float32", "cpu", packed=False)
    engine = draftwood.load(tmp_path, device="cpu", dtype="float32")
    job = run(tmp_path / "draft", target, steps=2)
    list(job.train(100, 100, torch.float32))
    with_draft = draftwood.load(tmp_path, tmp_path / "draft", device="cpu", dtype="float32")
    assert with_draft.default_method.name == "speculative"
    for method in ({"name": "speculative", "gamma": 3}, {"name": "mcsd", "tree": [2, 2]}):
        for prompt in ([1, 2, 3], [7, 11, 3, 4]):
            options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
            found = with_draft.generate(prompt, method, **options)
            assert found.tokens == engine.generate(prompt, "autoregressive", **options).tokens
            assert found.metrics.drafted > 0


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    target = decoder()
    draft = PrunedDraft.of(target, [0, 2], SOME)
    save(draft.weights(), tmp_path, draft.target, draft.kept, torch.float32)
    assert torch.equal(load(tmp_path, target).words, SOME)
    with pytest.raises(ModelError, match="was trained for another target"):
        load(tmp_path, decoder(2))
    with pytest.raises(ModelError, match="cannot be kept of 4"):
        PrunedDraft.of(target, [2, 0], SOME)
    with pytest.raises(ModelError, match=r"cannot be kept of 4; name some"):
        run(tmp_path / "run", target, kept=[0, 9], layers=None)
    for change in ({"words": SOME + 100}, {"words": SOME[:3]}, {"norm": torch.ones(3)}):
        save({**draft.weights(), **change}, tmp_path, draft.target, draft.kept, torch.float32)
        with pytest.raises(ModelError, match="is damaged"):
            load(tmp_path, target)


def test_every_token_that_ends_the_targets_texts_is_known(tmp_path: Path) -> None:
    target, text = tiny_models.write(tmp_path / "tiny", 1), tmp_path / "texts.jsonl"
    (target / "generation_config.json").write_text('{"eos_token_id": [256, 10]}')
    text.write_text('{"tokens": [1, 2, 3, 10]}\n{"tokens": [4, 5, 6]}\n' * 9)
    settings = DraftSettings(steps=1, batch=2, kept=[1], vocabulary=9)
    source = TextSource(data=str(text), context=4, rows=8, held_out=2)
    texts = prepare(DraftRun, settings, tmp_path / "out", source, target, "cpu")[0].texts
    assert (texts.end, texts.ends) == (10, {256, 10})
    assert {tuple(row) for row in texts.train.tolist()} == {(1, 2, 3, 10), (4, 5, 6, 10)}


def test_the_card_says_what_it_drafts_for(tmp_path: Path) -> None:
    """At each save; the command in it asks for the same run. A README of somebody else stays."""
    target, out = tiny_models.write(tmp_path / "tiny", 1), tmp_path / "draft"
    text = tmp_path / "texts.txt"
    text.write_text("a b c d e f " * 400, "utf-8")
    settings = DraftSettings(steps=3, batch=2, warmup=1, kept=[1], vocabulary=40, precision="float32")
    source = TextSource(data=str(text), context=16, rows=8, held_out=2)
    reports = train(
        partial(prepare, DraftRun, settings, out, source, target, "cpu"), Saving(measure_every=3, save_every=2)
    )
    while next(reports).step < 2:
        pass
    card = (out / CARD).read_text("utf-8")
    assert "# Draft model for tiny" in card and "trained for | 2 steps, 64 tokens" in card
    assert "of texts.txt, measured after 0 steps |" in card
    size = (target / "model.safetensors").stat().st_size
    assert f"({size:,} bytes of weights, fingerprint {artifact.load(out / FILE, 'draft').models['target']})" in card
    *_, last = reports
    card = (out / CARD).read_text("utf-8")
    assert "of texts.txt |" in card
    assert last.document is not None and f"temperature 1, of drafted tokens | {last.document['acceptance']:.3f}" in card
    (line,) = (line for line in card.splitlines() if line.startswith("draftwood train draft "))
    assert shlex.split(line)[3:] == [
        *("--target", str(target), "--steps", "3", "--batch", "2", "--warmup", "1", "--precision", "float32"),
        *("--vocabulary", "40", "--kept", "1"),
        *("--data", str(text), "--context", "16", "--rows", "8", "--held-out", "2", "--out", "DIR"),
    ]
    (out / CARD).write_text("mine")
    write_card(out, "draft", Origin(target, False, settings, source), "0", {})
    assert (out / CARD).read_text() == "mine"
