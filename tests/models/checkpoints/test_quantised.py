"""Checkpoints quantised by AWQ, GPTQ, compressed-tensors and to FP8: the same logits as what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import ours
from checkpoint_files import write as write_llama
from family_models import PROMPT, chain
from native_library import needs_native
from safetensors.torch import load_file, save_file

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import in_groups
from draftwood.models.checkpoints import checkpoint

GROUP, WIDTH = 32, 64
Parts = dict[str, torch.Tensor]
SHAPE = {"hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2}


def words(codes: torch.Tensor, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """Codes [N, M] -> [N, M * bits / 32] int32, code `order[i]` of each word at place i, by arithmetic of its own."""
    each = 32 // bits
    table = codes.numpy().astype(np.uint64).reshape(len(codes), -1, each)
    packed = sum(table[..., (order or range(each))[i]] << np.uint64(bits * i) for i in range(each))
    return torch.from_numpy(np.asarray(packed, np.uint64).astype(np.uint32).view(np.int32))


def rounded(weight: torch.Tensor, bits: int, zeros: bool, scales: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Codes [N, K], scales and zeros [N, K / GROUP], and the weights that they stand for."""
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    top, middle = (1 << bits) - 1, 1 << bits - 1
    scale = ((high - low) / top if zeros else groups.abs().amax(-1) / (middle - 1)).to(scales)
    zero = (-low / scale.float()).round().clamp(0, top).int() if zeros else torch.full_like(low, middle).int()
    codes = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(0, top).int()
    stands_for = (codes - zero[..., None]) * scale.float()[..., None]
    return codes.view_as(weight), scale, zero, stands_for.view_as(weight)


