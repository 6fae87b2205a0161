"""A family's config reaches the logits, in both spellings; keys that the decoder cannot follow are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import edit_json, ours
from family_models import PROMPT, chain, close, prompt_logits, theirs, write
from family_variants import FULL, LONG_ROPE, SLIDING
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from draftwood.errors import ModelError, RequestError
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.decoder import Decoder

# controls: what a config or a small tensor says reaches the logits

KNOBS: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"sliding_window": 4}),
    ("mistral", {"sliding_window": None}),
    ("qwen2_windows", {"use_sliding_window": False, "layer_types": None}),
    ("qwen2_windows", {"max_window_layers": 2, "layer_types": None}),
    ("qwen3_bias_windows", {"layer_types": [SLIDING, FULL, FULL]}),
    ("phi3", {"sliding_window": 5}),
    ("phi3_partial", {"rope_parameters": {"rope_theta": 100.0}}),
    ("phi3_partial", {"rope_parameters": {"rope_theta": 200.0, "partial_rotary_factor": 0.5}}),
    ("gemma", {"hidden_act": "relu"}),
    ("gemma2", {"hidden_activation": "silu"}),
    ("gemma4", {"sliding_window": 3}),
    ("gemma4", {"rope_parameters": {FULL: {"rope_type": "proportional", "partial_rotary_factor": 1.0}}}),
    ("gemma4", {"rope_parameters": {SLIDING: {"rope_theta": 10.0}}}),
    *(("gemma3n", {key: value}) for key, value in (("altup_active_idx", 0), ("altup_correct_scale", False))),
    ("gemma3n", {"activation_sparsity_pattern": [0.0] * 6}),
    ("gemma2", {"query_pre_attn_scalar": 12}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": 2.0}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"layer_types": [FULL, SLIDING, FULL]}),
    ("gemma2", {"sliding_window": 6}),
    ("gemma3", {"layer_types": [FULL, FULL, SLIDING]}),
    ("gemma3", {"rope_parameters": {FULL: {"rope_theta": 100.0}}}),
    ("gemma3", {"rope_parameters": {SLIDING: {"rope_theta": 100.0}}}),
    ("gemma3", {"final_logit_softcapping": None}),
    ("opt", {"activation_function": "gelu"}),
    ("gpt2", {"activation_function": "relu"}),
    ("gpt2", {"layer_norm_epsilon": 0.1}),
]


@pytest.mark.some(12)
@pytest.mark.parametrize(("name", "changes"), KNOBS)
def test_each_knob_of_a_config_changes_the_logits(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, name)
    before = prompt_logits(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    assert (prompt_logits(tmp_path) - before).abs().max() > 1e-3


PARTS = {
    "qwen2": ["layers.1.mixer.qkv.bias"],
    "qwen3": ["layers.1.mixer.q_norm", "layers.1.mixer.k_norm"],
    "gemma2": ["norm", *(f"layers.1.{x}" for x in ("mixer.norm", "mixer.post_norm", "feed.norm", "feed.post_norm"))],
    "gemma3": ["layers.2.mixer.q_norm", "layers.2.mixer.k_norm", "layers.2.feed.post_norm"],
    "opt": [
        "position.weight",
        "norm_bias",
        *(f"layers.1.{x}" for x in ("mixer.norm_bias", "feed.norm_bias", "feed.up.bias")),
    ],
    "gpt2": [
        "position.weight",
        "norm_bias",
        *(f"layers.1.{x}.bias" for x in ("mixer.qkv", "mixer.o", "feed.up", "feed.down")),
    ],
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in PARTS.items() for part in parts])
def test_each_small_parameter_changes_the_logits(name: str, part: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    decoder = checkpoint.load(tmp_path, packed=False)
    before = ours(decoder, chain(PROMPT))
    decoder.get_parameter(part).mul_(0.5)
    assert (ours(decoder, chain(PROMPT)) - before).abs().max() > 1e-3


# spellings and defaults

WITHOUT_DEFAULTS = ("kimi_k2",)  # not a name of transformers

USUAL: dict[str, dict[str, Any]] = {  # what published configs have, or must have here
    "glm4_moe": {"head_dim": 128},
}


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in WITHOUT_DEFAULTS])
def test_absent_keys_mean_the_defaults_of_hugging_faces_class(kind: str) -> None:
    family, known = FAMILIES[kind], USUAL.get(kind, {})
    assert family.config({"model_type": kind, **known}) == family.config(AutoConfig.for_model(kind, **known).to_dict())


VERSION_4: dict[str, dict[str, Any]] = {
    "mistral": {"rope_theta": 10000.0},
    "qwen2_windows": {"rope_theta": 10000.0, "layer_types": None},
    "qwen3": {"rope_theta": 10000.0, "rope_scaling": None},
    "phi3_partial": {"rope_theta": 100.0, "partial_rotary_factor": 0.5, "rope_scaling": None},
    "gemma": {"rope_theta": 10000.0, "hidden_act": "gelu"},
    "gemma2": {"rope_theta": 10000.0, "layer_types": None},
    "gemma3_scaled": {
        "rope_theta": 50000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
        "layer_types": None,
    },
}


@pytest.mark.parametrize("name", VERSION_4)
def test_checkpoints_of_transformers_4_load_alike(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, name)
    edit_json(tmp_path / "config.json", ("rope_parameters", "dtype"), **VERSION_4[name], torch_dtype="float32")
    close(prompt_logits(tmp_path), theirs(model, PROMPT))


def test_a_pattern_of_letters_beside_layer_types(tmp_path: Path) -> None:
    """As published with EXAONE 4."""
    write(tmp_path, "exaone4")
    before = prompt_logits(tmp_path)
    edit_json(tmp_path / "config.json", sliding_window_pattern="LLLG")
    assert torch.equal(prompt_logits(tmp_path), before)


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_names_without_the_models_prefix(name: str, prefix: str, tmp_path: Path) -> None:
    """As the first published checkpoints have it, with the attention's old mask buffers beside the weights."""
    model = write(tmp_path, name)
    path = tmp_path / "model.safetensors"
    tensors = {key.removeprefix(prefix): tensor for key, tensor in load_file(path).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 64, 64).tril()}, path)
    close(prompt_logits(tmp_path), theirs(model, PROMPT))


