"""The numbers in which a cache stores keys and values: floats of a dtype, or int8 with a scale per position and head.

A row of a plane holds the key, or the value, of one head of one token. In int8 it begins with its scale, a float32; the
codes of its components follow, up to a multiple of 4 bytes: number = scale * code. So a row depends on no other row,
and is copied and moved as one piece. The native kernels write and read the same rows (native/src/kernels/attention.h).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.errors import ConfigurationError, did_you_mean

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
SCALE_BYTES = 4
MAX_CODE = 127
SMALLEST = 1e-30  # rows whose largest component is not above it become 0


def kv_dtype_of(wanted: str, dtype: torch.dtype, quantize: str | None) -> torch.dtype:
    """The dtype of keys and values, by its name or "auto", of a decoder computed in `dtype` with quantised weights.

    "auto" is `dtype`; but bfloat16 where weights are quantised and computed with in float32, which is wider than they
    are. Raises ConfigurationError for unknown names.
    """
    if wanted == "auto":
        return torch.bfloat16 if quantize is not None and dtype == torch.float32 else dtype
    if wanted not in KV_DTYPES:
        known = ["auto", *KV_DTYPES]
        raise ConfigurationError(
            f"kv_dtype {wanted!r} is not known{did_you_mean(wanted, known)}; use one of {', '.join(known)}"
        )
    return KV_DTYPES[wanted]


def row_width(dtype: torch.dtype, width: int) -> int:
    """How many numbers of a dtype a row takes that stores `width` components."""
    return SCALE_BYTES + -(-width // SCALE_BYTES) * SCALE_BYTES if dtype == torch.int8 else width


def to_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows [N, row_width] of a plane of a dtype that store keys or values x [N, D].

    In int8 a row that holds NaN or infinity gets a scale that makes all of it NaN.
    """
    if dtype != torch.int8:
        return x.to(dtype)
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    steps = torch.full_like(largest, MAX_CODE) / largest  # of a number, PyTorch's quotient is rounded twice
    codes = (x * steps).round_().to(torch.int8)
    codes.masked_fill_((largest <= SMALLEST) | ~largest.isfinite(), 0)
    scale = (largest / MAX_CODE).masked_fill_(largest <= SMALLEST, 0)
    return F.pad(torch.cat((scale.view(torch.int8), codes), -1), (0, -x.shape[-1] % SCALE_BYTES))


def from_rows(rows: Tensor, dtype: torch.dtype, width: int) -> Tensor:
    """Keys or values [..., width] of a dtype, from rows [..., row_width] of a plane."""
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    scale, codes = rows[..., :SCALE_BYTES].view(torch.float32), rows[..., SCALE_BYTES : SCALE_BYTES + width]
    return (codes * scale).to(dtype)
