"""gpt-oss as it is published, in MXFP4: equal to transformers, natively in the bits of the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import ours
from family_models import PROMPT, chain, theirs
from family_models import write as write_family
from native_library import chain as rows_of
from native_library import needs_native
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import in_groups
from draftwood.models.checkpoints import checkpoint
from draftwood.models.modules import ExactLinear


def write(place: Path, **changes: Any) -> torch.Tensor:
    """A random model whose experts are blocks; what transformers makes of it."""
    model = write_family(place, "gpt_oss", hidden_size=64, intermediate_size=96, **changes)
    path, generator = place / "model.safetensors", torch.Generator().manual_seed(5)
    tensors = load_file(path)
    known = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(122, 126, (count, outputs, inputs // 32), generator=generator).to(torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        known[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path)
    config = json.loads((place / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (place / "config.json").write_text(json.dumps(config))
    return theirs(model, PROMPT)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    expected = write(tmp_path)
    assert expected.std() > 0.3
    checkpoint.check(tmp_path)
    for options in ({"packed": False}, {"backend": "pytorch"}):
        torch.testing.assert_close(
            ours(checkpoint.load(tmp_path, **options), chain(PROMPT)), expected, atol=2e-4, rtol=0
        )


@needs_native
def test_native_kernels_compute_in_its_own_bits(tmp_path: Path) -> None:
    """Logits are those of the dequantised model with inputs of experts rounded as the kernels do; rows as alone."""
    write(tmp_path)
    model = checkpoint.load(tmp_path, "auto", kv_dtype="float32")
    exact = checkpoint.load(tmp_path, "float64", packed=False)
    assert "mxfp4" in model.kinds_of_weights and model.own_bits
    found, plain = ours(model, chain(PROMPT)).double(), ours(exact, chain(PROMPT))
    for name, module in exact.named_modules():
        if isinstance(module, torch.nn.Linear) and not isinstance(module, ExactLinear) and ".experts." in name:
            module.register_forward_pre_hook(lambda _, inputs: (in_groups(inputs[0], torch.float32).double(),))
    rounded = ours(exact, chain(PROMPT))
    assert (found - rounded).norm() < 0.3 * (found - plain).norm() < 0.02 * plain.norm()
    whole, cache = rows_of(model, PROMPT)[0], model.new_cache()
    cache.lend(len(PROMPT))
    single = [rows_of(model, [token], place, cache)[0][0] for place, token in enumerate(PROMPT)]
    assert torch.equal(torch.stack(single), whole)


def test_damage(tmp_path: Path) -> None:
    write(tmp_path, num_hidden_layers=1)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj"
    scales = tensors[f"{name}_scales"].clone()
    scales[3, 0, 0] = 255
    save_file({**tensors, f"{name}_scales": scales}, path)
    with pytest.raises(ModelError, match=r"is damaged \(model.layers.0.mlp.experts.down_proj\[3\] has a scale"):
        checkpoint.load(tmp_path)
    save_file({**tensors, f"{name}_scales": scales[:, :, :2].contiguous()}, path)
    with pytest.raises(ModelError, match=r"the parts of model.layers.0.mlp.experts.down_proj\[0\] do not fit"):
        checkpoint.check(tmp_path)
