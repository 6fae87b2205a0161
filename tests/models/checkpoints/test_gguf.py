"""GGUF files compute and say what the checkpoints do that they were made from."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from checkpoint_files import llama_like, ours
from checkpoint_files import write as write_llama
from conftest import Command
from family_models import PROMPT, chain
from family_models import write as write_family
from family_variants import LONG_ROPE, YARN
from native_library import needs_native
from safetensors.torch import load_file, save_file

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints import checkpoint, gguf_file, gguf_parts
from draftwood.models.text.tokenizer import Tokenizer

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
LLAMA_4 = {"attention_chunk_size": 8192, "no_rope_layers": None, "floor_scale": 8192, "attn_scale": 0.1}
ONE_MSCALE = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.9}
MSCALES: dict[str, Any] = {
    **dict.fromkeys(("short_mscale", "long_mscale"), 1.25),
    "original_max_position_embeddings": 64,
}
SCALE = {"query_pre_attn_scalar": 12}  # the width of a head: the format has no word for another
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # changes to the variant, metadata
    "qwen2": ({}, {}),
    "qwen3": ({}, {}),
    "llama_yarn": ({}, {}),
    "ministral3": ({}, {}),
    "phi3": ({}, {}),
    "phi3_long": ({}, {}),
    "phi3_partial": ({}, {}),
    "gemma": ({}, {}),
    "gemma2": (SCALE, {}),
    "gemma3": (SCALE, {"attention.sliding_window_pattern": 2}),
    "gemma3_scaled": (SCALE, {"attention.sliding_window_pattern": 3}),
    **{
        name: ({}, {})
        for name in ("seed_oss", "arcee", "granite", "olmo", "olmo2", "ernie4_5", "glm", "glm4", "cohere")
    },
    **{name: ({}, {}) for name in ("phi", "gpt_neox", "gpt_neox_serial", "stablelm", "nemotron", "gpt2")},
    **{name: ({}, {}) for name in ("cohere_norms", "stablelm_norms", "falcon_new", "falcon_one_norm", "gpt_bigcode")},
    "falcon": ({"bias": False}, {}),
    "smollm3": ({"num_hidden_layers": 4, "no_rope_layer_interval": 4}, {}),
    "hunyuan": ({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, {}),
    "olmo3": ({}, {"attention.sliding_window_pattern": 2}),
    "exaone4": ({}, {"attention.sliding_window_pattern": 2}),
    "cohere2": ({}, {"attention.sliding_window_pattern": 2}),
    "starcoder2": ({"sliding_window": None}, {}),
    **{name: ({}, {}) for name in ("qwen3_moe", "granitemoe", "glm4_moe", "ernie4_5_moe")},
    "qwen2_moe": ({"norm_topk_prob": False, "decoder_sparse_step": 1}, {}),
    "mixtral": ({"sliding_window": None}, {}),
    "olmoe": ({"norm_topk_prob": False}, {}),
    "gpt_oss": ({"swiglu_limit": 7.0}, {}),
    **{name: ({}, {}) for name in ("bloom", "bloom_heads", "mpt", "minimax_m2", "phimoe")},
    "mpt_heads": ({"attn_config": {"clip_qkv": 0.8}}, {}),
    "phimoe_long": (
        {
            "router_jitter_noise": 0.01,
            "rope_parameters": {**LONG_ROPE, **MSCALES},
        },
        {},
    ),
    "apertus": ({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, {}),
    "llama4": (LLAMA_4, {}),
    "dots1": ({"sliding_window": None}, {}),
    "hunyuan_moe": ({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, {}),
    **{name: ({}, {}) for name in ("deepseek_v2", "deepseek_v3", "youtu")},
    "deepseek_v2_lite": ({"rope_parameters": ONE_MSCALE, "n_group": 1, "topk_group": 1}, {}),
    "deepseek_v3_yarn": ({"rope_parameters": ONE_MSCALE}, {}),
    **{name: ({}, {}) for name in ("gemma3n", "gemma4", "gemma4_per_layer", "gemma4_experts")},
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "max_position_embeddings": 32}


def logits(place: Path, **options: Any) -> torch.Tensor:
    return ours(checkpoint.load(place, **options), chain(PROMPT))


def same(directory: Path, file: Path, **options: Any) -> None:
    """Equal logits, to rounding."""
    expected = logits(directory, **options)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits(file, **options), expected, atol=1e-5, rtol=1e-5)


# families


@pytest.mark.parametrize("name", LLAMAS)
def test_llama(name: str, tmp_path: Path) -> None:
    write_llama(tmp_path, **LLAMAS[name])
    same(tmp_path, gguf_files.write(tmp_path, tmp_path / "x.gguf"))


@pytest.mark.some(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    changes, metadata = FAMILIES[name]
    write_family(tmp_path, name, **changes)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", **metadata)
    assert checkpoint.load(file).config == checkpoint.load(tmp_path).config
    same(tmp_path, file)


def test_internlm2(tmp_path: Path) -> None:
    """Llama under a name of its own."""
    write_llama(tmp_path)
    same(tmp_path, gguf_files.write(tmp_path, tmp_path / "x.gguf", arch="internlm2"))


def test_older_files_of_deepseek(tmp_path: Path) -> None:
    """Keys and values of all heads are made by one matrix, and no key says how experts are scored."""
    write_family(tmp_path, "deepseek_v3", attention_bias=False)
    stored = load_file(tmp_path / "model.safetensors")
    whole = {
        f"blk.{i}.attn_kv_b.weight": stored[f"model.layers.{i}.self_attn.kv_b_proj.weight"].numpy() for i in range(3)
    }
    own: dict[str, Any] = {"attention.key_length": 12, "attention.value_length": 12, "expert_gating_func": None}
    own |= dict.fromkeys(("attention.key_length_mla", "attention.value_length_mla"))
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", more=whole, without=("attn_k_b", "attn_v_b"), **own)
    assert checkpoint.load(file).config == checkpoint.load(tmp_path).config
    same(tmp_path, file)


@needs_native
def test_keys_of_latents_are_not_rounded_again(tmp_path: Path) -> None:
    """In a file of 8 bits they become float32, since their blocks go along outputs; values keep their bits."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32}
    write_family(tmp_path, "youtu", **sizes, v_head_dim=32)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices("Q8_0"))
    model = checkpoint.load(file, "auto", kv_dtype="float32")
    assert model.layers[0].mixer.kv_up.kind == "float32" and model.layers[0].mixer.q_up.kind == "q8_0"
    exact = logits(file)
    assert (ours(model, chain(PROMPT)) - exact).norm() < 0.06 * (exact - exact.mean()).norm()


