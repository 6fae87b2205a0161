"""Bad checkpoints: each is refused with one sentence that names the file or tensor and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import edit_json, write
from safetensors.torch import load_file, save_file

from draftwood.errors import ModelError
from draftwood.models.checkpoints import checkpoint


def without(name: str) -> Callable[[Path], None]:
    """Drop one tensor from the file."""

    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        save_file({key: t for key, t in load_file(path).items() if key != name}, path)

    return damage


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    """Replace one tensor of the file."""

    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        save_file({**load_file(path), name: tensor}, path)

    return damage


def config(*drop: str, **changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", drop, **changes)


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda directory: (directory / name).write_bytes(data) and None


def truncated(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def only_pickles(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"")


K = "model.layers.1.self_attn.k_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"has no config\.json; give"),
    "bad JSON": (text("config.json", '{"model_type": '), r"config\.json is not valid JSON \(.*line 1"),
    "bad UTF-8": (text("config.json", b'{"model_type": "\xff"}'), r"config\.json is not valid JSON"),
    "JSON list": (text("config.json", "[]"), r"config\.json holds a JSON list, not an object"),
    "unknown architecture": (
        config(model_type="lama"),
        r"architecture 'lama' is not supported \(apertus, .* are\); give a",
    ),
    "no architecture": (config("model_type"), r"architecture 'unnamed' is not supported \(apertus, "),
    "rope type": (
        config(rope_parameters={"rope_type": "yarn"}),
        r"config\.json: factor is missing, but must be a positive number",
    ),
    "rope object": (
        config(rope_parameters="linear"),
        r"config\.json: rope_parameters is 'linear'",
    ),
    "rope factor": (
        config(rope_parameters={"rope_type": "linear"}),
        r"factor is missing, but must",
    ),
    "partial rope": (config(partial_rotary_factor=0.5), r"partial_rotary_factor is not supported"),
    "activation": (config(hidden_act="silo"), r"activation 'silo' is not supported \(did you mean 'silu'\?\)"),
    "text for a number": (config(hidden_size="big"), r"hidden_size is 'big', but must be a positive whole number"),
    "no heads": (config(num_attention_heads=0), r"num_attention_heads is 0, but must be a positive whole number"),
    "negative eps": (config(rms_norm_eps=-1), r"rms_norm_eps is -1, but must be a positive number"),
    "text for a flag": (config(mlp_bias="yes"), r"mlp_bias is 'yes', but must be true or false"),
    "heads do not divide": (config(num_key_value_heads=3), r"4 attention heads, 3 key/value heads .* do not fit"),
    "odd head_dim": (config(head_dim=7), r"head_dim 7 do not fit together"),
    "a million layers": (config(num_hidden_layers=1_000_000), r"num_hidden_layers is 1000000, but models have at most"),
    "too many layers": (
        config(num_hidden_layers=99_999),
        r"config\.json asks for 99999 layers, but tensor model\.layers\.99998\.mlp\.down_proj\.weight is missing",
    ),
    "no such width": (config(hidden_size=10**30), r"hidden_size is 10{30}, but models have at most"),
    "sizes without a sum": (
        config(hidden_size=2**31, head_dim=2**31, intermediate_size=2**31),
        r"config\.json asks for a model larger than any memory",
    ),
    "larger than the file": (config(intermediate_size=2**30), r"does not fit config\.json, which asks for"),
    "deep JSON": (text("config.json", '{"a":' * 100_000), r"is not valid JSON \(it is nested too deeply\)"),
    "long number": (text("config.json", '{"a": ' + "1" * 4000 + "}"), r"\(a number of 4,000 digits is too large\)"),
    "long value": (config(rope_parameters="x" * 10**6), r"rope_parameters is 'x+\.\.\.x+', but must be an object"),
    "quantised": (config(quantization_config={"quant_method": "quip"}), r"quantised by 'quip' are not read"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), r"has no \.safetensors file; give a checkpoint with"),
    "pickles only": (only_pickles, r"has no \.safetensors file; pickled weights are never loaded: convert"),
    "truncated": (truncated, r"model\.safetensors is damaged or truncated .*; fetch it again"),
    "empty file": (text("model.safetensors", b""), r"model\.safetensors is damaged or truncated"),
    "no safetensors file": (text("model.safetensors", b"version https://git-lfs"), r"model\.safetensors is damaged"),
    "missing tensor": (without(K), rf"tensor {re.escape(K)} is missing; fetch the checkpoint again"),
    "missing head": (without("lm_head.weight"), r"tensor lm_head\.weight is missing"),
    "wrong width": (with_tensor(K, torch.zeros(16, 31)), rf"{K} \[16, 31\], .* does not fit .* \[64, 32\] together"),
    "wrong height": (with_tensor(K, torch.zeros(8, 32)), rf"{K} \[8, 32\], .* does not fit .* \[64, 32\] together"),
    "scalar": (with_tensor("model.norm.weight", torch.tensor(1.0)), r"tensor model\.norm\.weight \[1\] does not fit"),
    "other vocabulary": (
        config(vocab_size=97),
        r"embed_tokens\.weight \[96, 32\] does not fit config\.json",
    ),
    "missing biases": (config(attention_bias=True), r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is missing"),
    "integers": (
        with_tensor(K, torch.zeros(16, 32, dtype=torch.int8)),
        rf"tensor {K} is stored as I8",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_sentence_that_names_it(damage: str, tmp_path: Path) -> None:
    write(tmp_path)
    harm, sentence = DAMAGES[damage]
    harm(tmp_path)
    with pytest.raises(ModelError, match=sentence) as caught:
        checkpoint.load(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["attention_bias", "mlp_bias"])
def test_biases_that_the_config_forgets_are_not_dropped_silently(kind: str, tmp_path: Path) -> None:
    write(tmp_path, **{kind: True})
    checkpoint.load(tmp_path)
    edit_json(tmp_path / "config.json", (kind,))
    with pytest.raises(ModelError, match=r"config\.json does not ask for tensor model\.layers\.0\..*_proj\.bias"):
        checkpoint.load(tmp_path)


def test_old_buffers_and_further_layers_are_no_contradiction(tmp_path: Path) -> None:
    write(tmp_path)
    with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4))(tmp_path)
    edit_json(tmp_path / "config.json", num_hidden_layers=1)  # a draft made of a model's first layers
    assert checkpoint.load(tmp_path).n_layers == 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, max_shard_size="12KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"the index names {gone.name}, which is not there; fetch the missing file"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\\\\b"])
def test_an_index_names_files_of_its_own_directory(name: str, tmp_path: Path) -> None:
    write(tmp_path / "whole")
    write(tmp_path / "model", max_shard_size="12KB")
    (tmp_path / "whole" / "model.safetensors").rename(tmp_path / "model.safetensors")
    edit_json(tmp_path / "model" / "model.safetensors.index.json", weight_map={K: name})
    with pytest.raises(ModelError, match=r"index\.json names '.*', but weights lie in its own directory"):
        checkpoint.load(tmp_path / "model")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_refused(content: str, tmp_path: Path) -> None:
    write(tmp_path, max_shard_size="12KB")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json "):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "float23"}, r"dtype 'float23' is not supported \(did you mean"),
        ({"dtype": torch.int8}, r"dtype 'torch.int8' is not supported"),
    ],
)
def test_unknown_dtypes_are_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ModelError, match=sentence):
        checkpoint.load(tmp_path, **options)


def test_cuda_where_there_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="no CUDA device here; use device cpu"):
        checkpoint.load(tmp_path, device="cuda")
