"""Models from GGUF files compute in the bits of the file."""

from __future__ import annotations

from pathlib import Path

import gguf_files
import numpy as np
import pytest
import torch
from checkpoint_files import ours
from family_models import PROMPT, chain
from family_models import write as write_family
from family_variants import VARIANTS
from native_library import needs_native

from draftwood.models.backend.matrix import in_groups
from draftwood.models.backend.native import NativeEmbedding
from draftwood.models.checkpoints import checkpoint, gguf_file
from draftwood.models.modules import ExactLinear

pytestmark = needs_native
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 64}
MIXTURES = [("qwen3_moe", "Q4_K"), ("qwen3_moe", "Q8_0"), ("qwen2_moe", "Q6_K"), ("gpt_oss", "MXFP4")]


@pytest.mark.some(8)
@pytest.mark.parametrize(("family", "kind"), [*[("qwen2", kind) for kind in gguf_file.QUANTISED_TYPES], *MIXTURES])
def test_a_file_is_computed_in_its_own_bits(family: str, kind: str, tmp_path: Path) -> None:
    """Logits are those of the dequantised model with inputs of matrices rounded as the kernels do, and not without."""
    sizes = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256, "decoder_sparse_step": 1}
    sizes |= {"head_dim": 64, **WIDE}
    write_family(tmp_path, family, **{key: size for key, size in sizes.items() if key in VARIANTS[family][1]})
    made: list[int] = []

    def blocks(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        if array.ndim == 1 or "ffn_gate_inp" in name or name.endswith(".bias"):
            return array, "F32"
        made.append(1)
        rows = gguf_files.blocks(kind, array.size // array.shape[-1], array.shape[-1], seed=len(made))
        return rows.reshape(*array.shape[:-1], -1), kind

    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", blocks)
    model = checkpoint.load(file, "auto", kv_dtype="float32")
    exact = checkpoint.load(file, "float64", packed=False)
    assert model.kinds_of_weights == [kind.lower(), *["f32"] * (family != "qwen2")] and model.dtype == torch.float32
    assert isinstance(model.embed, NativeEmbedding) and (model.embed.matrix is model.head) == (
        exact.head.weight is exact.embed.weight
    )
    tokens = torch.arange(20)
    torch.testing.assert_close(model.embed(tokens).double(), exact.embed(tokens), rtol=1e-5, atol=1e-6)
    found, plain = ours(model, chain(PROMPT)), ours(exact, chain(PROMPT))
    for module in exact.modules():
        if isinstance(module, torch.nn.Linear) and not isinstance(module, ExactLinear):
            module.register_forward_pre_hook(lambda _, inputs: (in_groups(inputs[0], torch.float32).double(),))
    rounded = ours(exact, chain(PROMPT))
    error = (found.double() - rounded).norm()
    assert error < 0.02 * (rounded - rounded.mean()).norm() and error < 0.2 * (found.double() - plain).norm()
