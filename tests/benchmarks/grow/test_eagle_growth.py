"""A grown target's EAGLE head says what the small one's does."""

from pathlib import Path

import pytest
import torch
from grown_decoder import grow
from small_decoder import VOCAB

from benchmarks.grow.checkpoint import grow_eagle, grown_layers
from benchmarks.grow.growth import Growth
from draftwood import Engine
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads import eagle
from draftwood.models.heads.eagle_head import EagleHead


@pytest.mark.parametrize("words", [None, torch.tensor([0, 1, 3, 4, 8, 9, 11])], ids=["all", "few"])
@pytest.mark.parametrize("width", [48, 60])
def test_a_grown_head_drafts_alike(width: int, words: torch.Tensor | None, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Decoder(DecoderConfig(VOCAB, 24, 40, 4, 4, 2, 6)).double().eval()
    for part in model.parameters():
        if part.dim() > 1:
            torch.nn.init.normal_(part, std=0.25)
    growth = Growth.plan(model, 6, width)
    grown = grow(model, 6, width)
    head = EagleHead.of(model, words=words)
    for where, target, weights, reads in (
        (tmp_path / "small", model, head.weights(), head.reads),
        (tmp_path / "large", grown, None, [grown_layers(layer, growth) for layer in head.reads]),
    ):
        from draftwood.models.checkpoints.artifact import fingerprint

        made = grow_eagle(head.double(), growth, torch.float64) if weights is None else weights
        eagle.save(made, where, fingerprint(target), reads, torch.float64)
    engines = [Engine(t, [eagle.load(tmp_path / name, t)]) for t, name in ((model, "small"), (grown, "large"))]
    method = {"name": "eagle", "gamma": 3}
    small, large = (
        engine.generate([3, 1, 4, 1, 5], method, {"temperature": 0}, max_new_tokens=20) for engine in engines
    )
    assert small.tokens == large.tokens
    assert [made.forest_token for made in small.rounds] == [made.forest_token for made in large.rounds]
