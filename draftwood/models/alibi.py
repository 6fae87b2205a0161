"""Attention with linear biases: a head's scores fall with the distance of the key, in place of other positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Alibi:
    """ALiBi (Press et al. 2022, arXiv 2108.12409): the score of a key at position p is raised by slope * p.

    Only differences of positions count, since a softmax does not see what all scores are raised by. `scale` multiplies
    the biases; `rounded`: they have the bits of bfloat16, as in Falcon.
    """

    slopes: tuple[float, ...]  # of each head
    scale: float = 1.0
    rounded: bool = False

    def table(self, count: int) -> Tensor:
        """The bias [heads, count] float32 of each head for keys at positions 0 to count - 1."""
        slopes, positions = torch.tensor(self.slopes)[:, None], torch.arange(count)
        made = (slopes.bfloat16() * positions).float() if self.rounded else slopes * positions
        return made * self.scale


def geometric_slopes(heads: int) -> tuple[float, ...]:
    """The slopes of the paper, as BLOOM and Falcon continue them to numbers that are not powers of two."""
    whole = 2 ** int(math.log2(heads))
    base = torch.tensor(2.0 ** -(2.0 ** (3 - math.log2(whole))))
    finer = torch.tensor(2.0 ** -(2.0 ** (2 - math.log2(whole))))
    rest = min(whole, heads - whole)
    made = torch.cat((base ** torch.arange(1, whole + 1), finer ** torch.arange(1, 2 * rest + 1, 2)))
    return tuple(made.tolist())


def interleaved_slopes(heads: int, steepest: int) -> tuple[float, ...]:
    """The slopes of MPT, from 2 ** -(a step) to 2 ** -steepest; every other one first where `heads` is no power of two.

    They are taken from those of the next power of two.
    """
    whole = 2 ** math.ceil(math.log2(heads))
    made = 1 / 2 ** (torch.arange(1, whole + 1) * (steepest / whole))
    made = made if whole == heads else torch.cat((made[1::2], made[::2]))[:heads]
    return tuple(made.tolist())
