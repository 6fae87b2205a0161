"""Heads and skip sets beside a target are grown with it: the same drafts, at the larger shape's cost."""

from pathlib import Path

import pytest
import torch
from grown_decoder import grow

from benchmarks.grow.checkpoint import grow_heads, grow_skipped, grown_fingerprint, write_learned
from benchmarks.grow.growth import Growth
from draftwood import Engine
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads import eagle, skip
from draftwood.models.heads import medusa as trained
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.medusa import Heads
from draftwood.models.heads.skip import Skipped, SkippedDecoder, skipping


def small() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(31, 16, 24, 3, 2, 1, 8, 128))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def moved(model: Decoder, shared: bool) -> Heads:
    heads = Heads.of(model, 3, shared).requires_grad_(False)
    torch.manual_seed(1)
    for part in heads.parameters():
        part += 0.1 * torch.randn_like(part)
    heads.ranks = [[0.5, 0.2, 0.1], [0.4, 0.2], [0.4, 0.1]]
    return heads


@pytest.mark.parametrize("width", [32, 40])  # whole copies; some channels left over
@pytest.mark.parametrize("shared", [False, True])
def test_grown_heads_say_the_same(width: int, shared: bool, tmp_path: Path) -> None:
    model, tokens = small(), torch.arange(2, 14)[None]
    heads, growth = moved(model, shared), Growth.plan(model, 5, width, seed=4)
    grown = grow(model, 5, width, seed=4).eval()
    assert grown_fingerprint(model, growth, torch.float32) == fingerprint(grown)
    model.home, grown.home = tmp_path / "small", tmp_path / "grown"
    trained.save(heads.weights(), model.home / "heads", fingerprint(model), torch.float32, heads.ranks)
    write_learned(model.home, model, growth, grown.home, "float32")
    loaded = trained.load(grown.home / "heads", grown, packed=False)
    assert sum(part.numel() for part in loaded.parameters()) > sum(part.numel() for part in heads.parameters())
    assert loaded.ranks == heads.ranks
    with torch.inference_mode():
        answers = []
        for target, read in ((model, heads), (grown, loaded)):
            x = target.embedded(tokens, torch.arange(12)[None])
            answers.append(read.train_forward(target.normed(target.train_layers(x, 0, target.n_layers))))
    assert float((answers[0] - answers[1]).abs().max()) < 1e-3
    names = grow_heads(heads, growth, torch.float32)
    assert shared or not torch.equal(names["out.0.weight"], names["out.1.weight"])
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
    drafted = Engine(grown).generate([3, 4], {"name": "medusa", "tree": [2, 1, 1]}, **options)  # type: ignore[arg-type]
    before = Engine(model).generate([3, 4], {"name": "medusa", "tree": [2, 1, 1]}, **options)  # type: ignore[arg-type]
    assert drafted.tokens == before.tokens
    assert [r.depth_accepted for r in drafted.rounds] == [r.depth_accepted for r in before.rounds]


def test_a_grown_skip_set_gives_the_same_drafts_for_the_same_share_of_the_cost(tmp_path: Path) -> None:
    model, tokens = small(), torch.arange(2, 14)[None]
    chosen = Skipped((1,), (0, 2))
    growth = Growth.plan(model, 9, 32, seed=4, keep_first=1)
    assert grow_skipped(chosen, growth) == Skipped((2, 5, 7), (0, 1, 3, 4, 6, 8))  # a third, and two thirds, of nine
    grown = grow(model, 9, 32, seed=4, keep_first=1).eval()
    skip.save(artifact.companion(tmp_path / "small", "skip"), chosen, fingerprint(model))
    write_learned(tmp_path / "small", model, growth, tmp_path, "float32")
    grown.home = tmp_path
    view = skipping(grown, None)
    assert view.skipped == grow_skipped(chosen, growth)
    with torch.inference_mode():
        before, after = SkippedDecoder(model, chosen).train_forward(tokens), view.train_forward(tokens)
    assert float((before - after).abs().max()) < 1e-3
    assert grow_skipped(chosen, Growth.plan(model, 3, 32)) == chosen


@pytest.mark.parametrize("width", [32, 40])  # whole copies; some channels left over
def test_a_grown_eagle_head_says_the_same(width: int, tmp_path: Path) -> None:
    """In each step of drafting, of a vocabulary of its own; so do its drafts."""
    model, tokens = small(), torch.arange(2, 14)[None]
    head = EagleHead.of(model, [1, 2], torch.arange(3, 30, 2)).requires_grad_(False)
    torch.manual_seed(1)
    for part in head.parameters():
        part += 0.1 * torch.randn_like(part)
    growth, grown = Growth.plan(model, 5, width, seed=4, keep_first=1), grow(model, 5, width, seed=4, keep_first=1)
    model.home, grown.home = tmp_path / "small", tmp_path / "grown"
    eagle.save(head.weights(), model.home / "eagle", fingerprint(model), head.reads, torch.float32)
    write_learned(model.home, model, growth, grown.home, "float32")
    loaded = eagle.load(grown.home / "eagle", grown.eval(), packed=False)
    assert loaded.reads == (1, 4)  # two layers were added behind the first
    assert loaded.fc.weight.shape == (width, 2 * width)
    with torch.inference_mode():
        answers = []
        for target, read in ((model, head), (grown, loaded)):
            x = target.embedded(tokens, torch.arange(12)[None])
            states = [target.train_layers(x, 0, layer) for layer in read.reads]
            answers.append(read.train_forward(torch.cat(states, -1), tokens, 3))
    assert float((answers[0] - answers[1]).abs().max()) < 1e-3
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
    method = {"name": "eagle", "gamma": 3, "depth": "fixed"}
    before, drafted = (Engine(each).generate([3, 4], method, **options) for each in (model, grown))  # type: ignore[arg-type]
    assert drafted.tokens == before.tokens
    assert [r.depth_accepted for r in drafted.rounds] == [r.depth_accepted for r in before.rounds]