def test_pythia_as_published(tmp_path: Path) -> None:
    """Old keys of the rotation, and buffers of mask and rotation beside the weights."""
    model = write(tmp_path, "gpt_neox")
    path = tmp_path / "model.safetensors"
    layer = "gpt_neox.layers.0.attention"
    buffers = {f"{layer}.bias": torch.ones(1, 1, 64, 64).tril(), f"{layer}.masked_bias": torch.tensor(-1e9)}
    save_file({**load_file(path), **buffers, f"{layer}.rotary_emb.inv_freq": torch.ones(2)}, path)
    edit_json(tmp_path / "config.json", ("rope_parameters",), rotary_pct=0.5, rotary_emb_base=100)
    close(prompt_logits(tmp_path), theirs(model, PROMPT))


# what does not fit is refused

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mistral", {"sliding_window": 0}, "sliding_window is 0, but must be a positive whole number"),
    (
        "mistral",
        {"layer_types": [FULL]},
        "layer_types is .*, but must name full_attention or sliding_attention for each",
    ),
    ("qwen2", {"layer_types": [SLIDING] * 3}, "asks for sliding_attention, but sliding_window is not set"),
    ("qwen2", {"layer_types": [FULL]}, "layer_types is .*, but must name full_attention or sliding_attention for each"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types is .*chunked_attention"),
    ("qwen2", {"max_window_layers": "x"}, "max_window_layers is 'x', but must be a whole number"),
    ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "short_factor is None, but must be a list of pos"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.4}}, "rotates 3 of 8 components"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
    ("gemma3", {"attn_logit_softcapping": 9.0}, "attn_logit_softcapping 9.0 is not supported"),
    ("gemma3", {"rope_parameters": {"rope_theta": 9.0}}, "must hold full_attention and sliding_attention"),
    ("gemma3", {"rope_parameters": {SLIDING: {"rope_type": "linear"}}}, "rope_type 'linear' is not supported"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi False is not supported for this family; only True"),
    ("bitnet", {"quantization_config": {"quant_method": "bitnet"}}, "asks for ternary weights"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_.* True is not supported"),
    ("apertus", {"hidden_act": "silu"}, "hidden_act 'silu' is not supported"),
    ("phimoe", {"rope_parameters": LONG_ROPE}, "short_mscale is missing"),
    ("falcon_new", {"parallel_attn": False}, "parallel_attn False is not supported"),
    ("internlm3", {"mlp_bias": False}, "mlp_bias False is not supported for this family; only True"),
    ("gpt_neo", {"attention_types": [[["global", "flat"], 1]]}, "attention_types is .* global or local for each of 3"),
    ("gptj", {"rotary_dim": 16}, "rotary_dim is 16, but models have at most 8"),
    ("stablelm", {"head_dim": 4}, "head_dim 4 is not supported for this family; only 8"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported"),
    ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim 16 is not supported .*; only 32"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not supported"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights False is not supported"),
    ("gpt2", {"activation_function": "gelu_fast"}, "activation 'gelu_fast' is not supported"),
    ("gemma3n", {"altup_active_idx": 3}, "altup_active_idx is 3, but must be a whole number from 0 to 2"),
    ("gemma3n", {"intermediate_size": [40, 24]}, "intermediate_size is .* whole number, or 6 of them"),
    ("gemma3n", {"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern is .* must have 6 numbers"),
    ("gemma3n", {"activation_sparsity_pattern": [1.0] * 6}, "must have numbers from 0 to below 1"),
    ("gemma4_experts", {"top_k_experts": None}, "enable_moe_block is true; num_experts, top_k_experts and moe_"),
    ("gemma4_per_layer", {"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, but before the last layers"),
    ("gemma4_per_layer", {"vocab_size_per_layer_input": 90}, "vocab_size_per_layer_input 90 is not .*; only 96"),
    ("gemma2", {"final_logit_softcapping": -1}, "final_logit_softcapping is -1, but must be a positive number"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), REFUSED)
def test_what_the_decoder_cannot_do_is_refused(
    name: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    write(tmp_path, name)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelError, match=sentence) as caught:
        checkpoint.load(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value) and "\n" not in str(caught.value)


def test_biases_that_a_config_forgets_are_not_dropped_silently(tmp_path: Path) -> None:
    write(tmp_path, "opt")
    edit_json(tmp_path / "config.json", enable_bias=False)
    with pytest.raises(ModelError, match=r"does not ask for tensor model\.decoder\.layers\.0\.fc1\.bias"):
        checkpoint.load(tmp_path)


def test_only_what_llama_can_say_is_saved_as_llama(tmp_path: Path) -> None:
    write(tmp_path / "limited", "mistral")
    with pytest.raises(ModelError, match="the Llama family has no word for this model's window; it cannot be saved"):
        saving.save(checkpoint.load(tmp_path / "limited", packed=False), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write(tmp_path / "source", "mistral_unlimited")
    decoder = checkpoint.load(tmp_path / "source", packed=False)
    config = decoder.config
    plain = Decoder(type(config)(**{**vars(config), "window": 0})).requires_grad_(False)
    plain.load_state_dict(decoder.state_dict())
    saving.save(plain, tmp_path / "out")
    assert torch.equal(prompt_logits(tmp_path / "out"), prompt_logits(tmp_path / "source"))


def test_fewer_tokens_than_the_model_was_made_for(tmp_path: Path) -> None:
    """LongRoPE takes the short factors then, as transformers does for short texts; other scalings stay as they are."""
    model = write(tmp_path, "phi3_long")
    short, whole = checkpoint.load(tmp_path, max_model_len=8), checkpoint.load(tmp_path)
    assert (short.context, whole.context) == (8, 64) and fingerprint(short) == fingerprint(whole)
    with torch.inference_mode():
        close(ours(short, chain(PROMPT[:8])), theirs(model, PROMPT[:8]))
    assert (ours(short, chain(PROMPT[:8])) - ours(whole, chain(PROMPT[:8]))).abs().max() > 1e-2
    with pytest.raises(RequestError, match="beyond the target model's context of 8 tokens"):
        ours(short, chain(PROMPT[:9]))
    write(tmp_path / "yarn", "llama_yarn")
    short, whole = checkpoint.load(tmp_path / "yarn", max_model_len=12), checkpoint.load(tmp_path / "yarn")
    assert torch.equal(ours(short, chain(PROMPT)), ours(whole, chain(PROMPT)))
