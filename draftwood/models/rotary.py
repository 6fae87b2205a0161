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

    def scaled(self, frequency: Tensor, theta: float, context: int) -> Tensor:
        """The frequencies [dim / 2], from theta^(-2 i / dim), in a model that is loaded for `context` tokens."""
        if self.kind == "linear":
            return frequency / self.factor
        if self.kind != "llama3":
            return frequency
        turns = self.original_context * frequency / (2 * math.pi)  # rotations within the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = smooth.clamp(0, 1)
        return (1 - smooth) * frequency / self.factor + smooth * frequency

    def magnitude(self, context: int) -> float:
        """The factor of what is rotated in a model that is loaded for `context` tokens."""
        return 1.0


@dataclass(frozen=True)
class RopeDivisors(RopeScaling):
    """Each rotary frequency is divided by its own number."""

    kind: str = "divisors"
    divisors: tuple[float, ...] = ()  # [dim / 2]

    def scaled(self, frequency: Tensor, theta: float, context: int) -> Tensor:
        return frequency / torch.tensor(self.divisors)


@dataclass(frozen=True)
class Yarn(RopeScaling):
    """YaRN (Peng et al. 2023, arXiv 2309.00071, §3): fast rotations stay, slow ones are divided, between them a ramp.

    The ramp lies between the components that turn `beta_fast` and `beta_slow` times within the original context;
    `truncate` widens it to whole components. `attention_factor` is what queries and keys are multiplied by.
    """

    kind: str = "yarn"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def growth(self, weight: float) -> float:
        """The factor by which YaRN lets scores grow, weighed."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def scaled(self, frequency: Tensor, theta: float, context: int) -> Tensor:
        count = len(frequency)

        def component(turns: float) -> float:
            return count * math.log(self.original_context / (turns * 2 * math.pi)) / math.log(theta)

        low, high = component(self.beta_fast), component(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * count - 1)
        ramp = ((torch.arange(count, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
        return frequency / self.factor * ramp + frequency * (1 - ramp)

    def magnitude(self, context: int) -> float:
        return self.attention_factor


@dataclass(frozen=True)
class LongRope(RopeScaling):
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): each frequency is divided by its own number.

    Those of a model that is loaded for more tokens than the original context are the `long` ones. So a position turns
    by the same angle whatever the length of the text, and what is computed of a prompt holds for all that follow.
    """

    kind: str = "longrope"
    attention_factor: float = 1.0
    short_attention_factor: float | None = None  # where that of short contexts is another
    short: tuple[float, ...] = ()  # [dim / 2]
    long: tuple[float, ...] = ()

    def scaled(self, frequency: Tensor, theta: float, context: int) -> Tensor:
        return frequency / torch.tensor(self.long if context > self.original_context else self.short)

    def magnitude(self, context: int) -> float:
        short = self.short_attention_factor
        return self.attention_factor if short is None or context > self.original_context else short


@dataclass(frozen=True)
class Proportional(RopeScaling):
    """Of the pairs of a whole head the first `angles` are rotated, the others keep still (Gemma 4)."""

    kind: str = "proportional"
    angles: int = 0

    def scaled(self, frequency: Tensor, theta: float, context: int) -> Tensor:
        rotated = torch.arange(len(frequency)) < self.angles
        return torch.where(rotated, frequency / self.factor, torch.zeros(()))


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
        magnitude = self.scaling.magnitude(self.context)
        cos, sin = angle.cos() * magnitude, angle.sin() * magnitude
        both = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
        return both[0].to(device, dtype), both[1].to(device, dtype)

    def _frequencies(self) -> Tensor:
        half = self.dim // 2
        frequency = 1 / self.theta ** (torch.arange(half, dtype=torch.float32) / half)  # [dim / 2]
        return self.scaling.scaled(frequency, self.theta, self.context)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, Q, heads, head_dim] with cos and signed sin [B, Q, 1, head_dim]."""
    low, high = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((high, low), -1), sin)


def rotate_leading(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first components of each head, as many as the table has, and keep the others."""
    width = cos.shape[-1]
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), -1)