@pytest.mark.parametrize(("name", "arch"), [("qwen2", "qwen2vl"), ("qwen3", "qwen3vl"), ("qwen3_moe", "qwen3vlmoe")])
def test_text_parts_of_models_that_read_images(name: str, arch: str, tmp_path: Path) -> None:
    write_family(tmp_path, name)
    sections: Any = [2, 1, 1, 0]
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", arch=arch, **{"rope.dimension_sections": sections})
    assert checkpoint.load(file).config == checkpoint.load(tmp_path).config
    same(tmp_path, file)


# types of tensors


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16")])
def test_short_floats(kind: str, dtype: str, tmp_path: Path) -> None:
    write_llama(tmp_path).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices(kind))
    assert torch.equal(logits(file), logits(tmp_path))
    auto = torch.float32 if kind == "F16" else torch.bfloat16
    assert checkpoint.load(file, "auto", backend="pytorch").dtype == auto
    assert checkpoint.load(tmp_path, "auto").dtype == auto


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_quantised_rows_of_llama_go_where_they_belong(kind: str, tmp_path: Path) -> None:
    """Each row is quantised on its own, so the rows of q and k may be moved before or after."""
    write_llama(tmp_path, intermediate_size=64, num_hidden_layers=1)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices(kind))
    assert checkpoint.load(file, "auto", backend="pytorch").dtype == torch.bfloat16
    path = tmp_path / "model.safetensors"
    rounded = {name: gguf_files.dequantised(*stored(kind, t)) for name, t in load_file(path).items()}
    save_file(rounded, path)
    for options in ({}, {"quantize": "int8"}, {"dtype": "bfloat16"}):
        assert torch.equal(logits(file, **options), logits(tmp_path, **options))


def stored(kind: str, tensor: torch.Tensor) -> tuple[np.ndarray, str]:
    return gguf_files.matrices(kind)("", tensor.numpy())


