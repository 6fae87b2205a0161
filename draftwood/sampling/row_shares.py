"""Shares of beams and tokens in rows as long as a vocabulary, computed where somebody looks at them or draws."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftwood.core.row_tops import LogitsRow
from draftwood.errors import NonFiniteError
from draftwood.sampling.rows import NOT_FINITE, address, clamped, number
from draftwood.util.native_library import loaded_library

BLOCK = 512  # tokens whose shares the native library sums up together: that of native/src/rows.h


class RowShares:
    """The shares of beams and tokens, e^((score + log-probability) / temperature) over the sum of all, on a grid.

    Beam a has `ends` + V places: with `ends` one in front, which holds all of a beam that has ended. The share of a
    token is factor[a] e^(scale (logit - top[a])). At temperature 1 they are known without a look at the logits; else,
    and for draws, one pass over each row sums them up.
    """

    __slots__ = (
        "_changed",
        "_dense",
        "_ends",
        "_factor",
        "_given",
        "_kept",
        "_scale",
        "_size",
        "_starts",
        "_sums",
        "_top",
    )

    def __init__(
        self, scores: Sequence[float], rows: Sequence[LogitsRow | None], starts: array[int], temperature: float
    ) -> None:
        self._kept = rows  # whose memory is read
        self._starts = starts
        self._size = next(row.logits.shape[0] for row in rows if row is not None)
        self._ends = int(None in rows)
        self._scale = 1 / clamped(temperature)
        self._top = array("d", [0.0 if row is None else row.log_sum or 0.0 for row in rows])
        self._given = array("d", scores), self._top[:]
        self._sums: array[float] | None = None
        self._changed: Mapping[int, float] = {}
        self._dense: Tensor | None = None
        if self._scale == 1:
            most = max(scores)
            factors = [math.exp(score - most) for score in scores]
            whole = math.fsum(factors)
            self._factor = array("d", [factor / whole for factor in factors])
            if not (math.isfinite(whole) and all(map(math.isfinite, self._top))):
                raise NonFiniteError(NOT_FINITE)
        else:
            self._factor = array("d", bytes(8 * len(rows)))
            self._sum()

    @classmethod
    def of(cls, scores: Sequence[float], rows: Sequence[LogitsRow | None], temperature: float) -> RowShares | None:
        """Those of `normalised` rows [A] and log-likelihoods [A]; None: not all are the native library's to read.

        A beam without a row has ended. NonFiniteError where shares are not finite.
        """
        starts = array("Q")
        for row in rows:
            if (start := 0 if row is None else address(row.logits)) is None:
                return None
            starts.append(start)
        return cls(scores, rows, starts, temperature)

    def __len__(self) -> int:
        return len(self._starts) * (self._ends + self._size)

    def at(self, place: int) -> float:
        """The share at a place."""
        if place in self._changed:
            return self._changed[place]
        beam, column = divmod(place, self._ends + self._size)
        start, token = self._starts[beam], column - self._ends
        if not start or token < 0:  # all of a beam that has ended lies before its tokens
            return self._factor[beam] if not start and token < 0 else 0.0
        return self._factor[beam] * math.exp(self._scale * (number(start, token) - self._top[beam]))

    def changed(self, shares: Mapping[int, float]) -> RowShares:
        """The same, to be drawn from, where some places have less than their shares."""
        self._sum()
        other: RowShares = object.__new__(RowShares)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._changed, other._dense = dict(sorted(shares.items())), None
        return other

    def draws(self, us: Sequence[float]) -> list[int]:
        """The places where the running sum of shares passes each u in [0, 1) of the whole."""
        sums = self._sum()
        where, weights = array("q", self._changed), array("d", self._changed.values())
        places, at = array("q", bytes(8 * len(us))), array("d", us)
        head = len(self._starts), self._size, self._ends, _at(self._starts), self._scale
        rows = *head, _at(self._top), _at(self._factor), _at(sums)
        if loaded_library().dw_shares_draws(*rows, len(where), _at(where), _at(weights), len(us), _at(at), _at(places)):
            raise NonFiniteError(NOT_FINITE)
        return places.tolist()

    def dense(self) -> Tensor:
        """All shares [A·(ends + V)]."""
        if self._dense is None:
            self._sum()
            shares = self._dense = torch.empty(len(self))
            head = len(self._starts), self._size, self._ends, _at(self._starts), self._scale
            loaded_library().dw_shares_all(*head, _at(self._top), _at(self._factor), shares.data_ptr())
            if self._changed:
                shares[[*self._changed]] = torch.tensor([*self._changed.values()])
        return self._dense

    def _sum(self) -> array[float]:
        """The sums of each BLOCK tokens of each beam, over its factor."""
        if self._sums is None:
            blocks = -(-self._size // BLOCK)
            self._sums = array("d", bytes(8 * blocks * len(self._starts)))
            scores, log_sums = self._given
            head = len(self._starts), self._size, _at(self._starts), _at(scores), _at(log_sums), self._scale
            if loaded_library().dw_shares(*head, _at(self._top), _at(self._factor), _at(self._sums)):
                raise NonFiniteError(NOT_FINITE)
        return self._sums


def _at(numbers: array[int] | array[float]) -> int:
    return numbers.buffer_info()[0]