def awq(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    codes, scale, zero, stands_for = rounded(weight, 4, True, torch.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {"qweight": words(codes.T, 4, order), "qzeros": words(zero.T, 4, order), "scales": scale.T.contiguous()}
    return parts, stands_for


def groups_of_inputs(count: int, shuffled: bool) -> torch.Tensor:
    group = torch.arange(count) // GROUP
    return group[torch.randperm(count, generator=torch.Generator().manual_seed(1))] if shuffled else group


def gptq(weight: torch.Tensor, bits: int = 4, shuffled: bool = False) -> tuple[Parts, torch.Tensor]:
    codes, scale, zero, stands_for = rounded(weight, bits, bits == 4, torch.float16)
    zero = zero.clamp(min=1)  # the format stores one less
    group = groups_of_inputs(weight.shape[1], shuffled)
    stands_for = (codes - zero[:, group]) * scale.float()[:, group]
    parts = {"qweight": words(codes, bits).T.contiguous(), "qzeros": words(zero.T - 1, bits)}
    return {**parts, "scales": scale.T.contiguous(), "g_idx": group.int()}, stands_for


def packed(weight: torch.Tensor, zeros: bool = False) -> tuple[Parts, torch.Tensor]:
    codes, scale, zero, stands_for = rounded(weight, 4, zeros, torch.bfloat16)
    parts = {"weight_packed": words(codes, 4), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}
    return parts | ({"weight_zero_point": words(zero.T, 4).T.contiguous()} if zeros else {}), stands_for


def eight(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = (weight.abs().amax(-1, keepdim=True) / 127).bfloat16()
    codes = (weight / scale.float()).round().clamp(-128, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, codes * scale.float()


def float8(weight: torch.Tensor, block: int = 128) -> tuple[Parts, torch.Tensor]:
    counts = [-(-size // block) for size in weight.shape]
    scale = torch.rand(counts, generator=torch.Generator().manual_seed(2)) / 400 + 1e-3
    wide = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[: len(weight), : weight.shape[1]]
    codes = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * wide


def float8_rows(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = weight.abs().amax(-1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale.bfloat16()}, codes.float() * scale.bfloat16().float()


def compressed(bits: int, form: str, kind: str = "int") -> dict[str, Any]:
    group = {"weights": {"num_bits": bits, "type": kind}, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


Make = Callable[[torch.Tensor], tuple[Parts, torch.Tensor]]
METHODS: dict[str, tuple[dict[str, Any], Make, str]] = {  # settings, parts of a matrix, what the kernels hold
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, "uint4"),
    "gptq": ({"quant_method": "gptq", "bits": 4}, gptq, "uint4"),
    "gptq, 8 bits": ({"quant_method": "gptq", "bits": 8}, lambda w: gptq(w, 8), "int8"),
    "gptq, act order": ({"quant_method": "gptq", "bits": 4}, lambda w: gptq(w, shuffled=True), "uint4"),
    "gptq, 8 bits, act order": ({"quant_method": "gptq", "bits": 8}, lambda w: gptq(w, 8, True), "int8"),
    "auto-round": ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}, gptq, "uint4"),
    "pack-quantized": (compressed(4, "pack-quantized"), packed, "uint4_bf16"),
    "with zero points": (compressed(4, "pack-quantized"), lambda w: packed(w, True), "uint4_bf16"),
    "int-quantized": (compressed(8, "int-quantized"), eight, "int8_bf16"),
    "float-quantized": (compressed(8, "float-quantized", "float"), float8_rows, "fp8"),
    "fp8": ({"quant_method": "fp8"}, float8, "fp8"),
    "fp8, small blocks": (
        {"quant_method": "fp8", "weight_block_size": [48, 48]},
        lambda w: float8(w, 48),
        "float32",
    ),
}


def write(place: Path, name: str) -> tuple[Path, Path]:
    """A llama whose layers are quantised, and the same with what these stand for."""
    settings, make, _ = METHODS[name]
    directories = place / "quantised", place / "plain"
    for directory in directories:
        directory.mkdir()
        write_llama(directory, **SHAPE)
    quantised, plain = ({}, {})
    for key, tensor in load_file(directories[0] / "model.safetensors").items():
        if tensor.dim() < 2 or "layers" not in key:
            quantised[key] = plain[key] = tensor
            continue
        parts, plain[key] = make(tensor.float())
        quantised |= {key.removesuffix("weight") + part: value for part, value in parts.items()}
    for directory, tensors in zip(directories, (quantised, plain), strict=True):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / "model.safetensors")
    config = json.loads((directories[0] / "config.json").read_text())
    (directories[0] / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return directories


def logits(place: Path, *options: Any, **more: Any) -> torch.Tensor:
    return ours(checkpoint.load(place, *options, **more), chain(PROMPT))


@pytest.mark.parametrize("name", METHODS)
def test_dequantised(name: str, tmp_path: Path) -> None:
    quantised, plain = write(tmp_path, name)
    torch.testing.assert_close(logits(quantised), logits(plain), atol=1e-5, rtol=1e-5)


def rounded_inputs(_: torch.nn.Module, inputs: tuple[torch.Tensor], turned: bool) -> tuple[torch.Tensor]:
    order = torch.arange(inputs[0].shape[-1])
    if turned:
        order = groups_of_inputs(len(order), True).argsort(stable=True)
    return (in_groups(inputs[0][..., order], torch.float32)[..., order.argsort()].double(),)


@needs_native
@pytest.mark.parametrize("name", METHODS)
def test_in_the_bits_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    quantised, plain = write(tmp_path, name)
    kind = METHODS[name][2]
    model = checkpoint.load(quantised, "auto", kv_dtype="float32")
    assert model.layers[0].mixer.qkv.kind == model.layers[1].feed.down.kind == kind and model.head.kind == "f32"
    right = checkpoint.load(plain, "float64", packed=False)
    for module in right.layers.modules():
        if isinstance(module, torch.nn.Linear) and kind not in ("float32", "fp8"):  # inputs as the kernels round them
            module.register_forward_pre_hook(partial(rounded_inputs, turned="act order" in name))
    found, exact = ours(model, chain(PROMPT)).double(), ours(right, chain(PROMPT))
    assert (found - exact).norm() < 0.01 * (exact - exact.mean()).norm()


@needs_native
def test_the_types_of_a_model_are_told(tmp_path: Path) -> None:
    model = checkpoint.load(write(tmp_path, "awq")[0], "auto")
    assert model.own_bits and sorted(model.kinds_of_weights) == ["f32", "uint4"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised by 'bitsandbytes' are not read"),
        ({"quant_method": "gptq", "bits": 3}, "codes of 3 bits are not read, but 4 and 8 are"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "packed as 'gemv' are not read"),
        (compressed(2, "pack-quantized"), "codes of 2 bits are not read"),
        (compressed(4, "marlin-24"), "sparse weights are not read"),
        (compressed(4, "nvfp4-pack-quantized", "float"), "in the format 'nvfp4-pack-quantized' are not read"),
        ({"quant_method": "awq", "bits": 8}, "codes of 8 bits are not read"),
    ],
)
def test_what_is_not_read_is_named(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    quantised, _ = write(tmp_path, "awq")
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    with pytest.raises(ModelError, match=reason):
        checkpoint.load(quantised)


@pytest.mark.parametrize("part", ["scales", "qzeros"])
@pytest.mark.parametrize("broken", ["missing", "short"])
def test_parts_that_do_not_fit_are_named(part: str, broken: str, tmp_path: Path) -> None:
    quantised, _ = write(tmp_path, "awq")
    tensors = load_file(quantised / "model.safetensors")
    name = f"model.layers.1.mlp.up_proj.{part}"
    tensors[name] = tensors[name][:1, :8].contiguous()
    if broken == "missing":
        del tensors[name]
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelError, match=r"model.safetensors: the parts of quantised matrix .*mlp.up_proj do not fit"):
        checkpoint.load(quantised)


@needs_native
@pytest.mark.parametrize(("name", "kind"), [("gptq, act order", "float32"), ("fp8", "float32")])
def test_what_the_kernels_cannot_hold_is_widened(name: str, kind: str, tmp_path: Path) -> None:
    """Queries whose inputs are in another order than the keys'; FP8 weights with a NaN."""
    quantised, _ = write(tmp_path, name)
    tensors = load_file(quantised / "model.safetensors")
    if name == "fp8":
        tensors["model.layers.0.self_attn.q_proj.weight"].view(torch.uint8)[3, 5] = 0xFF
    else:
        tensors["model.layers.0.self_attn.q_proj.g_idx"] = groups_of_inputs(WIDTH, False).int()
    save_file(tensors, quantised / "model.safetensors")
    model = checkpoint.load(quantised, "auto")
    assert model.layers[0].mixer.qkv.kind == kind and model.layers[1].mixer.qkv.kind != kind
    assert bool(ours(model, chain(PROMPT)).isnan().any()) == (name == "fp8")


def test_scales_of_fp8_that_do_not_fit_are_named(tmp_path: Path) -> None:
    quantised, _ = write(tmp_path, "fp8, small blocks")
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [128, 128]
    (quantised / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"scales .* in blocks of 128 and 128.; fetch the checkpoint again"):
        checkpoint.load(quantised)


def test_codes_of_another_type_are_not_taken_for_whole_numbers(tmp_path: Path) -> None:
    quantised, _ = write(tmp_path, "int-quantized")
    tensors = load_file(quantised / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name].half()
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(ModelError, match=r"do not fit each other .its codes are float16"):
        checkpoint.load(quantised)


def test_compressed_tensors_packs_so() -> None:
    """The package's own packing, of codes along inputs and of zero points along outputs."""
    module = "compressed_tensors.compressors.pack_quantized.helpers"
    library = pytest.importorskip(module, reason="compressed-tensors is not installed")
    codes = torch.randint(-8, 8, (16, 40), generator=torch.Generator().manual_seed(3), dtype=torch.int8)
    assert torch.equal(library.pack_to_int32(codes, 4), words(codes.int() + 8, 4))
    assert torch.equal(library.pack_to_int32(codes, 4, packed_dim=0), words(codes.T.int() + 8, 4).T)
