"""Activations and norms of decoders; on a CPU a row's result has the same bits whatever other rows there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """PyTorch has two kernels of it, one for contiguous tensors."""
    return F.gelu(x.contiguous())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


SERIAL = 16000  # elements up to which PyTorch computes an activation in one thread


def activate(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An activation of x [B, Q, width], a few rows at a time on a CPU.

    Shared among threads, a row may be cut inside a vector, and the rest of a vector is computed by other instructions
    with another rounding: a row's result would depend on the number of rows.
    """
    if x.numel() <= SERIAL or x.is_cuda or torch.is_grad_enabled():
        return activation(x)
    rows = max(1, SERIAL // (len(x) * x.shape[-1]))
    return torch.cat([activation(some) for some in torch.split(x, rows, 1)], 1)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """PyTorch has no kernel of it for CPUs; the layer norm of x beside -x, whose mean is zero, is the same in one."""
    if x.is_cuda or torch.is_grad_enabled():
        return torch.rms_norm(x, weight.shape, weight, eps)
    width = weight.shape[0]
    return torch.layer_norm(torch.cat((x, -x), -1), (2 * width,), None, None, eps)[..., :width] * weight


def rms_offset_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """In float32 inside: 1 + weight would lose the weight's last digits in a shorter dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, 1 + weight.to(wide), eps).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], Tensor]] = {
    "rms": rms_norm,
    "rms_offset": rms_offset_norm,
    "layer": layer_norm,
}
