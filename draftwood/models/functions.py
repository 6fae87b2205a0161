"""Activations and norms of decoders; on a CPU a row's result has the same bits whatever other rows there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """GELU by the kernel for contiguous tensors: PyTorch's other one rounds otherwise."""
    return F.gelu(x.contiguous())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def xielu(x: Tensor, right: Tensor, left: Tensor, both: Tensor, least: Tensor) -> Tensor:
    """xIELU (Huang and Schlag 2025, arXiv 2411.13010) with its slopes on either side of zero, and on both."""
    return torch.where(x > 0, right * x * x, (torch.expm1(torch.min(x, least)) - x) * left) + both * x


WHOLE_VECTORS = 32  # elements that PyTorch's kernels compute by vector instructions; those left over round otherwise
SERIAL_ELEMENTS = 16000  # up to this many PyTorch computes an activation in one thread


def activate(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an activation to x [B, Q, width]; on a CPU to a few rows at a time, in one thread.

    Where PyTorch splits a tensor among threads, a cut may fall inside a vector of a row, whose rest is computed by
    other instructions with another rounding: the result of a row would depend on the number of rows. So it would where
    rows are no whole vectors, which models of usual sizes have not.
    """
    width = x.shape[-1]
    if x.is_cuda or torch.is_grad_enabled():
        return activation(x)
    if over := -width % WHOLE_VECTORS:
        return activate(activation, F.pad(x, (0, over)))[..., :width]
    if x.numel() <= SERIAL_ELEMENTS:
        return activation(x)
    rows = max(1, SERIAL_ELEMENTS // (len(x) * x.shape[-1]))
    return torch.cat([activation(some) for some in torch.split(x, rows, 1)], 1)


def sigmoid(x: Tensor) -> Tensor:
    """The sigmoid of rows [..., width]; none is computed by the kernel for what is left over."""
    width = x.shape[-1]
    return torch.sigmoid(F.pad(x, (0, -width % WHOLE_VECTORS)))[..., :width]


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of rows [..., width]; see `sigmoid`."""
    width = x.shape[-1]
    return torch.tanh(F.pad(x, (0, -width % WHOLE_VECTORS)))[..., :width]


def mean_square(x: Tensor) -> Tensor:
    """The mean square [..., 1] of rows x [..., width]; by the layer norm's kernel, which goes row by row."""
    if x.is_cuda or torch.is_grad_enabled():
        return x.square().mean(-1, keepdim=True)
    both = torch.cat((x, -x), -1).to(torch.promote_types(x.dtype, torch.float32))
    inverse = torch.native_layer_norm(both, both.shape[-1:], None, None, 0.0)[2]
    return inverse.square().reciprocal().to(x.dtype)


def above(x: Tensor, deviations: float) -> Tensor:
    """How far x [..., width] is above the mean of its row plus some standard deviations; 0 where it is below."""
    if x.is_cuda or torch.is_grad_enabled():
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
    else:
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        _, mean, inverse = torch.native_layer_norm(wide, x.shape[-1:], None, None, 0.0)
        mean, deviation = mean.to(x.dtype), inverse.reciprocal().to(x.dtype)
    return F.relu(x - (mean + deviation * deviations))


def rms_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension; without a weight, by 1.

    PyTorch has no fast kernel of it for CPUs; the layer norm of (x, -x), whose mean is zero, is the same.
    """
    width = x.shape[-1]
    if x.is_cuda or torch.is_grad_enabled():
        return torch.rms_norm(x, (width,), weight, eps)
    made = torch.layer_norm(torch.cat((x, -x), -1), (2 * width,), None, None, eps)[..., :width]
    return made if weight is None else made * weight


def rms_offset_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (1 + weight), in float32: 1 + weight would lose digits of the weight in bfloat16."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, 1 + weight.to(wide), eps).to(x.dtype)


def layer_offset_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, 1 + weight, bias, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias, eps)


# by weight, or by 1 + weight (offset); `layer` is centred and, unless it is plain, has a bias
NORMS: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], Tensor]] = {
    "rms": rms_norm,
    "rms_offset": rms_offset_norm,
    "layer": layer_norm,
    "layer_plain": layer_norm,
    "layer_offset": layer_offset_norm,
}
