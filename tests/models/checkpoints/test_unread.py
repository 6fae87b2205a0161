"""Rare keys and tensors of checkpoints are read as transformers reads them, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_files
import gguf_files
import numpy as np
import pytest
import torch
from checkpoint_files import edit_json
from eagle_heads import config as eagle_config
from eagle_heads import write as write_eagle
from family_models import FIRST, PROMPT, chain, close, prompt_logits, theirs, write
from family_variants import FULL, SLIDING
from safetensors.torch import load_file, save_file
from small_decoder import decoder
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from draftwood.errors import DraftwoodError, ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.parameters import ParameterReader
from draftwood.models.heads import eagle

LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA_3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LAYERS = {FULL: {"rope_type": "default", "rope_theta": 9.0}, SLIDING: {"rope_type": "default", "rope_theta": 5.0}}


def refused(place: Path, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        checkpoint.load(place)
    assert str(place) in str(caught.value) and "\n" not in str(caught.value)


def transformers_logits(directory: Path) -> torch.Tensor:
    """The model that transformers makes of a directory, whatever of it it does not know."""
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        return theirs(model.eval(), PROMPT)


# keys

KEYS: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"is_causal": False}, "is_causal False is not supported") for name in FIRST.values()),
    ("mistral", {"rope_scaling": LINEAR}, "rope_parameters and rope_scaling differ: rope_type is 'default' in the"),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_parameters and rope_scaling differ"),
    ("gemma2", {"rope_parameters": LINEAR, "rope_scaling": {**LINEAR, "factor": 3.0}}, "factor is 2.0 .* 3.0 in the"),
    ("gemma3", {"rope_scaling": LINEAR}, "rope_parameters and rope_scaling differ"),
    ("qwen3", {"rope_parameters": LAYERS}, "has settings of its own for full_attention"),
    ("phi3", {"rope_parameters": LINEAR}, "rope_type 'linear' is not supported for this family; only 'default'"),
    ("gemma", {"layer_types": [SLIDING, FULL, FULL]}, "layer_types is .* this family has full_attention alone"),
    ("gpt2", {"num_attention_heads": 2}, "n_head is 4, but num_attention_heads is 2; keep the right one"),
    ("gpt2", {"num_hidden_layers": 2}, "n_layer is 3, but num_hidden_layers is 2"),
    (
        "mistral",
        {"quantization_config": {"load_in_4bit": True, "load_in_8bit": False}},
        "quantised by None are not read",
    ),
]


@pytest.mark.some(30)
@pytest.mark.parametrize(("name", "changes", "sentence"), KEYS)
def test_keys_that_would_change_the_logits_are_refused(
    name: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    write(tmp_path, name)
    edit_json(tmp_path / "config.json", **changes)
    refused(tmp_path, sentence)


READ: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("mistral", (), {"rope_parameters": {**LINEAR, "rope_theta": 1e4}, "rope_scaling": LINEAR, "rope_theta": 1e4}),
    ("mistral", (), {"layer_types": [SLIDING, FULL, SLIDING]}),
    ("qwen2", ("rope_parameters",), {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 50.0}),
    ("gpt2", ("n_head", "n_layer"), {"num_attention_heads": 2, "num_hidden_layers": 3}),
]


@pytest.mark.parametrize(("name", "dropped", "changes"), READ)
def test_other_spellings_say_what_they_say_to_transformers(
    name: str, dropped: tuple[str, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, name)
    before = prompt_logits(tmp_path)
    edit_json(tmp_path / "config.json", dropped, **changes)
    close(prompt_logits(tmp_path), transformers_logits(tmp_path))
    assert (prompt_logits(tmp_path) - before).abs().max() > 1e-3


def test_eagle_heads_are_read_by_the_same_rules(tmp_path: Path) -> None:
    raw = eagle_config()
    raw["transformer_layer_config"] |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    write_eagle(tmp_path, raw)
    eagle.load(tmp_path, decoder(3))
    for changes, sentence in (({"rope_scaling": LINEAR}, "rope_scaling differ"), ({"is_causal": False}, "is_causal")):
        changed = {**raw, "transformer_layer_config": {**raw["transformer_layer_config"], **changes}}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=sentence):
            eagle.load(tmp_path, decoder(3))


def test_a_quantization_that_is_off_is_none(tmp_path: Path) -> None:
    write(tmp_path, "mistral")
    before = prompt_logits(tmp_path)
    off = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False, "llm_int8_threshold": 6.0}
    edit_json(tmp_path / "config.json", quantization_config=off)
    assert torch.equal(prompt_logits(tmp_path), before)


MORE: dict[str, list[Any]] = {  # keys of any class, tried on all families
    "rope_scaling": [{"type": "linear", "factor": 2.0}, LLAMA_3, {"rope_type": "yarn", "factor": 2.0}],
    "rope_parameters": [LINEAR, {"rope_theta": 50.0}, {**LINEAR, "type": "default"}, LAYERS],
    "layer_types": [[SLIDING, FULL, SLIDING], [FULL] * 3],
    "hidden_act": ["gelu", "relu", "gelu_pytorch_tanh"],
    "hidden_activation": ["gelu", "relu"],
    **{key: [False] for key in ("is_causal", "enable_bias", "layer_norm_elementwise_affine", "scale_attn_weights")},
    **{key: [True] for key in ("attention_bias", "mlp_bias", "use_sliding_window", "is_decoder", "qk_layernorm")},
    **{key: [2] for key in ("sliding_window", "max_window_layers", "sliding_window_pattern", "hidden_size")},
    **{key: [2] for key in ("num_attention_heads", "n_head", "num_hidden_layers", "head_dim", "query_pre_attn_scalar")},
    **{key: [0.5] for key in ("partial_rotary_factor", "final_logit_softcapping", "attn_logit_softcapping")},
    **{key: [33.0] for key in ("rope_theta", "rope_local_base_freq", "logit_scale")},
    **{key: [0.5] for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "attention_dropout")},
    "tie_word_embeddings": [True, False],
}
# transformers cannot run these; a model's first layers are one here
RUNS = {"return_dict", "num_hidden_layers", "output_router_logits", "num_kv_shared_layers"}
# transformers divides loaded weights, has no setter, and adds Falcon's biases twice in its eager attention alone
ODD = {("mamba2", "rescale_prenorm_residual"), ("mamba2", "layer_types"), ("falcon", "alibi")}


def _others(value: Any) -> list[Any]:
    """A value in place of one of a config; chances stay chances."""
    if isinstance(value, float):
        return [value / 2 + 0.25]
    return [not value] if isinstance(value, bool) else [value * 2 + 1] if isinstance(value, int) else []


def _cases(kind: str, raw: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    known = {**AutoConfig.for_model(kind).to_dict(), **raw}
    for key, values in {**{key: _others(value) for key, value in known.items()}, **MORE}.items():
        yield from ((key, value) for value in values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", *(kind for kind in FIRST if kind != "mistral4")])  # AutoModel knows it not
def test_every_key_says_what_it_says_to_transformers_or_is_refused(kind: str, tmp_path: Path) -> None:
    if kind == "llama":
        checkpoint_files.write(tmp_path, num_hidden_layers=3)
    else:
        write(tmp_path, FIRST[kind])
    raw = json.loads((tmp_path / "config.json").read_text())
    if kind == "youtu":  # whose loading by transformers makes the padding token's embedding zero
        raw["pad_token_id"] = None
    tried = 0
    for key, value in _cases(kind, raw):
        if (kind, key) in ODD:
            continue
        (tmp_path / "config.json").write_text(json.dumps({**raw, key: value}))
        try:
            found = prompt_logits(tmp_path)
        except DraftwoodError:
            continue
        try:
            expected = transformers_logits(tmp_path)
        except Exception:  # foreign code refuses in many ways
            assert key in RUNS or "rope" in key, (key, value)  # of GPT-2 and OPT, which have none
            continue
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0, msg=f"{key}={value}")
        tried += 1
    assert tried > 20


# tensors

K = "model.layers.1.self_attn"
TENSORS: list[tuple[str, str, str]] = [
    ("mistral", f"{K}.q_norm.weight", "does not ask for tensor .*q_norm.weight, which the checkpoint has; correct"),
    ("qwen2", f"{K}.sinks", "does not ask for tensor .*sinks"),
    ("qwen3", "model.layers.1.post_feedforward_layernorm.weight", "post_feedforward_layernorm"),
    ("gemma2", "lm_head.bias", r"lm_head.bias, .*; correct config.json \(attention_bias"),
    ("mistral", f"{K}.q_proj.lora_A.weight", "it is of an adapter: merge it into the weights"),
    ("mistral", f"{K}.q_proj.weight_scale", "it is of quantised weights: give the checkpoint"),
    ("phi3", "vision_tower.patch.weight", "vision_tower.patch.weight"),
    ("opt", "model.decoder.project_in.weight", "project_in"),
    ("gpt2", "transformer.h.0.crossattention.c_attn.weight", "crossattention"),
]


@pytest.mark.parametrize(("name", "tensor", "sentence"), TENSORS)
def test_tensors_that_nobody_reads_are_refused(name: str, tensor: str, sentence: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), tensor: torch.ones(4)}, path)
    refused(tmp_path, sentence)


def test_tensors_without_meaning_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path, "mistral")
    before, path = prompt_logits(tmp_path), tmp_path / "model.safetensors"
    names = (
        "model.rotary_emb.inv_freq",
        f"{K}.rotary_emb.inv_freq",
        "model.layers.3.any.weight",
        "v_head.summary.bias",
    )
    save_file({**load_file(path), **{name: torch.ones(4) for name in names}}, path)
    assert torch.equal(prompt_logits(tmp_path), before)


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "mistral")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "holds an adapter beside the model.*merge it")
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "holds an adapter without its model; merge it")


# heads and names


def test_a_head_of_its_own_counts_where_the_config_ties_it(tmp_path: Path) -> None:
    model = checkpoint_files.write(tmp_path)
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    loaded = checkpoint.load(tmp_path, packed=False)
    assert not loaded.config.tie_word_embeddings
    close(checkpoint_files.ours(loaded, chain(PROMPT)), checkpoint_files.theirs(model, PROMPT))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    loaded = checkpoint.load(tmp_path, packed=False)
    assert loaded.head.weight is loaded.embed.weight
    close(checkpoint_files.ours(loaded, chain(PROMPT)), transformers_logits(tmp_path))
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, path)
    close(prompt_logits(tmp_path), transformers_logits(tmp_path))  # of tied matrices one is enough


@pytest.mark.parametrize("name", ["qwen2_windows", "gemma", "gemma3"])
def test_base_models_with_a_tied_head_load(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "whole", name)
    model.get_decoder().save_pretrained(tmp_path)
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    close(prompt_logits(tmp_path), theirs(model, PROMPT))


def test_base_models_without_a_head_are_refused(tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path / "whole").get_decoder().save_pretrained(tmp_path)
    refused(tmp_path, "are of a base model: there is no lm_head.weight.*AutoModelForCausalLM")
    edit_json(tmp_path / "config.json", ("tie_word_embeddings",))
    refused(tmp_path, "are of a base model")


def test_names_of_larger_models_are_told(tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({f"language_model.{name}": part for name, part in load_file(path).items()}, path)
    refused(tmp_path, "calls it language_model.model.embed_tokens.weight.*save the language model alone")


def test_nothing_is_read_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint_files.write(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    monkeypatch.setattr(ParameterReader, "put", lambda *args: pytest.fail("weights are read"))
    for harmed in (
        {**tensors, f"{K}.sinks": torch.ones(4)},
        {n: t for n, t in tensors.items() if n != "lm_head.weight"},
    ):
        save_file(harmed, path)
        with pytest.raises(ModelError, match=r"sinks|lm_head\.weight is missing"):
            checkpoint.load(tmp_path)


# other architectures

ELSEWHERE: list[tuple[dict[str, Any], bool]] = [
    ({"model_type": "diffllama", "architectures": ["DiffLlamaForCausalLM"]}, True),
    ({"model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"]}, True),
    ({"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]}, False),  # takes no positions
    ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, False),
    ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, False),
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, False),
    ({"model_type": "its_own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, False),
    ({}, False),
]


@pytest.mark.parametrize(("raw", "runs"), ELSEWHERE)
def test_transformers_is_named_where_it_can_run_the_model(raw: dict[str, Any], runs: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    refused(tmp_path, "transformers may run it: give hf:" if runs else "; give a model of one of these$")
    with pytest.raises(ModelError) as caught:
        checkpoint.load(tmp_path)
    assert "did you mean" not in str(caught.value)


# GGUF

FILES: list[tuple[str, dict[str, Any], str]] = [
    ("value_length", {"attention.value_length": 16}, "keys of 8 and values of 16 components"),
    ("scale", {"attention.scale": 0.5}, "llama.attention.scale is 0.5, which this architecture's decoder has no part"),
    ("base", {"rope.global.freq_base": 1e6}, "llama.rope.global.freq_base is 1000000.0"),
    ("window", {"attention.sliding_window": 5}, "llama.attention.sliding_window is 5"),
    ("clamp", {"attention.clamp_kqv": 8.0}, "clamp_kqv"),
    ("causal", {"attention.causal": False}, "attention.causal is false"),
    ("widths", {"feed_forward_length": [40, 32]}, r"feed_forward_length differs from layer to layer \(\[40, 32\]\)"),
]


@pytest.mark.parametrize(("metadata", "sentence"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_keys_of_a_file_that_nobody_reads_are_refused(metadata: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path)
    refused(gguf_files.write(tmp_path, tmp_path / "x.gguf", **metadata), sentence)


def test_a_file_must_say_its_epsilon(tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf")
    file.write_bytes(file.read_bytes().replace(b"layer_norm_rms_epsilon", b"layer_norm_rms_epsilom"))
    refused(file, "attention.layer_norm_rms_epsilon is missing; fetch the file")


def test_neutral_keys_and_equal_layers_of_a_file_do_no_harm(tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path)
    same = {"attention.head_count_kv": [2, 2], "feed_forward_length": [40, 40], "rope.scaling.attn_factor": 1.0}
    off = {"attention.sliding_window": 128, "vocab_size": 96, "expert_used_count": 0, "attention.causal": True}
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", **same, **off)
    torch.testing.assert_close(prompt_logits(file), prompt_logits(tmp_path), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_sinks.weight",
        "blk.1.attn_q_norm.weight",
        "blk.1.post_ffw_norm.weight",
        "blk.1.ffn_up.bias",
        "output.bias",
    ],
)
def test_tensors_of_a_file_that_nobody_reads_are_refused(name: str, tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", more={name: np.ones(8, np.float32)})
    refused(file, f"does not ask for tensor {name}, which the checkpoint has; ")
