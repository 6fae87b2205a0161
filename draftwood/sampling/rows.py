"""Work on rows as long as a vocabulary: by the native library where it is there and the rows are its, else by PyTorch.

A row gets the same bits whatever rows are beside it. After a forward each operation of PyTorch or NumPy takes 10 to 40
microseconds, since its code has left the caches; so what a round does to a row is one call where it can be.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from ctypes import byref, c_double, c_float
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.core.row_tops import LogitsRow
from draftwood.errors import NonFiniteError
from draftwood.sampling import truncation
from draftwood.util.native_library import check, library, loaded_library

NOT_FINITE = "a next-token distribution is not finite (NaN or infinite logits)"
COLDEST, HOTTEST = 1e-30, 1e30  # beyond them nothing but ties is left, and all that is possible is equal, in float32


def softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The softmax of logits [..., V] over a temperature > 0, of their dtype."""
    temperature = clamped(temperature)
    if _is_native(logits) and not isinstance(lib := library(), str):
        logits = logits.contiguous()
        probs = torch.empty_like(logits)
        size = logits.shape[-1]
        rows = logits.numel() // max(size, 1)
        check(lib.dw_softmax(rows, size, logits.data_ptr(), 1 / temperature, probs.data_ptr()) != 0)
        return probs
    if temperature != 1:  # the largest becomes 0 first, so that no temperature overflows
        logits = (logits - logits.amax(-1, keepdim=True)).div_(temperature)
    return torch.softmax(logits, -1)


def softmax_at(start: int, size: int, temperature: float) -> Tensor:
    """`softmax` of the logits at an address."""
    probs = torch.empty(size, dtype=torch.float32)
    check(loaded_library().dw_softmax(1, size, start, 1 / clamped(temperature), probs.data_ptr()) != 0)
    return probs


def excess(p: Tensor, q: Tensor | None, factor: float, token: int) -> tuple[Tensor, float]:
    """max(0, a p - q) [V] for a factor a, and its sum; `q` None is the point mass at `token`, which becomes 0."""
    if (start := address(p)) is not None and (q is None or (beside := address(q)) is not None):
        lib, rest = loaded_library(), torch.empty_like(p)
        drafts, without = (None, token) if q is None else (beside, -1)
        return rest, lib.dw_excess(p.shape[0], start, drafts, factor, without, rest.data_ptr())
    rest = p * factor
    if q is None:
        rest[token] = 0.0
    else:
        rest.sub_(q).clamp_(min=0.0)
    return rest, float(rest.sum())


