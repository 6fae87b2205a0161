"""Medusa heads as they are published: what they say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import family_models
import pytest
import torch
from safetensors.torch import save_file
from small_decoder import VOCAB, decoder

from draftwood import Engine, ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads import medusa
from draftwood.models.heads.medusa import Heads

WIDTH = 24
LARGE_STATES = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


def write(
    directory: Path, heads: int = 2, vocabulary: int = VOCAB, more: str | None = None, **changes: Any
) -> dict[str, torch.Tensor]:
    """Heads of random weights in a directory; their tensors."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"0.linear.weight": (WIDTH, WIDTH), "0.linear.bias": (WIDTH,), "1.weight": (vocabulary, WIDTH)}
    tensors = {
        f"{k}.{name}": torch.randn(shape, generator=generator) for k in range(heads) for name, shape in shapes.items()
    }
    tensors |= {} if more is None else {more: torch.ones(3)}
    directory.mkdir(exist_ok=True)
    config = {"medusa_num_heads": heads, "medusa_num_layers": 1, **changes}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "medusa_lm_head.safetensors")
    return tensors


def test_published_heads_say_what_their_format_says(tmp_path: Path) -> None:
    """Head k: a residual block x + SiLU(W x + b), then its own output layer; config.json may say fewer."""
    tensors = write(tmp_path, medusa_num_heads=1)
    heads = medusa.load(tmp_path, decoder(3), packed=False)
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        logits = heads.train_forward(x)
    for k in range(2):
        inner = x @ tensors[f"{k}.0.linear.weight"].T + tensors[f"{k}.0.linear.bias"]
        expected = (x + inner * inner.sigmoid()) @ tensors[f"{k}.1.weight"].T
        torch.testing.assert_close(logits[k], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"medusa_num_layers": 2}, "has 2 heads of 2 blocks, but heads of one block each are read"),
        ({"medusa_num_heads": "two"}, "has 'two' heads of 1 blocks"),
        ({"medusa_num_heads": 3}, r"2.0.linear.weight is missing, but \[24, 24\] fits this target; give heads of"),
        ({"more": "1.0.bias"}, "has a tensor 1.0.bias beside its 2 heads, whose use is not known"),
        ({"vocabulary": 40}, r"0.1.weight is \[40, 24\], but \[19, 24\] fits this target; give heads of this target"),
    ],
)
def test_those_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write(tmp_path, **changes)
    with pytest.raises(ModelError, match=sentence) as caught:
        medusa.load(tmp_path, decoder(3))
    assert "\n" not in str(caught.value)


def test_trees_of_recurrent_targets_stay_within_the_memory_of_their_states(tmp_path: Path) -> None:
    """Of states as large as Qwen3.5's what one start had kept took the room of the next one's, and more: it crashed."""
    family_models.write(tmp_path / "target", "qwen3_5", **LARGE_STATES)
    plain = checkpoint.load(tmp_path / "target", packed=False)
    heads = Heads.of(plain)
    medusa.save(heads.weights(), tmp_path / "heads", heads.target, torch.float32)
    engine = Engine(checkpoint.load(tmp_path / "target"))
    method = {"name": "medusa", "heads": str(tmp_path / "heads")}
    for start in range(4):
        prompt = [(7 * start + i * i) % 96 for i in range(14)]
        texts = [
            engine.generate(prompt, each, {"temperature": 0}, max_new_tokens=20, ignore_eos=True).tokens
            for each in ("autoregressive", method)
        ]
        assert texts[0] == texts[1]
