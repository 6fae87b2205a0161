"""Matrices in the bits of a GGUF file: the weights, products and bits of every type, by every kernel set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
import torch
from native_library import needs_native, python

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import in_groups
from draftwood.models.backend.native import FP8_FORMAT, FP8_INPUTS, NativeMatrix, StoredRows
from draftwood.models.checkpoints import gguf_file
from draftwood.models.quantise import GROUP_SIZE, Grouped
from draftwood.util.native_library import kernels

pytestmark = needs_native
PLAIN = tuple(gguf_file.PLAIN_TYPES)
TYPES = (*gguf_file.QUANTISED_TYPES, *PLAIN, "FP8")
INPUTS = 512


def stored(kind: str, rows: int, seed: int = 0, order: Any = None) -> tuple[StoredRows, torch.Tensor]:
    """Random rows of a type, and the weights [rows, INPUTS] that the gguf package reads from them."""
    number = FP8_FORMAT if kind == "FP8" else gguf.GGMLQuantizationType[kind]
    if kind == "FP8":
        data, weights = float8_rows(rows, seed)
    elif kind in PLAIN:
        values = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(seed))
        weights = values.to(gguf_file.PLAIN_TYPES[kind])
        data = np.ascontiguousarray(weights.view(torch.uint8).numpy())
    else:
        data = np.ascontiguousarray(gguf_files.blocks(kind, rows, INPUTS, seed=seed))
        weights = gguf_files.dequantised(data, kind)
    chosen = weights.float() if order is None else weights.float()[torch.from_numpy(order)]
    return StoredRows(kind, int(number), INPUTS, data, order), chosen


def float8_rows(rows: int, seed: int) -> tuple[Any, torch.Tensor]:
    """Blocks of FP8 numbers, every one of them but NaN among them, behind a scale; and what they stand for."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 254, (rows, INPUTS), generator=draw)
    numbers = (codes + (codes > 126)).to(torch.uint8).view(rows, -1, FP8_INPUTS)
    scale = torch.rand(rows, INPUTS // FP8_INPUTS, 1, generator=draw) / 100
    data = torch.cat((scale.view(torch.uint8), numbers), -1).flatten(1).numpy()
    return data, (numbers.view(torch.float8_e4m3fn).float() * scale).flatten(1)


def operands(count: int) -> torch.Tensor:
    return torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_those_of_the_gguf_package(kind: str) -> None:
    """All outputs, one of them the last of an incomplete panel; nothing is rounded a second time."""
    part, weights = stored(kind, 43)
    matrix = NativeMatrix([part], None)
    unpacked = matrix.rows(torch.arange(43))
    spread = weights.abs().amax(-1, keepdim=True)
    assert ((unpacked - weights).abs() <= 2e-7 * spread).all()  # scale * code + shift: one rounding here, two there
    assert matrix.kind == kind.lower() and (matrix.out_features, matrix.in_features) == (43, INPUTS)


@pytest.mark.parametrize("kind", TYPES)
def test_products(kind: str) -> None:
    """Against float64, with what the kernels round rows to."""
    part, weights = stored(kind, 43)
    bias, x = torch.randn(43, generator=torch.Generator().manual_seed(3)), operands(9)
    found = NativeMatrix([part], bias)(x)
    rows = x if kind in ("F32", "F16", "FP8") else x.bfloat16() if kind == "BF16" else in_groups(x, torch.float32)
    exact = rows.double() @ weights.double().T + bias
    assert ((found - exact).norm(dim=-1) <= 2e-6 * exact.norm(dim=-1)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_has_the_same_bits_in_any_company(kind: str) -> None:
    matrix, x = NativeMatrix([stored(kind, 70)[0]], None), operands(41)
    together = matrix(x)
    for first, count in ((0, 1), (1, 2), (3, 3), (5, 4), (9, 5), (14, 7), (20, 8), (23, 13)):
        assert torch.equal(matrix(x[first : first + count]), together[first : first + count]), count


def test_a_matrix_of_several_types() -> None:
    """As q, k and v are one matrix: its outputs are those of the parts, in the order that is asked for."""
    order = np.random.default_rng(5).permutation(32)
    parts = [stored("Q4_K", 32, 1, order), stored("Q4_K", 16, 2), stored("Q6_K", 16, 3), stored("F16", 21, 4)]
    matrix = NativeMatrix([part for part, _ in parts], None)
    assert matrix.kind == "q4_k, q6_k, f16" and matrix.out_features == 85
    found = matrix(operands(5))
    alone = [NativeMatrix([part], None)(operands(5)) for part, _ in parts]
    assert torch.equal(found, torch.cat(alone, 1))
    torch.testing.assert_close(matrix.rows(torch.arange(85)), torch.cat([w for _, w in parts]), rtol=0, atol=1e-5)


def test_inputs_in_another_order() -> None:
    """As act-order leaves them: rows are rounded in groups of that order, and bits are those of rows so put."""
    draw = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 16, (43, 96), generator=draw, dtype=torch.uint8)
    zero = torch.randint(0, 16, (43, 96 // GROUP_SIZE), generator=draw, dtype=torch.uint8)
    order, x = torch.randperm(96, generator=draw), torch.randn(13, 96, generator=draw)
    plain = Grouped(codes, torch.rand(zero.shape, generator=draw).half(), zero=zero)
    turned = replace(plain, order=order)
    matrix = NativeMatrix(turned, None)
    assert torch.equal(matrix(x), NativeMatrix(plain, None)(x[:, order]))
    weight = torch.zeros(43, 96)
    weight[:, order] = plain.weight()
    assert torch.equal(matrix.rows(torch.arange(43)), weight) and torch.equal(turned.weight(), weight)
    assert Grouped.joined([turned, plain]) is None
    both = Grouped.joined([turned, replace(turned, order=order.clone())])
    assert both is not None and torch.equal(NativeMatrix(both, None)(x), matrix(x).repeat(1, 2))
    with pytest.raises(ModelError, match="an order must have each input once"):
        NativeMatrix(replace(plain, order=order.clamp(min=1)), None)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([("Q4_K", 20), ("Q6_K", 16)], "outputs of another type must begin at a multiple of 16"),
        ([(kind, 16) for kind in ("Q4_0", "Q5_0", "Q8_0", "Q5_1", "Q4_1")], "too many types"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts: list[tuple[str, int]], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        NativeMatrix([stored(kind, rows)[0] for kind, rows in parts], None)


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="a row is asked for that the matrix does not have"):
        NativeMatrix([stored("Q8_0", 16)[0]], None).rows(torch.tensor([16]))


EVERY_TYPE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_own_bits as tests

for kind in tests.TYPES:
    tests.test_products(kind)
    tests.test_a_row_has_the_same_bits_in_any_company(kind)
tests.test_a_matrix_of_several_types()
tests.test_inputs_in_another_order()
print(tests.kernels()[0])
"""


@pytest.mark.slow
def test_every_kernel_set() -> None:
    """Products by each kernel set that is in use on other processors and that this one can run."""
    used, able = kernels()
    for name in able[able.index(used) + 1 :]:
        assert python(EVERY_TYPE, DRAFTWOOD_KERNELS=name).stdout.strip() == name
