"""How a weight matrix is held for multiplication on a CPU: by the native kernels, or packed for oneDNN.

Both give each row of the input the same bits whatever other rows there are (single rows are doubled where oneDNN would
take another kernel), which is what makes verified logits those of plain decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.models.backend.native import NativeMatrix, unavailable
from draftwood.models.quantise import GROUP

log = logging.getLogger(__name__)

Holder = Callable[[Tensor, Tensor | None], nn.Module]  # from a weight and a bias to the layer that holds them
QUANTISATIONS = ("int8", "int4")
BACKENDS = ("auto", "native", "pytorch")
PACKABLE = (torch.float32, torch.bfloat16)
TOP = 127  # steps of int8 on either side of 0
_ROWS_IN_MIND = 8  # oneDNN chooses a layout for about so many rows
_TILED_ROWS = 32  # with AMX, bfloat16 products of more rows sum in another order, which changes with their number


def has_tiles() -> bool:
    """Whether the processor multiplies in tiles (AMX), with which oneDNN's bfloat16 products are made."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


class Packed(nn.Module):
    """y = x W^T + b with W in oneDNN's own layout, which is all that is kept of it."""

    fewest_rows = 2  # a single row takes another kernel

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_IN_MIND)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self._turn = _TILED_ROWS if weight.dtype == torch.bfloat16 and has_tiles() else None

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == self.in_features:
            return self.forward(x.reshape(1, -1).expand(2, -1))[:1].view(*x.shape[:-1], -1)
        if self._turn and x.numel() > self._turn * self.in_features and not torch.compiler.is_compiling():
            turns = torch.split(x.reshape(-1, self.in_features), self._turn)
            return torch.cat([self.forward(turn) for turn in turns]).view(*x.shape[:-1], -1)
        out: Tensor = self._multiply(x, self.packed, self.bias, "none", [], "")
        return out


class Int8(nn.Module):
    """y = x W^T + b with W and x as the native kernels hold them for int8, computed in float32: it saves no memory."""

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
    """x [..., K] rounded to 8 bits, -127 to 127 steps in each group of 32; float32. Steps have the dtype `scales`."""
    count = x.shape[-1]
    padded = F.pad(x.float(), (0, -count % GROUP))
    groups = padded.view(*x.shape[:-1], -1, GROUP)
    step = (groups.abs().amax(-1, keepdim=True) / TOP).to(scales).float()  # where it is not finite, the group is not
    whole = (groups / step).nan_to_num_(0).round_().clamp_(-TOP, TOP)
    return whole.mul_(step).view_as(padded)[..., :count].contiguous()


def holder(dtype: torch.dtype, device: torch.device, quantize: str | None, backend: str = "auto") -> Holder | None:
    """How matrices of a dtype are held on a device; None where PyTorch's plain class is best.

    `backend`: native, pytorch, or auto, which is native where the library is there and has kernels for the dtype.
    """
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"backend {backend!r} is not known{did_you_mean(backend, BACKENDS)}; use one of {', '.join(BACKENDS)}"
        )
    if quantize is not None and quantize not in QUANTISATIONS:
        raise ConfigurationError(
            f"quantize {quantize!r} is not known{did_you_mean(quantize, QUANTISATIONS)}; use int8 or int4"
        )
    fits = device.type == "cpu" and dtype in PACKABLE
    if quantize is not None and not fits:
        raise ConfigurationError(
            f"quantize {quantize} is for the CPU, dtype float32 or bfloat16; leave it out, or change device or dtype"
        )
    if backend == "native" and not fits:
        raise ConfigurationError(
            "the native backend is for the CPU with dtype float32 or bfloat16; change device or dtype, or leave it out"
        )
    reason = "backend pytorch is asked for" if backend == "pytorch" else unavailable()
    if backend == "native" and reason:
        raise ConfigurationError(f"the native backend is not there: {reason}")
    if quantize == "int4" and reason:
        raise ConfigurationError(f"quantize int4 needs the native backend, which is not used: {reason}")
    if fits and not reason:
        return partial(NativeMatrix, kind=quantize and "int8")  # what has no four bits of its own has eight
    if quantize is not None:
        if not torch._C._has_mkldnn:
            raise ConfigurationError(
                "quantize int8 needs PyTorch with oneDNN, or the native kernels; use dtype bfloat16"
            )
        log.warning("without the native kernels int8 takes float32's memory and time; dtype bfloat16 takes less")
        return Int8
    if not fits or not torch._C._has_mkldnn:
        return None
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return Packed


def computed(dtype: torch.dtype, device: torch.device, backend: str = "auto") -> torch.dtype:
    """The dtype to compute weights of a stored dtype in by default: the same one, if there are kernels.

    A CPU has none for float16, and without the native kernels few have some for bfloat16: float32 holds both exactly.
    """
    short = dtype == torch.float16 or (dtype == torch.bfloat16 and holder(dtype, device, None, backend) is None)
    return torch.float32 if device.type == "cpu" and short else dtype


def held_alike(module: nn.Module, dtype: torch.dtype, device: torch.device) -> Holder | None:
    """How the matrices of a part that goes with a model are held: by the backend of one of the model's."""
    return holder(dtype, device, None, "native" if isinstance(module, NativeMatrix) else "pytorch")


def pack(model: nn.Module, hold: Holder | None) -> None:
    """Replace the linear layers of a small model, each as it is held best; None: leave them."""
    if hold is None:
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, hold(child.weight, child.bias))
