"""The text part of checkpoints that also read images: what Hugging Face's own multimodal classes make of text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import VOCAB, edit_json, llama_like, ours
from family_models import PROMPT, chain, close, grow, per_path
from family_variants import FULL, SHAPE, SLIDING, YARN
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

import draftwood
from draftwood.core.forest import Forest
from draftwood.errors import ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.families.wrappers import WRAPPERS

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 28,
    "patch_size": 14,
}
TOWER = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 24, "out_hidden_size": 32}
MROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # type, text, vision, the rest
    "gemma3": (
        "gemma3",
        {**SHAPE, "head_dim": 12, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]},
        {**VISION, "model_type": "siglip_vision_model"},
        {"mm_tokens_per_image": 4},
    ),
    "mistral3": (
        "mistral3",
        {**SHAPE, "model_type": "mistral", "head_dim": 12, "sliding_window": None},
        {**VISION, "model_type": "pixtral", "head_dim": 8},
        {"tie_word_embeddings": False},
    ),
    "ministral3": (
        "mistral3",
        {
            **SHAPE,
            "model_type": "ministral3",
            "head_dim": 8,
            "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        {**VISION, "model_type": "pixtral", "head_dim": 8},
        {},
    ),
    "qwen2_vl": ("qwen2_vl", {**SHAPE, "rope_parameters": MROPE}, {**TOWER, "embed_dim": 32}, {}),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {**SHAPE, "rope_parameters": MROPE, "tie_word_embeddings": True},
        {**TOWER, "fullatt_block_indexes": [0]},
        {},
    ),
    "qwen3_vl": (
        "qwen3_vl",
        {**SHAPE, "head_dim": 8, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        {**TOWER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        {},
    ),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {
            **SHAPE,
            **{"head_dim": 8, "rope_parameters": {**MROPE, "mrope_interleaved": True}, "mlp_only_layers": [1]},
            **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        },
        {**TOWER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        {},
    ),
    "qwen3_5": (
        "qwen3_5",
        {
            **SHAPE,
            **{"head_dim": 16, "layer_types": ["linear_attention", FULL, "linear_attention"]},
            **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
            **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
        },
        TOWER,
        {},
    ),
    "lfm2_vl": (
        "lfm2_vl",
        {**SHAPE, "model_type": "lfm2", "layer_types": ["conv", FULL, "conv"], "block_auto_adjust_ff_dim": False},
        {**VISION, "model_type": "siglip2_vision_model", "num_patches": 4},
        {},
    ),
    "idefics3": ("idefics3", {**SHAPE, "model_type": "llama"}, VISION, {"scale_factor": 1}),
    "llava": ("llava", {**SHAPE, "model_type": "llama"}, {**VISION, "model_type": "clip_vision_model"}, {}),
    "llava_next": ("llava_next", {**SHAPE, "model_type": "mistral"}, {**VISION, "model_type": "clip_vision_model"}, {}),
    "llava_onevision": (
        "llava_onevision",
        {**SHAPE, "model_type": "qwen2"},
        {**VISION, "model_type": "siglip_vision_model"},
        {},
    ),
    "smolvlm": ("smolvlm", {**SHAPE, "model_type": "llama"}, VISION, {"scale_factor": 1}),
    "internvl": ("internvl", {**SHAPE, "model_type": "qwen2"}, {**VISION, "image_size": [28, 28]}, {}),
}
OLD_NAMES = {  # of the first checkpoints
    "gemma3": (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    "mistral3": (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    "llava": (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    "qwen2_vl": (("model.language_model.", "model."), ("model.visual.", "visual.")),
    "qwen3_vl": (("model.language_model.", "model.language_model."),),
}


def write(directory: Path, name: str, **changes: Any) -> Any:
    """A random model of transformers' class for text and images, and its directory."""
    kind, text, vision, rest = MODELS[name]
    ids = {"image_token_id": VOCAB - 1, "image_token_index": VOCAB - 1, "video_token_id": VOCAB - 2}
    marks = {"vision_start_token_id": VOCAB - 3, "vision_end_token_id": VOCAB - 4, "pad_token_id": 0}
    told = {**ids, **marks, **rest, **changes}
    config = AutoConfig.for_model(kind, text_config=dict(text), vision_config=dict(vision), **told)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 and key.endswith("weight") else 0.25 * noise)
    model.save_pretrained(directory)
    return model


