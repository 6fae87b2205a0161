"""PyTorch's modules with weights, which draw no numbers where they have no memory.

The random initialisation of `nn.Linear` and `nn.Embedding` on the meta device imports torch._dynamo, a second of every
command. With memory (training, tests) they begin as PyTorch's do, number for number.
"""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """y = x W^T + b with W [out, in]."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class Embedding(nn.Embedding):
    """Row i of W [rows, width] for index i."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


def bytes_of(module: nn.Module, recurse: bool = True) -> int:
    """Bytes of a module's weights: of packed ones what they take, else of its parameters."""
    held: int | None = getattr(module, "weight_bytes", None)
    parts = module.parameters(recurse)
    return held if held is not None else sum(part.numel() * part.element_size() for part in parts)
