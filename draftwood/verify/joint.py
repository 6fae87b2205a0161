"""The joint distribution of beam and next token, p_beam of DSBD Eq. 1, over the outcomes that are possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.core.records import Outcome
from draftwood.core.row_tops import LogitsRow
from draftwood.errors import NonFiniteError
from draftwood.sampling.distributions import FEW, Streams, draw_distinct, draws, truncated, warp
from draftwood.sampling.drawing import SMALL
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.row_shares import RowShares
from draftwood.sampling.rows import Leading, best, element
from draftwood.sampling.truncation import Places

Probabilities: TypeAlias = npt.NDArray[Any]  # float32 where there are many
Shares: TypeAlias = Tensor | RowShares  # weights [n] of any sum

NOT_FINITE = "a joint distribution of beams is not finite (NaN or infinite logits)"


class Randomness(Protocol):
    """Where coins and draws come from; enumeration puts its own here."""

    def coin(self, chance: float) -> bool: ...

    def pick(self, probs: Shares) -> int: ...

    def picks(self, probs: Shares, count: int) -> list[int]: ...

    def distinct(self, probs: Tensor, count: int) -> list[int]: ...


class Seeded:
    """Randomness from one purpose of a request's streams."""

    def __init__(self, streams: Streams, purpose: Literal["draft", "accept"]) -> None:
        self._streams = streams
        self._purpose = purpose

    def coin(self, chance: float) -> bool:
        """True with that chance."""
        return self._streams.uniform(self._purpose) < chance

    def pick(self, probs: Shares) -> int:
        """One index of weights [n]."""
        return self.picks(probs, 1)[0]

    def picks(self, probs: Shares, count: int) -> list[int]:
        """`count` independent indices of weights [n]: as so many calls of `pick`."""
        us = [self._streams.uniform(self._purpose) for _ in range(count)]
        return probs.draws(us) if isinstance(probs, RowShares) else draws(probs, us)

    def distinct(self, probs: Tensor, count: int) -> list[int]:
        """Up to `count` distinct indices of weights [n], drawn one after the other."""
        return draw_distinct(probs[None], count, self._streams, self._purpose)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """Outcomes (beam, token) in ascending order: those of `keys`, or where that is None a grid.

    A beam is named by the caller's label, for example its forest node, so that p and q agree on names. The key of
    (beam, token) is beam·(V + 1) + token + 1. A grid has every token of the ascending `beams`, from FINISHED (`first`
    0) or from token 0 (`first` 1) on: a large vocabulary that nothing was cut from needs no keys. With keys `beams` are
    those that outcomes may be of, where that is known.
    """

    vocab_size: int
    keys: Places | None = None
    beams: tuple[int, ...] = ()
    first: int = 1

    def __len__(self) -> int:
        return self.columns * len(self.beams) if self.keys is None else len(self.keys)

    @property
    def columns(self) -> int:
        """Outcomes of each beam of a grid."""
        return self.vocab_size + 1 - self.first

    def all_keys(self) -> Places:
        """The keys [n], ascending."""
        if self.keys is not None:
            return self.keys
        begins = np.array(self.beams, dtype=np.int64) * (self.vocab_size + 1) + self.first
        return (begins[:, None] + np.arange(self.columns)).reshape(-1)

    def name(self, place: int) -> Outcome:
        """(beam, token) of one place."""
        if self.keys is None:
            row, column = divmod(place, self.columns)
            return self.beams[row], column + self.first - 1
        beam, token = divmod(int(self.keys[place]), self.vocab_size + 1)
        return beam, token - 1

    def places(self, keys: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
        """The places of outcomes by their keys, and which of them are among these."""
        if self.keys is None:
            beam, column = np.divmod(keys, self.vocab_size + 1)
            beams, column = np.array(self.beams, dtype=np.int64), column - self.first
            row = np.minimum(beams.searchsorted(beam), len(beams) - 1)
            return row * self.columns + column, (beams[row] == beam) & (column >= 0)
        places = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return places, self.keys[places] == keys

    def place(self, outcome: Outcome) -> int | None:
        """The place of (beam, token); None where it is not among them."""
        beam, column = outcome[0], outcome[1] + 1
        if self.keys is None:
            if beam not in self.beams or column < self.first:
                return None
            return self.beams.index(beam) * self.columns + column - self.first
        key = beam * (self.vocab_size + 1) + column
        place = int(self.keys.searchsorted(key))
        return place if place < len(self.keys) and self.keys[place] == key else None


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Outcomes (beam, token) in the order of their support, and their probabilities `shares` [n], which sum to 1.

    They are float64, because residuals subtract nearly equal numbers; a grid of a large vocabulary keeps the dtype of
    the logits, or computes what somebody looks at (`RowShares`). A grid may hold zeros. They lie on the CPU.
    """

    support: Support
    shares: Shares

    def __len__(self) -> int:
        return len(self.support)

    @property
    def prob(self) -> Tensor:
        """All probabilities [n]."""
        return self.shares.dense() if isinstance(self.shares, RowShares) else self.shares

    @property
    def possible(self) -> int:
        """Outcomes of positive probability."""
        return int(np.count_nonzero(self.prob.numpy()))

    def table(self) -> dict[Outcome, float]:
        """The probabilities of the possible (beam, token), in order."""
        values = self.prob.numpy()
        return {self.support.name(place): float(values[place]) for place in np.flatnonzero(values).tolist()}

    def probs(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Probabilities of outcomes; 0 where one is not among these."""
        places = [self.support.place(outcome) for outcome in outcomes]
        if isinstance(self.shares, RowShares):
            return [0.0 if at is None else self.shares.at(at) for at in places]
        values = self.shares.numpy()
        return [0.0 if at is None else float(values[at]) for at in places]

    def restrict(self, beams: Sequence[int]) -> Joint:
        """Only the outcomes of some beams, renormalised (spec §3 step 2, §9.2); empty where nothing is left."""
        support = self.support
        if support.beams and set(support.beams) <= set(beams):
            return self
        prob = self.prob.numpy()
        if support.keys is None:
            rows = [row for row, beam in enumerate(support.beams) if beam in beams]
            support = replace(support, beams=tuple(support.beams[row] for row in rows))
            prob = prob.reshape(-1, support.columns)[rows].reshape(-1)
        else:
            of_beam = support.keys // (support.vocab_size + 1)
            keep = of_beam == beams[0]
            for beam in beams[1:]:
                keep |= of_beam == beam
            if keep.all():
                return self
            support, prob = replace(support, keys=support.keys[keep], beams=tuple(beams)), prob[keep]
        total = float(prob.sum(dtype=np.float64))
        if total <= 0:
            return Joint(Support(support.vocab_size, np.empty(0, np.int64)), torch.empty(0, dtype=torch.float64))
        return Joint(support, torch.from_numpy(prob / prob.dtype.type(total)))

    def draws(self, count: int, randomness: Randomness, replacement: bool = True) -> list[Outcome]:
        """`count` draws in order: iid, or distinct (all outcomes where there are fewer)."""
        if not len(self):
            return []
        places = randomness.picks(self.shares, count) if replacement else randomness.distinct(self.prob, count)
        return [self.support.name(place) for place in places]


def few_within(q: Joint, support: Support) -> dict[Outcome, tuple[int, float]] | None:
    """The places of q's outcomes that lie in a support, and q there; None where many are, which are for `within`."""
    if len(q) > FEW:
        return None
    row = support.vocab_size + 1
    named = ((key // row, key % row - 1) for key in q.support.all_keys().tolist())
    found = ((outcome, support.place(outcome), prob) for outcome, prob in zip(named, q.prob.tolist(), strict=True))
    return {outcome: (place, prob) for outcome, place, prob in found if place is not None}


def within(q: Joint, support: Support) -> tuple[Places | None, Tensor]:
    """(places [m], q there) of q's outcomes that lie in a support; without places these are all, in their order."""
    ours = q.support
    if ours.keys is None and support.keys is None and (ours.beams, ours.first) == (support.beams, support.first):
        return None, q.prob
    places, inside = support.places(ours.all_keys())
    if not inside.all():
        return places[inside], torch.from_numpy(q.prob.numpy()[inside])
    return places, q.prob


def align(p: Joint, q: Joint) -> tuple[Support, Tensor, Tensor]:
    """(the union of two supports, p [u], q [u]) over it."""
    ours, theirs = p.support, q.support
    if ours.keys is None and theirs.keys is None and (ours.beams, ours.first) == (theirs.beams, theirs.first):
        return ours, p.prob, q.prob
    mine, others = ours.all_keys(), theirs.all_keys()
    if np.array_equal(mine, others):
        return ours, p.prob, q.prob
    keys = np.concatenate((mine, others))
    keys.sort(kind="stable")  # two runs that are sorted are merged
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
    aligned = []
    for key, joint in ((mine, p), (others, q)):
        values = np.zeros(len(keys))
        values[keys.searchsorted(key)] = joint.prob.numpy()
        aligned.append(torch.from_numpy(values))
    return Support(ours.vocab_size, keys), aligned[0], aligned[1]


def joint_of_likeliest(
    scores: Sequence[float], rows: Sequence[Leading | None], labels: Sequence[int], vocab: int, params: SamplingParams
) -> Joint:
    """As `joint_of` the warped joint of beams, of each of which a few tokens are possible; None: it has ended."""
    weighed: list[tuple[int, float]] = []  # keys, and logarithms of weights
    for label, score, row in zip(labels, scores, rows, strict=True):
        begin = label * (vocab + 1)
        if row is None:
            weighed.append((begin, score))
        else:
            named = zip(row.tokens, row.log_probs, strict=True)
            weighed += [(begin + token + 1, score + log_prob) for token, log_prob in named]
    weighed.sort()
    kept, logs = np.array([key for key, _ in weighed], dtype=np.int64), [log for _, log in weighed]
    if params.greedy or params.truncates:
        places, prob = entries(torch.tensor(logs, dtype=torch.float64), params)
    else:  # so few are soon computed
        places, most = None, max(logs)
        weights = [math.exp((log - most) / params.temperature) for log in logs]
        prob = np.array(weights) / math.fsum(weights)
    return Joint(Support(vocab, kept if places is None else kept[places], tuple(labels)), torch.from_numpy(prob))


def joint_of(
    scores: Sequence[float],
    rows: Sequence[LogitsRow | None],
    params: SamplingParams,
    mode: Literal["joint", "token"] = "joint",
    labels: Sequence[int] | None = None,
) -> Joint:
    """p_beam over beams and tokens from joint log-likelihoods `scores` [A] and `normalised` rows [A].

    A beam without a row (None) has ended: it has the one outcome FINISHED at its own likelihood. `labels` [A] (default
    0..A-1) name the beams. mode "joint" warps the joint (paper), "token" each beam's conditional first, a finished beam
    keeping its mass. Temperature 0 in mode "joint" is the one best outcome, ties to the lowest label, then token.
    """
    labels = range(len(scores)) if labels is None else labels
    named, scores, rows = zip(*sorted(zip(labels, scores, rows, strict=True), key=lambda one: one[0]), strict=True)
    vocab = next(len(row.logits) for row in rows if row is not None)
    first = 0 if None in rows else 1
    columns = vocab + 1 - first
    if mode == "joint" and len(rows) * columns > SMALL and not (params.greedy or params.truncates):
        shares = RowShares.of(scores, rows, params.temperature)
        if shares is not None:
            return Joint(Support(vocab, None, named, first), shares)
    log_p = torch.stack([row.logits - row.log_sum if row.log_sum else row.logits for row in rows if row is not None])
    precise = torch.promote_types(log_p.dtype, torch.float32)
    likelihoods = torch.tensor(scores, dtype=precise, device=log_p.device)
    done = [row is None for row in rows]
    if mode == "joint":
        places, prob = entries(_log_joint(likelihoods, log_p, done).flatten(), params)
    else:
        places, prob = _positive(_per_beam(likelihoods, warp(log_p, params), done).flatten())
    if places is None:
        return Joint(Support(vocab, None, named, first), torch.from_numpy(prob))
    begins = np.array(named, dtype=np.int64) * (vocab + 1) + first  # keys of the first column
    ends = places.searchsorted(np.arange(1, len(rows)) * columns)  # of each beam's, which is cheaper than dividing
    shift = begins - np.arange(len(rows)) * columns
    keys = places + np.repeat(shift, np.diff(ends, prepend=0, append=len(places)))
    return Joint(Support(vocab, keys), torch.from_numpy(prob))


def _log_joint(scores: Tensor, log_p: Tensor, done: Sequence[bool]) -> Tensor:
    """log p(x)·p(v|x) [A, V]; with finished beams [A, V + 1], FINISHED first."""
    if not any(done):
        return scores[:, None] + log_p
    over = torch.tensor(done, device=log_p.device)
    result = scores.new_full((len(done), log_p.shape[-1] + 1), -torch.inf)
    result[~over, 1:] = (scores[~over, None] + log_p).to(result.dtype)
    result[over, 0] = scores[over]
    return result


def _per_beam(scores: Tensor, probs: Tensor, done: Sequence[bool]) -> Tensor:
    """The same of warped conditionals: norm(p(x))·T∘p(v|x)."""
    if any(done):
        over = torch.tensor(done, device=probs.device)
        whole = probs.new_zeros(len(done), probs.shape[-1] + 1)
        whole[~over, 1:] = probs
        whole[over, 0] = 1.0
        return torch.softmax(scores, -1)[:, None] * whole
    return torch.softmax(scores, -1)[:, None] * probs


def _positive(dense: Tensor) -> tuple[Places | None, Probabilities]:
    """(places ascending, or None for all; probabilities that sum to 1) of weights [n].

    Entries of weight 0 are left out, unless few are.
    """
    weights = dense.cpu().numpy()
    size = len(weights)
    whole = weights.min() > 0 or 4 * np.count_nonzero(weights) > size  # else leaving them out saves more than it takes
    places = None if whole else np.flatnonzero(weights)
    prob = weights if whole and size > SMALL else (weights if whole else weights[places]).astype(np.float64)
    total = float(prob.sum(dtype=np.float64))
    if not np.isfinite(total) or total <= 0:
        raise NonFiniteError(NOT_FINITE)
    return places, prob / prob.dtype.type(total)


def entries(logits: Tensor, params: SamplingParams) -> tuple[Places | None, Probabilities]:
    """The positive entries of warp(logits [n], params): (places ascending or None: all, probabilities that sum to 1).

    Where few are kept no more than these are ever looked at.
    """
    if params.greedy:
        place = best(logits[None])[0]
        if not math.isfinite(element(logits, place)):
            raise NonFiniteError(NOT_FINITE)
        return np.array([place]), np.ones(1)
    if not params.truncates or logits.is_cuda:
        return _positive(warp(logits, params))
    places, probs = truncated(logits, params, torch.float64)
    kept, prob = _positive(probs)
    if places is None:
        return kept, prob
    return places.numpy() if kept is None else places.numpy()[kept], prob