@pytest.mark.some(6)
@pytest.mark.parametrize("name", MODELS)
def test_the_text_part_equals_hugging_faces_model_on_text(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    forest = Forest.from_prompt(list(PROMPT))
    grow(forest)
    close(ours(decoder, forest), per_path(model, forest))


@pytest.mark.parametrize("name", OLD_NAMES)
def test_names_of_older_checkpoints(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    expected = ours(checkpoint.load(tmp_path), chain(PROMPT))
    path = tmp_path / "model.safetensors"
    tensors = {}
    for key, tensor in load_file(path).items():
        new = next((b + key.removeprefix(a) for a, b in OLD_NAMES[name] if key.startswith(a)), key)
        tensors[new] = tensor
    save_file(tensors, path)
    assert torch.equal(ours(checkpoint.load(tmp_path), chain(PROMPT)), expected)


def test_experts_of_published_qwen_3_vl_are_transposed(tmp_path: Path) -> None:
    write(tmp_path, "qwen3_vl_moe")
    expected = ours(checkpoint.load(tmp_path), chain(PROMPT))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    turned = {key: tensor.transpose(1, 2).contiguous() for key, tensor in tensors.items() if ".experts." in key}
    assert turned
    save_file({**tensors, **turned}, path)
    assert torch.equal(ours(checkpoint.load(tmp_path), chain(PROMPT)), expected)


def test_flat_settings_of_the_first_qwen_vl(tmp_path: Path) -> None:
    write(tmp_path, "qwen2_5_vl")
    expected = ours(checkpoint.load(tmp_path), chain(PROMPT))
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text("utf-8"))
    text = raw.pop("text_config")
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    flat = {**text, **raw, "rope_scaling": rope, "rope_theta": 100.0}
    del flat["rope_parameters"]
    path.write_text(json.dumps(flat), "utf-8")
    assert torch.equal(ours(checkpoint.load(tmp_path), chain(PROMPT)), expected)


@pytest.mark.parametrize("kind", sorted(kind for kind, text in WRAPPERS.items() if text in FAMILIES))
def test_absent_keys_mean_the_defaults_of_the_text_class(kind: str, tmp_path: Path) -> None:
    text = AutoConfig.for_model(WRAPPERS[kind]).to_dict()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "text_config": text}), "utf-8")
    full = checkpoint.described(tmp_path)[2]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "text_config": {}}), "utf-8")
    assert checkpoint.described(tmp_path)[2] == full


def test_a_model_that_reads_images_writes_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any method; end tokens of the text part; one line says that images are not read."""
    model = write(tmp_path, "gemma3")
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", eos_token_id=None)
    raw = json.loads((tmp_path / "config.json").read_text("utf-8"))
    edit_json(tmp_path / "config.json", text_config={**raw["text_config"], "eos_token_id": [7, 9]})
    assert checkpoint.end_tokens(tmp_path) == {7, 9}
    llama_like().save(str(tmp_path / "tokenizer.json"))
    with caplog.at_level(logging.WARNING):
        engine = draftwood.load(tmp_path, device="cpu")
    assert [line.message for line in caplog.records] == [
        f"{tmp_path}: the text part is loaded; images and sound are not read"
    ]
    tokens = engine.generate(PROMPT, sampling={"temperature": 0}, max_new_tokens=6, ignore_eos=True).tokens
    forest = Forest.from_prompt(PROMPT + tokens[:-1])
    assert per_path(model, forest)[-1].argmax() == tokens[-1]


PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what the config.json says, what it means
    "Gemma 3 4B": (
        {
            "model_type": "gemma3",
            "text_config": {
                **{"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text"},
                **{"num_hidden_layers": 34, "sliding_window": 1024},
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
        },
        {"num_hidden_layers": 34, "vocab_size": 262208, "rope_theta": 1e6, "max_position_embeddings": 131072},
    ),
    "Qwen2.5-VL 7B": (
        {
            **{"model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064},
            **{"max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4},
            **{"rope_theta": 1e6, "sliding_window": 32768, "use_sliding_window": False, "rms_norm_eps": 1e-6},
            **{"max_position_embeddings": 128000, "vision_config": {"depth": 32}},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        {"num_hidden_layers": 28, "rope_theta": 1e6, "window": 0, "max_position_embeddings": 128000},
    ),
    "LLaVA 1.5 7B": (
        {
            "model_type": "llava",
            "tie_word_embeddings": False,
            "text_config": {
                **{"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-5},
                **{"torch_dtype": "float16", "vocab_size": 32064},
            },
        },
        {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 32064, "tie_word_embeddings": False},
    ),
    "Pixtral 12B": (
        {
            "model_type": "llava",
            "text_config": {
                **{"hidden_size": 5120, "head_dim": 128, "model_type": "mistral", "num_hidden_layers": 40},
                **{"rope_theta": 1e9, "sliding_window": None, "vocab_size": 131072},
            },
        },
        {"num_hidden_layers": 40, "head_dim": 128, "window": 0, "rope_theta": 1e9, "num_key_value_heads": 8},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str, tmp_path: Path) -> None:
    raw, expected = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(raw), "utf-8")
    config = checkpoint.described(tmp_path)[2]
    assert {key: getattr(config, key) for key in expected} == expected


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llava", {"text_config": 3}, "text_config is 3, but must be an object"),
    ("llava", {"text_config": {"model_type": "bert"}}, "architecture 'bert' is not supported"),
    (
        "llava_next",
        {"text_config": {"model_type": "granite", "logits_scaling": 8.0}},
        "the text part scales its logits",
    ),
    ("llava", {"tie_word_embeddings": "x"}, "tie_word_embeddings is 'x', but must be true or false"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused(name: str, changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelError, match=sentence):
        checkpoint.load(tmp_path)


def test_tensors_of_unknown_parts_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "llava")
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "model.memory.weight": torch.ones(3)}, path)
    with pytest.raises(ModelError, match=r"does not ask for tensor model\.memory\.weight"):
        checkpoint.load(tmp_path)
