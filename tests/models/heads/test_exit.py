"""Exit layers as models: their forward with a cache in batches, and their files."""

import random
from pathlib import Path

import pytest
import torch
from small_decoder import VOCAB, decoder

from draftwood import ModelError
from draftwood.models.base import Batch, Segment
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.heads import exit as exits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_cached_forward_is_the_training_forward(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of several requests too, of different lengths."""
    target = decoder(3, dtype)
    exits.save(exits.ExitLayer.of(target, 2).weights(), tmp_path, fingerprint(target), 2, dtype)
    layer, plain = exits.load(tmp_path, target), exits.load(tmp_path, target, packed=False)
    rng = random.Random(4)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (3, 9, 6)]
    cache = layer.new_cache()
    states, expected, segments = [], [], []
    with torch.no_grad():
        for text in texts:
            n = len(text)
            x = target.train_layers(target.embedded(torch.tensor([text]), torch.arange(n)[None]), 0, 2)
            states.append(x[0])
            expected.append(plain.train_forward(x)[0])
            segments.append(Segment.causal(cache.lend(n), 0, n))
        places = [place for text in texts for place in range(len(text))]
        batch = Batch.of(layer, [0] * len(places), places, segments, hidden=torch.cat(states))
        found = layer.forward(batch, cache)
    close = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found, torch.cat(expected), atol=close, rtol=close)


def test_files_give_the_same_exit_back(tmp_path: Path) -> None:
    target = decoder(3)
    made = exits.ExitLayer.of(target, 2)
    exits.save(made.weights(), tmp_path, made.target, 2, torch.float32, trained={"steps": 7})
    again = exits.load(tmp_path, target, packed=False)
    assert again.layers == 2 and again.n_layers == 1 and again.target == made.target
    for name, part in made.weights().items():
        assert torch.equal(again.weights()[name], part)
    with pytest.raises(ModelError, match="packed cannot be saved"):
        exits.load(tmp_path, target).weights()
    assert {path.name for path in tmp_path.iterdir()} == {"exit.safetensors"}
    assert exits.share(12) == 1 and exits.share(32) == 3 and exits.share(80) == 8 and exits.share(2) == 1
