"""How many beams a layer should keep: DSBD Eq. 2-7.

With p_1 = p and p_{j+1} = norm(max(0, p_j - q)) [Eq. 4], induction gives p_j = max(0, p - c_j·q) / N_j with c_1 = 0,
N_1 = 1, c_{j+1} = c_j + N_j and N_{j+1} = sum max(0, p - c_{j+1}·q). So a chain of residuals is two numbers per
rejection, 1 - alpha_j = N_{j+1}/N_j, and no vector is ever renormalised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import ConfigurationError
from draftwood.sampling.row_shares import RowShares
from draftwood.sampling.rows import element
from draftwood.sampling.truncation import Places
from draftwood.verify.joint import Probabilities, Shares

PACKED = 8  # of so many rejections, one leaves out what is no longer positive
SHORT = 16  # series that are multiplied sooner than NumPy begins
ROUNDING = 1e-12  # sums of probabilities that should be 1 may miss it by this much


class ResidualChain:
    """The residuals of p [n] after 0, 1, 2, ... rejections in a row, computed as they are asked for.

    q [m] lies at the `places` [m] of p, and is 0 elsewhere; without places it is [n]. Few numbers come as lists, which
    are soon added up.
    """

    def __init__(self, p: Shares, q: Tensor | list[float], places: Places | list[int] | None = None) -> None:
        self._whole, self._places = p, places
        self._p: Probabilities | list[float]
        if isinstance(p, RowShares):
            assert isinstance(places, list)  # more of them are sooner looked up in all of p
            self._p = [p.at(place) for place in places]
        elif isinstance(places, list):
            self._p = [element(p, place) for place in places]
        else:
            self._p = p.numpy() if places is None else p.numpy()[places].astype(np.float64)
        self._q: Probabilities | list[float] = q if isinstance(q, list) else q.numpy()
        beside = places is not None and len(places) < len(p)
        self._elsewhere = max(0.0, 1.0 - _total(self._p)) if beside else 0.0  # p where q is 0
        self._left = self._p, self._q  # where p - c·q can still be positive: c only grows
        self._shift = [0.0]
        self._mass = [1.0]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(p, q) where q lies."""
        return list(zip(self._p, self._q, strict=True))

    def _step(self, rejections: int) -> tuple[float, float]:
        """(c, N) after that many rejections; N is 0 where so many rejections have probability zero."""
        while len(self._mass) <= rejections:
            shift = self._shift[-1] + self._mass[-1]
            mass = 0.0
            if self._mass[-1] > 0:
                p, q = self._left
                rest = _positive_part(p, q, shift)
                mass = self._elsewhere + _total(rest)
                if len(self._mass) % PACKED == 0 and not isinstance(rest, list):  # looking takes longer than a step
                    positive = rest > 0
                    self._left = p[positive], q[positive]
            self._shift.append(shift)
            self._mass.append(mass)
        return self._shift[rejections], self._mass[rejections]

    def value(self, p: float, q: float, rejections: int) -> float:
        """p'(x) after `rejections` in a row, for an outcome with p(x) = p and q(x) = q."""
        shift, mass = self._step(rejections)
        return max(0.0, p - shift * q) / mass if mass > 0 else p

    def residual(self, rejections: int) -> Shares:
        """p' [n] after `rejections` in a row; p itself where these have probability zero (p and q agree).

        Of `RowShares` it is p' over some factor.
        """
        shift, mass = self._step(rejections)
        if mass <= 0 or rejections == 0:
            return self._whole
        rest = _positive_part(self._p, self._q, shift)
        if isinstance(self._whole, RowShares):
            assert self._places is not None
            return self._whole.changed(dict(zip(self._places, rest, strict=True)))
        if self._places is not None:
            whole = self._whole.numpy().copy()
            whole[self._places] = rest
            rest = whole
        rest /= mass
        return torch.from_numpy(rest)

    def alphas(self, count: int) -> list[float]:
        """alpha_1 .. alpha_count: the chance to accept the j-th draw after j - 1 rejections [Eq. 4]."""
        self._step(count)
        masses = self._mass
        return [1.0 - min(1.0, masses[j + 1] / masses[j]) if masses[j] > 0 else 1.0 for j in range(count)]


