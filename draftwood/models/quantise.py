"""Matrices in four bits a weight: codes from 0 to 15 in groups of 32 columns, each with a scale and a shift.

The codes are chosen so that the sum of (W'x - Wx)^2 over inputs x is small, where W' is the matrix that the codes stand
for. Several ranges are tried for each group, each refitted to its codes by weighted least squares (as llama.cpp does
for Q4_K). And the error of each column is compensated by the columns after it, as far as their inputs are correlated
(GPTQ, Frantar et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.errors import ModelError

GROUP_SIZE = 32  # weights that share a scale and a shift
MAX_CODE = 15
# numbers of steps that the range of a group is divided into, of which the best is taken; 16 equidistant values need 15
RANGE_STEPS = (15.0, 13.5, 14.0, 14.5, 15.5, 16.0, 16.5)
REFITS = 2  # of scale and shift to the codes, for each number of steps
DAMPING = 0.1  # share of each mean square that is added to it: calibration sees few inputs, so correlations count less
MIN_IMPORTANCE = 1e-3  # share of the mean importance that is added to each: inputs that were never seen may come


@dataclass(frozen=True, slots=True)
class Grouped:
    """A matrix [N, K]: w[n, k] = scale[n, k // 32] * (codes[n, k] - zero[n, k // 32]) + shift[n, k // 32].

    `codes` [N, K] uint8 from 0 to 15, or int8; `scale` [N, K / 32, rounded up] float16 or bfloat16: the last group may
    be short. A matrix has `shift`, of the same shape, `zero` (uint8), or none of both. `order` [K] int64: which
    input of a row number k is, or None: as they come.
    """

    codes: Tensor
    scale: Tensor
    shift: Tensor | None = None
    zero: Tensor | None = None
    order: Tensor | None = None

    @property
    def kind(self) -> str:
        """The native type that holds it."""
        name = "int8" if self.codes.dtype == torch.int8 else "int4" if self.zero is None else "uint4"
        return f"{name}_bf16" if self.scale.dtype == torch.bfloat16 else name

    def weight(self) -> Tensor:
        """The matrix [N, K] float32 that the codes stand for."""
        group = torch.arange(self.codes.shape[1]) // GROUP_SIZE
        codes = self.codes.float() if self.zero is None else self.codes.float() - self.zero[:, group]
        weight = codes * self.scale.float()[:, group]
        weight = weight if self.shift is None else weight + self.shift.float()[:, group]
        return weight if self.order is None else weight[:, self.order.argsort()]

    def rows(self, order: Tensor) -> Grouped:
        """Some outputs, number order[i] as number i."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("codes", "scale", "shift", "zero")}
        return replace(self, **{name: part[order] for name, part in parts.items() if part is not None})

    @staticmethod
    def joined(parts: Sequence[Grouped]) -> Grouped | None:
        """The outputs of matrices one after the other; None where they differ in kind or in the order of inputs."""
        orders = [part.order for part in parts]
        first = orders[0]
        alike = all(each is first or (each is not None and first is not None and each.equal(first)) for each in orders)
        if len({part.kind for part in parts}) > 1 or not alike:
            return None
        fields = {name: [getattr(part, name) for part in parts] for name in ("codes", "scale", "shift", "zero")}
        return Grouped(**{name: torch.cat(each) for name, each in fields.items() if each[0] is not None}, order=first)


@torch.no_grad()
def quantise(weight: Tensor, importance: Tensor | None = None) -> Grouped:
    """Quantise a matrix [N, K].

    `importance` of the inputs: None, where all count alike; their mean squares [K]; or their second moments [K, K],
    with which the errors of columns are compensated by later ones. Raises ModelError for weights that are not finite or
    too large for float16.
    """
    n, k = weight.shape
    left = torch.empty(k, n).copy_(weight.T)  # columns are made one after another
    moments = torch.ones(k) if importance is None else importance.float()
    if not moments.isfinite().all():
        raise ModelError(
            "inputs of a matrix are not finite on the calibration text, so it cannot be quantised; leave out int4"
        )
    squares = moments.diagonal() if moments.dim() > 1 else moments
    least = MIN_IMPORTANCE * squares.mean() or 1.0
    wanted, spread = squares + least, None
    if moments.dim() > 1:
        spread = _inverse_factor(moments + torch.diag(DAMPING * squares + least))
    groups = -(-k // GROUP_SIZE)
    codes = torch.empty(k, n, dtype=torch.uint8)
    scales, shifts = torch.empty(groups, n), torch.empty(groups, n)
    for group in range(groups):
        start, stop = group * GROUP_SIZE, min(k, (group + 1) * GROUP_SIZE)
        block = left[start:stop]
        scale, shift = scales[group], shifts[group] = _fit(block, wanted[start:stop])
        if spread is None:
            codes[start:stop] = _codes(block, scale, shift)
            continue
        errors = torch.empty_like(block)  # of each column, over its share in what is made up for
        for column in range(start, stop):
            mine, share = block[column - start], spread[column]
            code = _codes(mine, scale, shift)
            codes[column] = code
            errors[column - start] = error = (mine - code * scale - shift) / share[column]
            block[column - start + 1 :].addr_(share[column + 1 : stop], error, alpha=-1)
        left[stop:].addmm_(spread[start:stop, stop:].T, errors, alpha=-1)
    scale, shift = (part.T.half().contiguous() for part in (scales, shifts))
    if not (scale.isfinite().all() and shift.isfinite().all()):
        raise ModelError("weights that are not finite, or too large for float16, cannot be quantised; leave out int4")
    return Grouped(codes.T.contiguous(), scale, shift)


@torch.no_grad()
def divide(weight: Tensor) -> Grouped:
    """Quantise a matrix [N, K] whose training saw it so: the codes of each group divide its range evenly."""
    n, k = weight.shape
    groups = F.pad(weight.float(), (0, -k % GROUP_SIZE), mode="replicate").view(n, -1, GROUP_SIZE)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale, shift = ((high - low) / MAX_CODE).half(), low.half()
    codes = _codes(groups, scale.float(), shift.float()).view(n, -1)[:, :k]
    return Grouped(codes.to(torch.uint8), scale[..., 0], shift[..., 0])


def seen_divided(weight: Tensor) -> Tensor:
    """The matrix that `divide` makes of one, with the gradient of the matrix itself (Bengio et al. 2013)."""
    return weight + (divide(weight).weight() - weight.detach())


def _inverse_factor(moments: Tensor) -> Tensor:
    """The upper triangular U [K, K] with U^T U = moments^-1, from a Cholesky factorisation from the last row up."""
    factor = torch.linalg.cholesky(moments.flip(0, 1)).flip(0, 1)
    inverse: Tensor = torch.linalg.solve_triangular(factor, torch.eye(len(moments)), upper=True)
    return inverse


def _fit(weights: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and shift [N] of a group of columns [G, N], in float32 but rounded to float16.

    Among those tried they have the least sum of importance * (scale * code + shift - weight)^2 over the group.
    """
    low, high = weights.amin(0), weights.amax(0)
    weighted = importance[:, None] * weights
    total, sum_w = importance.sum(), weighted.sum(0)
    least, best_scale, best_shift = torch.full_like(low, torch.inf), high - low, low
    for steps in RANGE_STEPS:
        scale = (high - low) / steps
        codes = _codes(weights, scale, low + (steps - MAX_CODE) / 2 * scale)
        for _ in range(REFITS):
            sum_q, sum_qq, sum_qw = importance @ codes, importance @ codes.square(), (weighted * codes).sum(0)
            spread = total * sum_qq - sum_q * sum_q
            scale = _rounded(torch.where(spread > 0, (total * sum_qw - sum_q * sum_w) / spread, scale))
            shift = _rounded((sum_w - scale * sum_q) / total)
            codes = _codes(weights, scale, shift)
            error = importance @ (codes * scale + shift - weights).square_()
            better = error < least
            least = torch.where(better, error, least)
            best_scale, best_shift = torch.where(better, scale, best_scale), torch.where(better, shift, best_shift)
    return best_scale, best_shift


def _codes(weights: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The codes nearest to weights, as float32; 0 where the scale is 0, because then all weights equal the shift."""
    return (weights - shift).div_(scale).nan_to_num_(0).round_().clamp_(0, MAX_CODE)


def _rounded(x: Tensor) -> Tensor:
    return x.half().float()
