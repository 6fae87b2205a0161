"""Rotary positions: frequencies, tables made on demand, and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    """A change of rotary frequencies for longer contexts: `linear` divides all, `llama3` the slow ones (Llama 3.1)."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class RopeDivisors(RopeScaling):
    """Each rotary frequency is divided by its own number; in a class of its own, since fingerprints hash the fields."""

    kind: str = "divisors"
    divisors: tuple[float, ...] = ()  # [dim / 2]


UNSCALED = RopeScaling()


class Rotary:
    """Tables of cosines and signed sines for positions 0, 1, ... below a context; they grow when they are too short.

    Frequencies and angles are rounded to float32 in every dtype, as they were when the published models were trained:
    at position 100,000 exact angles would differ by 0.001, and the logits with them.
    """

    def __init__(self, theta: float, dim: int, context: int, scaling: RopeScaling = UNSCALED) -> None:
        self.theta, self.dim, self.context, self.scaling = theta, dim, context, scaling
        self._tables: tuple[Tensor, Tensor] | None = None

    def tables(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [at least `length`, 1, dim]; the sign of rotate-half is folded into the sines."""
        made = self._tables
        if made is None or len(made[0]) < length or made[0].device != device or made[0].dtype != dtype:
            length = min(self.context, max(length, 0 if made is None else 2 * len(made[0])))
            made = self._tables = self._make(length, device, dtype)
        return made

    def _make(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        frequency = self._frequencies()
        angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency  # [length, dim / 2]
        cos, sin = angle.cos(), angle.sin()
        both = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
        return both[0].to(device, dtype), both[1].to(device, dtype)

    def _frequencies(self) -> Tensor:
        half = self.dim // 2
        frequency = 1 / self.theta ** (torch.arange(half, dtype=torch.float32) / half)  # [dim / 2]
        scaling = self.scaling
        if scaling.kind == "linear":
            frequency = frequency / scaling.factor
        elif isinstance(scaling, RopeDivisors):
            frequency = frequency / torch.tensor(scaling.divisors)
        elif scaling.kind == "llama3":
            turns = scaling.original_context * frequency / (2 * math.pi)  # rotations within the original context
            smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            smooth = smooth.clamp(0, 1)
            frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
        return frequency


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, Q, heads, head_dim] with cos and signed sin [B, Q, 1, head_dim]."""
    low, high = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((high, low), -1), sin)


def rotate_leading(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first components of each head, as many as the table has, and keep the others."""
    width = cos.shape[-1]
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), -1)