def _positive_part(p: Any, q: Any, shift: float) -> Any:
    """max(0, p - shift·q), of arrays or of lists."""
    if isinstance(p, list):
        return [max(0.0, mine - shift * other) for mine, other in zip(p, q, strict=True)]
    rest = p - shift * q
    return np.maximum(rest, 0.0, out=rest)


def _total(values: Probabilities | list[float]) -> float:
    return math.fsum(values) if isinstance(values, list) else float(values.sum())


def acceptance_counts(alphas: Sequence[float]) -> list[float]:
    """P(m, k) for m = len(alphas) and k = 0..m [Eq. 2-3], with P(m, 0) = prod (1 - alpha_j), which the paper omits."""
    count = len(alphas)
    first, none = [], [1.0]  # chance that the i-th is the first accepted; that none of i is
    for alpha in alphas:
        first.append(alpha * none[-1])
        none.append(none[-1] * (1.0 - alpha))
    column = none  # P(0..m, k) for the present k
    result = [none[count]]
    for _ in range(count):
        column = [0.0, *_product(first, column)]
        result.append(column[count])
    return result


def _product(first: list[float], other: list[float]) -> list[float]:
    """The first len(first) numbers of the product of two series."""
    if len(first) > SHORT:
        return np.convolve(first, other)[: len(first)].tolist()  # type: ignore[no-any-return]
    return [sum(map(mul, first, other[place::-1])) for place in range(len(first))]


def dynamic_width(counts: Sequence[float], threshold: float) -> int:
    """max{K <= m : chance of at least K acceptances >= t} from P(m, 0..m) [Eq. 7, whose sum starts at k = 0].

    K stops at the number of draws, where t = 0 would let it grow for ever.
    """
    tail = 0.0
    for k in range(len(counts) - 1, 0, -1):
        tail += counts[k]
        if tail >= threshold - ROUNDING:
            return k
    return 0


@dataclass(frozen=True, slots=True)
class WidthRule:
    """W of a layer: `fixed`, or max(minimum, the dynamic width at `threshold`) [Eq. 6].

    `draws` says which number of draws m the dynamic width counts on: those whose parents survived, or all W_S that
    were drafted. None chooses what is exact: surviving ones with replacement, drafted ones without.
    """

    fixed: int | None = None
    threshold: float = 0.9
    minimum: int = 1
    draws: str | None = None

    def __post_init__(self) -> None:
        if self.fixed is not None and self.fixed < 1:
            raise ConfigurationError(f"a beam width must be at least 1, not {self.fixed}")
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"the width threshold t must lie in [0, 1], not {self.threshold}")
        if self.minimum < 1:
            raise ConfigurationError(f"the minimum width must be at least 1, not {self.minimum}")
        if self.draws not in (None, "surviving", "drafted"):
            raise ConfigurationError(f"draws must be 'surviving' or 'drafted', not {self.draws!r}")

    def width(self, chain: ResidualChain, surviving: int, drafted: int, replacement: bool) -> tuple[int, float, float]:
        """(W^(l), chance that so many draws are accepted, chance beta of the minimum width) from p, q and the draws.

        Without replacement the chances are those of draws with replacement: a rule for the width, no law.
        """
        draws = self.draws or ("surviving" if replacement else "drafted")
        if draws == "surviving" and not replacement and self.fixed is None:
            raise ConfigurationError(
                "without replacement the width must not depend on how many draws survive; set draws='drafted'"
            )
        counts = acceptance_counts(chain.alphas(surviving if draws == "surviving" else drafted))
        width = self.fixed or max(self.minimum, dynamic_width(counts, self.threshold))
        return width, math.fsum(counts[width:]), math.fsum(counts[self.fixed or self.minimum :])
