"""Linear layers and embeddings that draw no random weights on the meta device, and the bytes that modules take.

The random initialisation of `nn.Linear` and `nn.Embedding` on the meta device imports torch._dynamo, a second of every
command. On other devices (training, tests) they are initialised as PyTorch's are, number for number.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = x W^T + b with W [out, in]."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class ExactLinear(Linear):
    """A small matrix that decides something: it computes in float32 at least, however others are held."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Embedding(nn.Embedding):
    """Row i of W [rows, width] for index i."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


def bytes_of(module: nn.Module, recurse: bool = True) -> int:
    """The bytes of a module's weights: of a packed matrix what it takes in memory, else of its parameters."""
    packed: int | None = getattr(module, "weight_bytes", None)
    parts = module.parameters(recurse)
    return packed if packed is not None else sum(part.numel() * part.element_size() for part in parts)
