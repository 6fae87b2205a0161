"""The joint distribution of beam and next token, p_beam of DSBD Eq. 1, over its non-zero outcomes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwood.core.records import Outcome
from draftwood.errors import NonFiniteError
from draftwood.sampling.distributions import Streams, draw, draw_distinct, draws, warp
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.truncation import leading

Places: TypeAlias = npt.NDArray[np.int64]
Probabilities: TypeAlias = npt.NDArray[np.float64]

NOT_FINITE = "a joint distribution of beams is not finite (NaN or infinite logits)"


class Randomness(Protocol):
    """Where coins and draws come from; enumeration puts its own here."""

    def coin(self, chance: float) -> bool: ...

    def pick(self, probs: Tensor) -> int: ...

    def picks(self, probs: Tensor, count: int) -> list[int]: ...

    def distinct(self, probs: Tensor, count: int) -> list[int]: ...


class Seeded:
    """Randomness from one purpose of a request's streams."""

    def __init__(self, streams: Streams, purpose: Literal["draft", "accept"]) -> None:
        self._streams = streams
        self._purpose = purpose

    def coin(self, chance: float) -> bool:
        """True with that chance."""
        return self._streams.uniform(self._purpose) < chance

    def pick(self, probs: Tensor) -> int:
        """One index of weights [n]."""
        return draw(probs, self._streams.uniform(self._purpose))

    def picks(self, probs: Tensor, count: int) -> list[int]:
        """`count` independent indices of weights [n]: as so many calls of `pick`."""
        return draws(probs, [self._streams.uniform(self._purpose) for _ in range(count)])

    def distinct(self, probs: Tensor, count: int) -> list[int]:
        """Up to `count` distinct indices of weights [n], drawn one after the other."""
        return draw_distinct(probs[None], count, self._streams, self._purpose)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Outcomes (beam, token) of positive probability: `key` [n] ascending, `prob` [n] float64 that sums to 1.

    A beam is named by the caller's label, for example its forest node, so that p and q agree on names. The key of
    (beam, token) is beam·(V + 1) + token + 1; ties and order are by beam, then token. Probabilities are float64
    whatever the logits were: residuals subtract nearly equal numbers, and after truncation there are few. Both lie on
    the CPU, where work on so few numbers takes no time.
    """

    key: Tensor
    prob: Tensor
    vocab_size: int

    def __len__(self) -> int:
        return self.key.shape[0]

    @property
    def beam(self) -> Tensor:
        """Beam labels [n]."""
        return self.key.div(self.vocab_size + 1, rounding_mode="floor")

    @property
    def token(self) -> Tensor:
        """Tokens [n], FINISHED where a finished beam stays."""
        return self.key.remainder(self.vocab_size + 1) - 1

    def key_of(self, outcome: Outcome) -> int:
        """The key of (beam, token), whether or not it has positive probability."""
        return outcome[0] * (self.vocab_size + 1) + outcome[1] + 1

    def outcome(self, index: int) -> Outcome:
        """(beam, token) of one place."""
        return self.name(int(self.key[index]))

    def name(self, key: int) -> Outcome:
        """(beam, token) of a key."""
        beam, token = divmod(key, self.vocab_size + 1)
        return beam, token - 1

    def outcomes(self) -> list[Outcome]:
        """All (beam, token) in order."""
        return [self.name(key) for key in self.key.tolist()]

    def probs(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Probabilities of outcomes; 0 where one is not among these."""
        key = self.key.numpy()
        sought = np.array([self.key_of(outcome) for outcome in outcomes], dtype=np.int64)
        places = key.searchsorted(sought).clip(max=len(key) - 1)
        found: list[float] = np.where(key[places] == sought, self.prob.numpy()[places], 0.0).tolist()
        return found

    def restrict(self, beams: Sequence[int]) -> Joint:
        """Only the outcomes of some beams, renormalised (spec §3 step 2, §9.2); empty where nothing is left."""
        key, prob = self.key.numpy(), self.prob.numpy()
        of_beam = key // (self.vocab_size + 1)
        keep = of_beam == beams[0]
        for beam in beams[1:]:
            keep |= of_beam == beam
        if keep.all():
            return self
        return Joint(torch.from_numpy(key[keep]), torch.from_numpy(prob[keep] / prob[keep].sum()), self.vocab_size)

    def draws(self, count: int, randomness: Randomness, replacement: bool = True) -> list[Outcome]:
        """`count` draws in order: iid, or distinct (all outcomes where there are fewer)."""
        if not len(self):
            return []
        places = randomness.picks(self.prob, count) if replacement else randomness.distinct(self.prob, count)
        return [self.name(key) for key in self.key[places].tolist()]


