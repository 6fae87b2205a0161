"""Chooses the class that stores a weight matrix and multiplies by it: native kernels, oneDNN, int8 or plain PyTorch.

On a CPU a row of a product has the same bits whatever the other rows are, so that verified logits are those of plain
decoding. oneDNN needs help for that: a single row is doubled, and with AMX few rows are multiplied at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.models.backend.native import PLAIN_KINDS, NativeMatrix
from draftwood.models.modules import ExactLinear
from draftwood.models.quantise import GROUP_SIZE, divide, quantise
from draftwood.util.native_library import unavailable

log = logging.getLogger(__name__)

Holder = Callable[[Tensor, Tensor | None], nn.Module]  # makes a linear layer of a weight [out, in] and a bias [out]
QUANTISATIONS = ("int8", "int4")
NOT_QUANTISED = "none"  # of draft models and heads, where the target is
BACKENDS = ("auto", "native", "pytorch")
PACKABLE = (torch.float32, torch.bfloat16)
INT8_STEPS = 127  # on either side of 0
_LAYOUT_ROWS = 8  # oneDNN chooses the layout of weights for products of about this many rows
_AMX_ROWS = 32  # with AMX, bfloat16 products of more rows sum in an order that depends on the number of rows


def has_tiles() -> bool:
    """True if the processor has AMX, which oneDNN uses for bfloat16 products."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


class Packed(nn.Module):
    """y = x W^T + b with W in oneDNN's own layout; the plain W is not kept."""

    fewest_rows = 2  # a single row takes another kernel

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _LAYOUT_ROWS)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self._max_rows = _AMX_ROWS if weight.dtype == torch.bfloat16 and has_tiles() else None

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == self.in_features:
            return self.forward(x.reshape(1, -1).expand(2, -1))[:1].view(*x.shape[:-1], -1)
        if self._max_rows and x.numel() > self._max_rows * self.in_features and not torch.compiler.is_compiling():
            parts = torch.split(x.reshape(-1, self.in_features), self._max_rows)
            return torch.cat([self.forward(part) for part in parts]).view(*x.shape[:-1], -1)
        out: Tensor = self._multiply(x, self.packed, self.bias, "none", [], "")
        return out


class Int8(nn.Module):
    """y = x W^T + b with W and x rounded to int8 in groups of 32 as by the native kernels, but computed in float32.

    The answers are those of int8; memory and time are those of float32.
    """

    fewest_rows = Packed.fewest_rows

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.exact = Packed(in_groups(weight, torch.float16), None if bias is None else bias.float())
        self.weight_bytes = self.exact.weight_bytes

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.exact(in_groups(x, torch.float32))
        return out.to(x.dtype)


def in_groups(x: Tensor, scales: torch.dtype) -> Tensor:
    """Round each group of 32 numbers of x [..., K] to multiples of its largest size / 127; float32 [..., K].

    The size of a step is itself rounded to the dtype `scales`. A group that holds NaN or infinity becomes NaN.
    """
    count = x.shape[-1]
    padded = F.pad(x.float(), (0, -count % GROUP_SIZE))
    groups = padded.view(*x.shape[:-1], -1, GROUP_SIZE)
    step = (groups.abs().amax(-1, keepdim=True) / INT8_STEPS).to(scales).float()
    codes = (groups / step).nan_to_num_(0).round_().clamp_(-INT8_STEPS, INT8_STEPS)
    return codes.mul_(step).view_as(padded)[..., :count].contiguous()


def holder(
    dtype: torch.dtype, device: torch.device, quantize: str | None, backend: str = "auto", option: str = "quantize"
) -> Holder | None:
    """The class that stores matrices of a dtype on a device; None where PyTorch's `Linear` is best.

    `backend`: native, pytorch, or auto, which is native where the library is installed and has kernels for the dtype.
    Raises ConfigurationError for names that are unknown, and for combinations that do not work; `option` is what users
    call `quantize`.
    """
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"backend {backend!r} is not known{did_you_mean(backend, BACKENDS)}; use one of {', '.join(BACKENDS)}"
        )
    if quantize is not None and quantize not in QUANTISATIONS:
        raise ConfigurationError(
            f"{option} {quantize!r} is not known{did_you_mean(quantize, QUANTISATIONS)}; use int8 or int4"
        )
    fits = device.type == "cpu" and dtype in PACKABLE
    if quantize is not None and not fits:
        raise ConfigurationError(
            f"{option} {quantize} is for the CPU, dtype float32 or bfloat16; leave it out, or change device or dtype"
        )
    if backend == "native" and not fits:
        raise ConfigurationError(
            "the native backend is for the CPU with dtype float32 or bfloat16; change device or dtype, or leave it out"
        )
    reason = "backend pytorch is asked for" if backend == "pytorch" else unavailable()
    if backend == "native" and reason:
        raise ConfigurationError(f"the native backend is not there: {reason}")
    if quantize == "int4" and reason:
        raise ConfigurationError(f"{option} int4 needs the native backend, which is not used: {reason}")
    if fits and not reason:
        return partial(NativeMatrix, kind=quantize and "int8")  # with int4, what is not stored in four bits is in eight
    if quantize is not None:
        if not torch._C._has_mkldnn:
            raise ConfigurationError(
                f"{option} int8 needs PyTorch with oneDNN, or the native kernels; use dtype bfloat16"
            )
        log.warning("without the native kernels int8 takes float32's memory and time; dtype bfloat16 takes less")
        return Int8
    if not fits or not torch._C._has_mkldnn:
        return None
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return Packed


def computed(dtype: torch.dtype, device: torch.device, backend: str = "auto") -> torch.dtype:
    """The dtype that weights stored in `dtype` are computed in by default: the same where there are fast kernels.

    No CPU has some for float16, and without the native kernels few have some for bfloat16. These are computed in
    float32, which represents both exactly.
    """
    short = dtype == torch.float16 or (dtype == torch.bfloat16 and holder(dtype, device, None, backend) is None)
    return torch.float32 if device.type == "cpu" and short else dtype


def held_alike(
    module: nn.Module,
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
    trained: str = "int8",
) -> Holder | None:
    """The class for matrices of a trained head: of the same backend as `module`, a matrix of its target.

    `quantize`: "int8", "int4" (rounded without calibration), "none", or None: beside quantised native matrices, where a
    head in float32 would cost a large part of the target's pass, as it is `trained` for, int8 or int4; else none.
    """
    native = isinstance(module, NativeMatrix)
    if quantize is None:
        quantised = isinstance(module, NativeMatrix) and module.kind not in PLAIN_KINDS
        if quantised and trained == "int4":
            return _divided
        quantize = "int8" if quantised else NOT_QUANTISED
    hold = holder(dtype, device, None if quantize == NOT_QUANTISED else quantize, "native" if native else "pytorch")
    return _in_four_bits if quantize == "int4" else hold


def _divided(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return NativeMatrix(divide(weight), bias)


def _in_four_bits(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return NativeMatrix(quantise(weight.float()), bias)


def hold_of(linear: nn.Module, hold: Holder) -> Holder:
    """How a linear layer is held where others are held by `hold`: those that decide something in float32."""
    if not isinstance(linear, ExactLinear):
        return hold
    if getattr(hold, "func", hold) is NativeMatrix:
        return lambda weight, bias: NativeMatrix(weight.float(), bias)
    return lambda weight, bias: Packed(weight.float(), None if bias is None else bias.float())


def pack(model: nn.Module, hold: Holder | None) -> None:
    """Replace all linear layers of a model by ones that `hold` makes; None: leave them."""
    if hold is None:
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, hold_of(child, hold)(child.weight, child.bias))
