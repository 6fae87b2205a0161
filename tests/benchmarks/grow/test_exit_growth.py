"""A grown exit drafts what the exit drafted, behind the layer that says what its layer said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from grown_decoder import grow

import draftwood
from benchmarks.grow.checkpoint import grow_checkpoint, grow_exit, grown_layers
from benchmarks.grow.growth import Growth
from draftwood import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.checkpoint import load
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads import exit as exits


def target() -> Decoder:
    torch.manual_seed(2)
    model = Decoder(DecoderConfig(23, 16, 24, 4, 2, 1, 8, 64)).double()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval().requires_grad_(False)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("layers", "behind", "width", "depth"), [(1, 1, 40, 1), (2, 2, 32, 1), (3, 5, 40, 1), (2, 2, 40, 0)]
)
def test_the_grown_exit_says_the_same(layers: int, behind: int, width: int, depth: int, tmp_path: Path) -> None:
    """Two layers are added behind the second; a width that is no multiple has silent channels."""
    small = target()
    plan = Growth.plan(small, 6, width, keep_first=2)
    large = grow(small, 6, width, keep_first=2)
    exit = exits.ExitLayer.of(small, layers, depth).double()
    with torch.no_grad():
        for parameter in exit.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    assert grown_layers(layers, plan) == behind
    for name, weights, model, after in (
        ("small", exit.weights(), small, layers),
        ("large", grow_exit(exit, plan, torch.float64), large, behind),
    ):
        exits.save(weights, tmp_path / name, fingerprint(model), after, torch.float64)
    engines = {"small": Engine(small), "large": Engine(large)}
    for seed in range(2):
        results = [
            engine.generate(
                [1 + seed, 2, 3], {"name": "eesd", "exit": str(tmp_path / name)}, max_new_tokens=24, seed=seed
            )
            for name, engine in engines.items()
        ]
        drafts = [[(round_.forest_token, round_.accepted) for round_ in result.rounds] for result in results]
        assert drafts[0] == drafts[1] and results[0].tokens == results[1].tokens
        assert 0 < results[0].metrics.accepted < results[0].metrics.drafted


def test_growing_the_embedded_target_grows_its_exit(tmp_path: Path) -> None:
    out = tmp_path / "grown"
    grow_checkpoint(EMBEDDED / "target", out, "embedded:target", {"layers": 14, "width": 384}, "bfloat16")
    before, grown = (artifact.load(artifact.companion(home, "exit"), "exit") for home in (EMBEDDED / "target", out))
    assert grown.settings == before.settings
    assert grown.about["grown_from"] == before.models["target"] != grown.models["target"]
    model = load(out, "bfloat16")
    assert exits.find(model, None).layers == before.settings["layers"]
    options = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
    result = draftwood.load(out).generate("Story: Mara was", "eesd", **options)
    same = draftwood.load(EMBEDDED / "target").generate("Story: Mara was", "eesd", **options)
    assert result.tokens == same.tokens
    assert abs(result.metrics.rounds - same.metrics.rounds) <= 2
    with pytest.raises(draftwood.ModelError, match="was trained for another target"):
        exits.load(EMBEDDED / "target" / "exit", model)