def block_sums(weights: Tensor, block: int) -> npt.NDArray[np.float64]:
    """The sums of each `block` neighbours of weights [V] on the CPU, and of those left, as float64."""
    size = weights.shape[0]
    sums = np.empty(-(-size // block))
    if (start := address(weights)) is not None:
        check(loaded_library().dw_block_sums(size, block, start, sums.ctypes.data) != 0)
        return sums
    whole = size // block
    sums[:whole] = weights[: whole * block].double().view(-1, block).sum(-1).numpy()
    sums[whole:] = weights[whole * block :].double().sum().numpy()
    return sums


def draws(weights: Tensor, us: Sequence[float]) -> list[int] | None:
    """The places where the running sum of weights [V] passes each u in [0, 1) of the whole; None: for PyTorch to say.

    NonFiniteError where the weights are no distribution.
    """
    if (start := address(weights)) is None:
        return None
    places, at = array("q", bytes(8 * len(us))), array("d", us)
    into, numbers = places.buffer_info()[0], at.buffer_info()[0]
    if loaded_library().dw_draws(weights.shape[0], start, len(us), numbers, into) != 0:
        raise NonFiniteError(NOT_FINITE)
    return places.tolist()


def draw_logits(start: int, size: int, best: int, temperature: float, u: float) -> tuple[int, float]:
    """One draw for the softmax of the logits at an address over a temperature, and the token's log-probability.

    `best` is the place of the largest.
    """
    log_prob = c_double()
    scale = 1 / clamped(temperature)
    token = loaded_library().dw_draw_logits(size, start, best, scale, u, byref(log_prob))
    if token < 0:
        raise NonFiniteError(NOT_FINITE)
    return token, log_prob.value


def largest(logits: Tensor, count: int, above: float = -math.inf) -> list[list[int]]:
    """The `count` largest possible tokens of each row of logits [n, V], best first; of equals the first, as argmax.

    Those are possible whose logits are above a number.
    """
    if count == 1:
        return [[token] for token in best(logits)]
    return [truncation.ranked(row, count, above).tolist() for row in logits.cpu().numpy()]


def best(logits: Tensor) -> list[int]:
    """The place of the largest in each row of logits [n, V], the first among ties."""
    result: list[int] = (logits if logits.is_cuda else logits.numpy()).argmax(-1).tolist()  # NumPy takes a tenth
    return result


def element(row: Tensor, place: int) -> float:
    """One number of a row [V]."""
    return float(row[place] if row.is_cuda else row.numpy()[place])  # NumPy takes a quarter


def normalised(rows: Sequence[LogitsRow]) -> list[LogitsRow]:
    """Rows [V] whose numbers less `log_sum` are the log-softmax of some logits: those with a `log_sum` as they are."""
    others = [row.logits for row in rows if row.log_sum is None]
    if not others:
        return list(rows)
    made = iter(torch.log_softmax(torch.stack(others), -1))
    return [LogitsRow(next(made), 0.0) if row.log_sum is None else row for row in rows]


def as_rows(log_probs: Tensor) -> list[LogitsRow]:
    """Log-probabilities [n, V] as rows."""
    return [LogitsRow(row, 0.0) for row in log_probs]


def log_prob(row: LogitsRow, token: int) -> float:
    """The log-probability of a token by a row that is `normalised`."""
    assert row.log_sum is not None
    return element(row.logits, token) - row.log_sum


def log_probs(pairs: Sequence[tuple[LogitsRow, int]]) -> list[float]:
    """`log_prob` of several rows and tokens: a device is waited for once."""
    if not (pairs and pairs[0][0].logits.is_cuda):
        return [log_prob(row, token) for row, token in pairs]
    logits = torch.stack([row.logits[token] for row, token in pairs]).tolist()
    return [logit - (row.log_sum or 0.0) for logit, (row, _) in zip(logits, pairs, strict=True)]


class Leading(NamedTuple):
    """The tokens of a row's largest log-probabilities, best first, of equals the lowest first; no impossible ones."""

    tokens: Sequence[int]
    log_probs: Sequence[float]


def leading(rows: Sequence[LogitsRow], count: int) -> list[Leading]:
    """The `count` most probable tokens by each `normalised` row. NonFiniteError where one is no distribution."""
    starts = array("Q")
    for row in rows:
        if (start := address(row.logits)) is None:
            return [leading_of(row, *_ranked(row.logits, count)) for row in rows]
        starts.append(start)
    size = rows[0].logits.shape[0]
    count = min(count, size)
    places, values = array("q", bytes(8 * count * len(rows))), array("f", bytes(4 * count * len(rows)))
    into, numbers, at = (part.buffer_info()[0] for part in (places, values, starts))
    check(loaded_library().dw_leading(len(rows), size, at, count, into, numbers) != 0)
    tokens, best = places.tolist(), values.tolist()
    return [
        leading_of(row, tokens[first : first + count], best[first : first + count])
        for first, row in zip(range(0, len(tokens), count), rows, strict=True)
    ]


def _ranked(logits: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The places of the largest, best first, and these numbers."""
    whole = logits.cpu().numpy()
    places = truncation.ranked(whole, count)
    return places.tolist(), whole[places].tolist()


def leading_of(row: LogitsRow, tokens: list[int], logits: list[float]) -> Leading:
    """The same where the tokens and their logits are known; behind the last one there may be -1."""
    log_sum = row.log_sum
    assert log_sum is not None
    if tokens and tokens[-1] < 0:
        tokens = tokens[: tokens.index(-1)]
    if not (tokens and math.isfinite(log_sum) and math.isfinite(logits[0])):
        raise NonFiniteError(NOT_FINITE)
    return Leading(tokens, [logit - log_sum for logit in logits[: len(tokens)]])


def number(start: int, place: int) -> float:
    """One of the numbers (float32) at an address."""
    return c_float.from_address(start + 4 * place).value


def address(rows: Tensor) -> int | None:
    """Where rows [..., V] lie that the native library can read as they are; None: PyTorch does."""
    usable = _is_native(rows) and rows.is_contiguous() and not isinstance(library(), str)
    return rows.data_ptr() if usable else None


def _is_native(rows: Tensor) -> bool:
    return rows.dtype == torch.float32 and rows.device.type == "cpu" and not rows.requires_grad


def clamped(temperature: float) -> float:
    """A temperature that float32 can divide by."""
    return min(max(temperature, COLDEST), HOTTEST)
