"""Exit layers as models: their forward with a cache in padded batches, and their files."""

import random
from pathlib import Path

import pytest
import torch
from test_session import VOCAB, decoder

from draftwood import ModelError
from draftwood.models import exit as exits
from draftwood.models.artifact import fingerprint
from draftwood.models.base import Batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_cached_forward_is_the_training_forward(dtype: torch.dtype, tmp_path: Path) -> None:
    """In padded batches too, where rows have different lengths."""
    target = decoder(3, dtype)
    exits.save(exits.ExitLayer.of(target, 2).weights(), tmp_path, fingerprint(target), 2, dtype)
    layer, plain = exits.load(tmp_path, target), exits.load(tmp_path, target, packed=False)
    rng = random.Random(4)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (3, 9, 6)]
    cache, width = layer.new_cache(32), 9
    hidden = torch.zeros(3, width, 24, dtype=dtype)
    expected = []
    with torch.no_grad():
        for row, text in enumerate(texts):
            x = target.train_layers(target.embedded(torch.tensor([text]), torch.arange(len(text))[None]), 0, 2)
            hidden[row, : len(text)] = x[0]
            expected.append(plain.train_forward(x)[0])
        cells = torch.tensor([row * width + i for row, text in enumerate(texts) for i in range(len(text))])
        mask = torch.ones(width, width, dtype=torch.bool).tril()[None].expand(3, -1, -1)
        batch = Batch(
            torch.zeros(3, width, dtype=torch.int64),
            torch.arange(width).expand(3, -1),
            torch.arange(width).expand(3, -1),
            slice(0, 3),
            width,
            mask,
            cells,
            hidden=hidden,
            cells=cells,
        )
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