def align(p: Joint, q: Joint) -> tuple[Tensor, Tensor, Tensor]:
    """(keys [u] ascending, p [u], q [u]) over the union of two supports."""
    ours, theirs = p.key.numpy(), q.key.numpy()
    if np.array_equal(ours, theirs):
        return p.key, p.prob, q.prob
    keys = np.concatenate((ours, theirs))
    keys.sort(kind="stable")  # two runs that are sorted are merged
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
    aligned = []
    for key, joint in ((ours, p), (theirs, q)):
        values = np.zeros(len(keys))
        values[keys.searchsorted(key)] = joint.prob.numpy()
        aligned.append(torch.from_numpy(values))
    return torch.from_numpy(keys), aligned[0], aligned[1]


def joint_of(
    scores: Tensor,
    log_p: Tensor,
    params: SamplingParams,
    mode: Literal["joint", "token"] = "joint",
    finished: Sequence[bool] | None = None,
    labels: Sequence[int] | None = None,
) -> Joint:
    """p_beam over beams and tokens from joint log-likelihoods `scores` [A] and `log_p` [A_live, V], which is
    normalised: log-probabilities of tokens.

    `finished` [A] marks beams that ended: they have the one outcome FINISHED at their own likelihood and no row.
    Rows follow the live beams in the order of `scores`. `labels` [A] (default 0..A-1) name the beams.
    mode "joint" warps the joint (paper), "token" each beam's conditional first, a finished beam keeping its mass.
    Temperature 0 in mode "joint" is the one best outcome, ties to the lowest label, then token.
    """
    count, vocab = scores.shape[0], log_p.shape[-1]
    names = list(range(count)) if labels is None else list(labels)
    done = [False] * count if finished is None else list(finished)
    order = sorted(range(count), key=names.__getitem__)
    if order != list(range(count)):
        row_of = {beam: row for row, beam in enumerate(i for i in range(count) if not done[i])}
        log_p = log_p[[row_of[i] for i in order if not done[i]]]
        scores = scores[order]
        done = [done[i] for i in order]
    if mode == "joint":
        log_joint, first = _log_joint(scores, log_p, done)
        columns = log_joint.shape[1]
        places, prob = entries(log_joint.flatten(), params)
    else:
        dense, first = _per_beam(scores, warp(log_p, params), done)
        columns = dense.shape[1]
        places, prob = _positive(dense.flatten())
    begin = np.array([names[i] for i in order], dtype=np.int64) * (vocab + 1) + first  # keys of the first column
    if places is None:
        key = (begin[:, None] + np.arange(columns)).reshape(-1)
    else:
        ends = places.searchsorted(np.arange(1, len(order)) * columns)  # of each beam's, which is cheaper than dividing
        key = places + np.repeat(begin - np.arange(len(order)) * columns, np.diff(ends, prepend=0, append=len(places)))
    return Joint(torch.from_numpy(key), torch.from_numpy(prob), vocab)


def _log_joint(scores: Tensor, log_p: Tensor, done: Sequence[bool]) -> tuple[Tensor, int]:
    """log p(x)·p(v|x) [A, V]; with finished beams [A, V + 1], FINISHED first. And what to add to a column: 1 or 0."""
    if not any(done):
        return scores[:, None] + log_p, 1
    over = torch.tensor(done, device=log_p.device)
    result = scores.new_full((len(done), log_p.shape[-1] + 1), -torch.inf)
    result[~over, 1:] = (scores[~over, None] + log_p).to(result.dtype)
    result[over, 0] = scores[over]
    return result, 0


def _per_beam(scores: Tensor, probs: Tensor, done: Sequence[bool]) -> tuple[Tensor, int]:
    """The same of warped conditionals: norm(p(x))·T∘p(v|x)."""
    if any(done):
        over = torch.tensor(done, device=probs.device)
        whole = probs.new_zeros(len(done), probs.shape[-1] + 1)
        whole[~over, 1:] = probs
        whole[over, 0] = 1.0
        return torch.softmax(scores, -1)[:, None] * whole, 0
    return torch.softmax(scores, -1)[:, None] * probs, 1


def _positive(dense: Tensor) -> tuple[Places | None, Probabilities]:
    """(places ascending, or None for all; probabilities that sum to 1) of the positive entries of weights [n]."""
    weights = dense.cpu().numpy()
    places = None if weights.min() > 0 else np.flatnonzero(weights)
    prob = (weights if places is None else weights[places]).astype(np.float64)
    total = prob.sum()
    if not np.isfinite(total) or total <= 0:
        raise NonFiniteError(NOT_FINITE)
    prob /= total
    return places, prob


def entries(logits: Tensor, params: SamplingParams) -> tuple[Places | None, Probabilities]:
    """The positive entries of warp(logits [n], params): (places ascending or None: all, probabilities that sum to 1).

    With top-k only the k largest are ever looked at.
    """
    count = params.top_k
    if params.greedy or not 0 < count < logits.shape[0]:
        return _positive(warp(logits, params))
    row = logits.cpu().numpy()
    where = leading(row, count)
    kept, prob = _positive(warp(torch.from_numpy(row[where]).double(), params))
    return where if kept is None else where[kept], prob
