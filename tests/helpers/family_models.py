"""Tiny random models of every family, written by Hugging Face's own code, and what they compute.

Every weight is randomised, biases and norms too; the prompt is longer than the windows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import ours
from family_variants import VARIANTS
from hybrid_variants import HYBRID_MIXTURES, HYBRIDS
from transformers import AutoConfig, AutoModelForCausalLM, Mistral4ForCausalLM

from draftwood.core.forest import TRUNK, Forest
from draftwood.models.checkpoints import checkpoint

ALL = {**VARIANTS, **HYBRIDS, **HYBRID_MIXTURES}
FIRST = {kind: name for name, (kind, _) in reversed(ALL.items())}  # the first variant of each family
USUAL = (  # families that have between them what the others have, for tests that go through many
    *("mistral", "qwen2_windows", "qwen3_bias_windows", "phi3_partial", "gemma2", "gemma3_scaled", "opt", "gpt2"),
    *("olmo2", "granite", "hunyuan", "cohere", "phi", "nemotron", "qwen2_moe", "gpt_oss"),
)
PROMPT = [3, 94, 17, 17, 60, 5, 0, 41, 8, 77, 2, 29]


def reference(name: str, seed: int = 0, **changes: Any) -> Any:
    """A random Hugging Face model whose logits spread.

    Its attention is eager, since the fused one drops Gemma 2's cap; but Falcon's eager one adds its biases twice.
    """
    kind, settings = ALL[name]
    config = AutoConfig.for_model(kind, **{**settings, **changes})
    how = "sdpa" if settings.get("alibi") else "eager"
    kinds = Mistral4ForCausalLM._from_config if kind == "mistral4" else AutoModelForCausalLM.from_config
    return randomised(kinds(config, attn_implementation=how), seed)


def randomised(model: Any, seed: int) -> Any:
    """A model whose every weight is random."""
    model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = parameter.ndim == 1 and key.endswith("weight")
        parameter.copy_(1 + 0.3 * noise if norm else 0.25 * noise)
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(1 + 0.1 * float(torch.randn(1, generator=generator)))
    return model


def write(directory: Path, name: str, seed: int = 0, **changes: Any) -> Any:
    model = reference(name, seed, **changes)
    model.save_pretrained(directory)
    return model


def theirs(model: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def per_path(model: Any, forest: Forest) -> torch.Tensor:
    return torch.stack([theirs(model, forest.sequence(node))[-1] for node in range(len(forest))])


def chain(tokens: list[int]) -> Forest:
    forest = Forest(trunk=[])
    parent = TRUNK
    for token in tokens:
        parent = forest.add(parent, token)
    return forest


def grow(forest: Forest) -> int:
    """Branch twice at the root and once below; the leaf on the later branch, so that its slots are not in order."""
    a, b = forest.propose(forest.roots[0], [11, 12], None)
    (c,) = forest.propose(b, [21], None)
    forest.propose(a, [21, 22], None)
    (d,) = forest.propose(c, [31], None)
    return d


def prompt_logits(directory: Path) -> torch.Tensor:
    return ours(checkpoint.load(directory), chain(PROMPT))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.3  # logits of a size at which a difference shows
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def mostly_slow(names: Iterable[str], usual: Container[str] = USUAL) -> list[Any]:
    """Names as parameters of a test, slow but for a few."""
    return [pytest.param(name, marks=() if name in usual else pytest.mark.slow) for name in names]
