"""GGUF files compute and say what the checkpoints do that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from checkpoints import ours
from checkpoints import write as write_llama
from family_models import PROMPT, chain
from family_models import write as write_family

import draftwood
from draftwood.loading import EMBEDDED
from draftwood.models import checkpoint, gguf
from draftwood.models.gguf_weights import Weights
from draftwood.models.tokenizer import Tokenizer

ROPE: dict[str, Any] = {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LLAMAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "head": {"head_dim": 12, "num_key_value_heads": 1},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}},
    "llama3": {"rope_parameters": ROPE},
}
SCALE = {"query_pre_attn_scalar": 12}  # the width of a head: the format has no word for another
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # changes to the variant, metadata
    "qwen2": ({}, {}),
    "qwen3": ({}, {}),
    "phi3": ({}, {}),
    "phi3_partial": ({}, {}),
    "gemma": ({}, {}),
    "gemma2": (SCALE, {}),
    "gemma3": (SCALE, {"attention.sliding_window_pattern": 2}),
    "gemma3_scaled": (SCALE, {"attention.sliding_window_pattern": 3}),
}


def same(directory: Path, file: Path) -> None:
    """Equal shapes and, to rounding, logits."""
    theirs, mine = checkpoint.load(directory), checkpoint.load(file)
    if theirs.config.rope_scaling.kind != "llama3":
        assert mine.config == theirs.config
    expected = ours(theirs, chain(PROMPT))
    assert expected.std() > 0.3
    torch.testing.assert_close(ours(mine, chain(PROMPT)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", LLAMAS)
def test_llama(name: str, tmp_path: Path) -> None:
    write_llama(tmp_path, **LLAMAS[name])
    same(tmp_path, gguf_files.write(tmp_path, tmp_path / "x.gguf"))


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    changes, metadata = FAMILIES[name]
    write_family(tmp_path, name, **changes)
    same(tmp_path, gguf_files.write(tmp_path, tmp_path / "x.gguf", **metadata))
