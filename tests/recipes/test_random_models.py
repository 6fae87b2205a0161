"""Files of random models can be read, and their rows stay in proportion."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_files import ours
from family_models import chain

from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.tokenizer import Tokenizer
from recipes.random_models import Hybrid, Mixture, write

SMALL = Mixture(layers=2, width=256, heads=4, kv_heads=2, head_dim=64, experts=6, chosen=2, inner=256, vocabulary=300)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
def test_a_random_mixture(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", kind, SMALL)
    model = checkpoint.load(file, packed=False)
    assert model.config.experts is not None and model.config.experts.count == 6 and model.routed[1] == 1 / 3
    weights = model.layers[1].feed.experts[5].down.weight
    assert abs(float(weights.mean())) < 0.2 * float(weights.std()) and 0.5 < float(weights.std()) * 16 < 2
    tokens = Tokenizer.load(file).encode("the cat and then a dog")
    logits = ours(model, chain(tokens))
    assert 0.1 < float(logits.std()) < 10 and len(tokens) == 20
    torch.testing.assert_close(logits, ours(checkpoint.load(file, backend="pytorch"), chain(tokens)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
def test_a_random_hybrid(kind: str, tmp_path: Path) -> None:
    sizes = {"width": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "inner": 256, "state": 64, "vocabulary": 300}
    file = write(tmp_path / "x.gguf", kind, Hybrid(layers=4, key_heads=2, value_heads=4, **sizes))
    model = checkpoint.load(file)
    assert [model.config.layer(number).attends for number in range(4)] == [False, False, False, True]
    tokens = Tokenizer.load(file).encode("the cat and then a dog")
    logits = ours(model, chain(tokens))
    assert 0.1 < float(logits.std()) < 10 and len(tokens) == 20
    torch.testing.assert_close(logits, ours(checkpoint.load(file, backend="pytorch"), chain(tokens)), atol=1e-4, rtol=0)
