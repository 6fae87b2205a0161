"""GGUF files of models with recurrent layers compute what the checkpoints do that they were made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from checkpoint_files import ours
from family_models import PROMPT, chain, grow, per_path, write
from hybrid_variants import HYBRID_MIXTURES, HYBRIDS
from safetensors.torch import load_file

from draftwood.core.forest import Forest
from draftwood.errors import ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder_config import DecoderConfig
from draftwood.runtime.session import Session
from draftwood.util import native_library

CHANGES: dict[str, dict[str, Any]] = {name: {} for name in (*HYBRIDS, *HYBRID_MIXTURES)}
CHANGES["qwen3_5_types"] = {"layer_types": None, "full_attention_interval": 3, "attention_bias": False}
CHANGES["falcon_h1_multipliers"] = {"mamba_norm_before_gate": False}  # llama.cpp knows the other order alone
CHANGES["nemotron_h"] = CHANGES["nemotron_h_experts"] = {"time_step_min": 1e-30}
CHANGES["lfm2_moe"] = {"tie_word_embeddings": True}  # the format has no other head there
CHANGES["granite_hybrid_rope"] = {"attention_bias": True}
del CHANGES["nemotron_h_latent"]  # not read from files
del CHANGES["qwen3_next_dense"]  # layers without experts, between others, have no word there


def logits(place: Path, **options: Any) -> torch.Tensor:
    return ours(checkpoint.load(place, **options), chain(PROMPT))


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.3
    torch.testing.assert_close(actual, expected, atol=3e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.some(6)
@pytest.mark.parametrize("backend", ["auto", "pytorch"])
@pytest.mark.parametrize("name", CHANGES)
def test_as_the_checkpoint(name: str, backend: str, tmp_path: Path) -> None:
    model = write(tmp_path, name, **CHANGES[name])
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf")
    expected = logits(tmp_path, backend=backend)
    same(logits(file, backend=backend), expected)
    decoder = checkpoint.load(file, backend=backend)
    session, forest = Session(decoder, decoder.new_cache()), Forest.from_prompt(list(PROMPT))
    ours(decoder, forest, session)
    grow(forest)
    paths = per_path(model, forest)
    torch.testing.assert_close(ours(decoder, forest, session), paths, atol=1e-4 * float(paths.abs().max()), rtol=0)


def test_one_shape(tmp_path: Path) -> None:
    """Where nothing is folded into weights, the file's decoder is the checkpoint's."""
    for name in ("lfm2_bias", "granite_hybrid", "granite_hybrid_rope", "qwen3_next", "granite_hybrid_experts"):
        write(tmp_path, name)
        file = gguf_files.write(tmp_path, tmp_path / "x.gguf")
        assert checkpoint.load(file).config == checkpoint.load(tmp_path).config, name
    write(tmp_path, "qwen3_5")
    told = checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf")).config
    assert tiled(told) != told == tiled(checkpoint.load(tmp_path).config), "value heads in the order of the file"


def tiled(config: DecoderConfig) -> DecoderConfig:
    """The same decoder with its heads of values in the other order."""
    layers = tuple(
        tuple(
            (key, replace(value, tiled=not value.tiled) if key == "recurrent" and value else value)
            for key, value in layer
        )
        for layer in config.layers
    )
    return replace(config, layers=layers)


def test_older_files_of_qwen3_next(tmp_path: Path) -> None:
    """Their products lie as in checkpoints."""
    write(tmp_path, "qwen3_next")
    stored = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    more = {
        name.replace("model.layers.0.linear_attn.in_proj_qkvz", f"blk.{i}.ssm_in"): stored[
            name.replace("0", str(i))
        ].numpy()
        for i in (0, 2)
    }
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", more=more, without=("attn_gate", "attn_qkv"))
    same(logits(file), logits(tmp_path))


def test_experts_of_gate_and_up_together(tmp_path: Path) -> None:
    """As llama.cpp's converter writes them on request."""
    write(tmp_path, "qwen3_5_moe")
    parts: dict[str, np.ndarray] = {}

    def kept(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        parts[name] = array
        return array, "F32"

    gguf_files.write(tmp_path, tmp_path / "x.gguf", kept)
    both = {
        f"blk.{i}.ffn_gate_up_exps.weight": np.concatenate(
            [parts[f"blk.{i}.ffn_{part}_exps.weight"] for part in ("gate", "up")], 1
        )
        for i in range(3)
    }
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", more=both, without=("ffn_gate_exps", "ffn_up_exps"))
    same(logits(file), logits(tmp_path))


def test_layers_behind_the_last_are_left(tmp_path: Path) -> None:
    """Those of multi-token prediction."""
    write(tmp_path, "qwen3_5")
    more = {f"blk.3.{name}.weight": np.ones((4, 32), np.float32) for name in ("attn_q", "nextn.eh_proj")}
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", more=more, block_count=4, nextn_predict_layers=1)
    same(logits(file), logits(tmp_path))


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("qwen3_5", {"ssm.state_size": 0}, "ssm.state_size is 0, but must be a positive whole number"),
        ("qwen3_5", {"ssm.inner_size": 33}, "ssm.inner_size is 33, which is no multiple of ssm.time_step_rank"),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "attention.head_count_kv has 2 values for 3 layers"),
        ("lfm2", {"attention.head_count_kv": [1, 2, 0]}, "differs from layer to layer"),
    ],
)
def test_refused(name: str, metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    with pytest.raises(ModelError, match=message):
        checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf", **metadata))


def test_decays_that_are_none(tmp_path: Path) -> None:
    write(tmp_path, "qwen3_5")

    def positive(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        return (-array if name.endswith("ssm_a") else array), "F32"

    with pytest.raises(ModelError, match=r"tensor blk.0.ssm_a must be negative"):
        checkpoint.load(gguf_files.write(tmp_path, tmp_path / "x.gguf", positive))


WIDE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
OWN_BITS: dict[str, dict[str, Any]] = {
    "qwen3_5": {**WIDE, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "qwen3_next": {**WIDE, **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32)},
    "granite_hybrid": {**WIDE, "shared_intermediate_size": 64, "mamba_expand": 1},
    "lfm2": {**WIDE, "block_auto_adjust_ff_dim": False},
}


@pytest.mark.parametrize("name", OWN_BITS)
def test_in_the_bits_of_the_file(name: str, tmp_path: Path) -> None:
    """Matrices of several types, rows in an order of their own; only activations are rounded once more."""
    write(tmp_path, name, **OWN_BITS[name])
    types = {"attn_qkv": "Q4_0", "ssm_in": "Q4_1", "shortconv.in_proj": "Q5_0"}

    def stored(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        plain = (
            array.ndim == 1
            or ("conv" in name and "proj" not in name)
            or name.endswith((".ssm_a", ".ssm_d", "ssm_norm.weight"))
        )
        kind = next((kind for part, kind in types.items() if part in name), "Q8_0")
        return gguf_files.matrices("F32" if plain else kind)(name, array)

    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", stored)
    decoder, expected = checkpoint.load(file, "auto"), logits(file)
    error = (ours(decoder, chain(PROMPT)) - expected).abs().mean() / expected.std()
    assert error < (0.1 if "next" in name else 0.06)  # some rows choose other experts
    if native_library.unavailable() is None:
        assert decoder.own_bits and error > 1e-5
        assert any("," in kind or "q4" in kind or "q5" in kind for kind in decoder.kinds_of_weights)
