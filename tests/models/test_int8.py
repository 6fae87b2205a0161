"""quantize="int8": 8 bits in groups of 32, by the native kernels and by PyTorch; how near a real model stays."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from native_library import needs_native

from benchmarks.kinds.quantisation import read
from draftwood.corpus import documents
from draftwood.models.backend.matrix import Int8
from draftwood.models.backend.native import NativeMatrix
from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.tokenizer import Tokenizer

HOLDERS = [pytest.param(lambda w, b: NativeMatrix(w, b, "int8"), marks=needs_native, id="native"), Int8]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Of the worst row, relative to its norm."""
    return float(((found - right).norm(dim=-1) / right.norm(dim=-1)).max())


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loud_input_costs_the_others_nothing(holder: type[Int8], dtype: torch.dtype) -> None:
    """As in real models, where few inputs are a hundred times the rest: one scale for all leaves these two bits."""
    weight, x, bias = (drawn(*shape, seed=i).to(dtype) for i, shape in enumerate([(48, 320), (9, 320), (48,)]))
    weight[:, 40], weight[5, 200] = 0, 30
    x[:, 40] *= 100
    right = x.double() @ weight.double().T + bias.double()
    assert error(holder(weight, bias)(x).double(), right) < 0.15


@needs_native
@pytest.mark.parametrize("width", [32, 70, 576])
@pytest.mark.parametrize("rows", [1, 7])
def test_pytorch_and_the_native_kernels_hold_the_same_numbers(rows: int, width: int) -> None:
    weight, x, bias = drawn(40, width, seed=1), drawn(rows, width, seed=2), drawn(40, seed=3)
    weight[3, 5], weight[7], weight[:, 32:64], x[0, 8:20] = 50, 0, 1e-9, 0
    ours, theirs = NativeMatrix(weight, bias, "int8")(x), Int8(weight, bias)(x)
    assert error(ours, theirs) < 2e-6 and error(ours, x @ weight.T + bias) > 1e-3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_told(value: float) -> None:
    weight, x = drawn(20, 70, seed=1), drawn(5, 70, seed=2)
    weight[4, 9] = x[2, 66] = value
    finite = torch.ones(5, 20, dtype=torch.bool)
    finite[2], finite[:, 4] = False, False
    assert torch.equal(Int8(weight, None)(x).isfinite(), finite)


@pytest.mark.slow
@pytest.mark.real
@needs_native
def test_a_real_model_stays_what_it_is(smollm2: Path) -> None:
    """As llama.cpp's Q8_0: .0043 nats from float32, and its most probable token at 95 of 100 places."""
    words = Tokenizer.load(smollm2)
    texts = [words.encode(document.text) for document in islice(documents("stories", "held-out", seed=1), 4)]
    exact, model = checkpoint.load(smollm2, "float32"), checkpoint.load(smollm2, "float32", quantize="int8")
    found, right = read(model, texts, exact), read(exact, texts, exact)
    agreed = [*map(int.__eq__, chain(*found["greedy"]), chain(*right["greedy"]))]
    assert len(agreed) > 300 and sum(agreed) / len(agreed) > 0.93
    assert sum(found["divergence"]) / len(agreed) < 0.01
