"""Softmax and sums of rows as long as a vocabulary: by the native library where it is there, else by PyTorch.

A row gets the same bits whatever rows are beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.util.native_library import check, library

COLDEST, HOTTEST = 1e-30, 1e30  # beyond them nothing but ties is left, and all that is possible is equal, in float32


def softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The softmax of logits [..., V] over a temperature > 0, of their dtype."""
    temperature = min(max(temperature, COLDEST), HOTTEST)
    if _is_native(logits) and not isinstance(lib := library(), str):
        logits = logits.contiguous()
        probs = torch.empty_like(logits)
        size = logits.shape[-1]
        rows = logits.numel() // max(size, 1)
        check(lib.dw_softmax(rows, size, logits.data_ptr(), 1 / temperature, probs.data_ptr()) != 0)
        return probs
    if temperature != 1:  # the largest becomes 0 first, so that no temperature overflows
        logits = (logits - logits.amax(-1, keepdim=True)).div_(temperature)
    return torch.softmax(logits, -1)


def block_sums(weights: Tensor, block: int) -> npt.NDArray[np.float64]:
    """The sums of each `block` neighbours of weights [V] on the CPU, and of those left, as float64."""
    size = weights.shape[0]
    sums = np.empty(-(-size // block))
    if _is_native(weights) and weights.is_contiguous() and not isinstance(lib := library(), str):
        check(lib.dw_block_sums(size, block, weights.data_ptr(), sums.ctypes.data) != 0)
        return sums
    whole = size // block
    sums[:whole] = weights[: whole * block].double().view(-1, block).sum(-1).numpy()
    sums[whole:] = weights[whole * block :].double().sum().numpy()
    return sums


def _is_native(rows: Tensor) -> bool:
    return rows.dtype == torch.float32 and rows.device.type == "cpu" and not rows.requires_grad