@pytest.mark.parametrize("kind", gguf_file.QUANTISED_TYPES)
def test_every_quantised_type(kind: str, tmp_path: Path) -> None:
    """Random blocks in the file, and what the library makes of them in the directory."""
    write_family(tmp_path, "qwen2", **WIDE)
    path, made = tmp_path / "model.safetensors", {}

    def random_blocks(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        if array.ndim == 1:
            return array, "F32"
        data = gguf_files.blocks(kind, *array.shape, seed=len(made))
        made[array.tobytes()] = gguf_files.dequantised(data, kind)
        return data, kind

    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", random_blocks)
    save_file({name: made.get(t.numpy().tobytes(), t) for name, t in load_file(path).items()}, path)
    assert torch.equal(logits(file), logits(tmp_path))
    assert checkpoint.dequantised_from(file) == kind and checkpoint.dequantised_from(tmp_path) is None


def test_rows_are_dequantised_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices("F16"))
    expected = logits(file)
    monkeypatch.setattr("draftwood.models.checkpoints.gguf_weights.CHUNK_WEIGHTS", 200)  # 6 rows of 32
    assert torch.equal(logits(file), expected)


# the embedded pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded pair in one type each."""
    place = tmp_path_factory.mktemp("pair")
    words = gguf_files.byte_level(Tokenizer.load(EMBEDDED / "target"), "smollm", eos_token_id=0)
    kinds = {"target": "BF16", "draft": "BF16", "small": "Q8_0"}
    return {
        role: gguf_files.write(
            EMBEDDED / role.replace("small", "target"), place / f"{role}.gguf", gguf_files.matrices(kind), words
        )
        for role, kind in kinds.items()
    }


GREEDY: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 24}


def test_the_pair_writes_the_same_texts(pair: dict[str, Path]) -> None:
    own = draftwood.load(EMBEDDED / "target", device="cpu")
    mine = draftwood.load(pair["target"], str(pair["draft"]), device="cpu")
    mixed = draftwood.load(EMBEDDED / "target", pair["draft"], device="cpu")
    assert mine.end_tokens == own.end_tokens and "dequantised" not in mine.names
    for prompt in ("Story: In Corfe there lived", "Question: What is 17 + 25?\nAnswer:"):
        expected = own.generate(prompt, "autoregressive", **GREEDY)
        for engine, method in (
            (mine, "autoregressive"),
            (mine, {"name": "mcsd", "tree": [3, 2]}),
            (mixed, "speculative"),
        ):
            result = engine.generate(prompt, method, **GREEDY)
            assert (result.tokens, result.text) == (expected.tokens, expected.text)


def test_quantised_files_say_so(
    pair: dict[str, Path], command: Command, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, "draftwood"):
        engine = draftwood.load(pair["small"], quantize="int8", device="cpu")
    assert f"{pair['small']}: weights of type Q8_0 are held as int8" in caplog.messages
    assert engine.names["dequantised"] == {"target": "Q8_0", "draft": []}
    flags = ("--target", pair["small"], "--draft", pair["draft"], "--max-new-tokens", 4)
    shown = command("generate", "Once", *flags)
    assert shown.code == 0 and "computed in q8_0 · keys and values in bfloat16" in shown.err


@needs_native
def test_a_draft_with_another_tokenizer_is_told_of_like_any_other(pair: dict[str, Path], tmp_path: Path) -> None:
    """That it is computed in the bits of its file, and how many bytes its weights are."""
    write_llama(tmp_path, vocab_size=llama_like().get_vocab_size())
    llama_like().save(str(tmp_path / "tokenizer.json"))
    both, target, draft = (
        draftwood.load(one, drafts, device="cpu")
        for one, drafts in ((tmp_path, pair["small"]), (tmp_path, []), (pair["small"], []))
    )
    assert both.names["shared_vocabulary"] != [None] and "dequantised" not in both.names
    assert both.weight_bytes == target.weight_bytes + draft.weight_bytes


def test_learned_files_are_looked_for_beside_the_file(pair: dict[str, Path]) -> None:
    assert checkpoint.load(pair["target"]).home == pair["target"].parent


def test_the_missing_package_is_one_sentence(pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_parts._cached.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigurationError, match=r"reading GGUF files needs the extra draftwood\[gguf\]"):
        draftwood.load(pair["target"])
