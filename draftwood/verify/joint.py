"""The joint distribution of beam and next token, p_beam of DSBD Eq. 1, over its non-zero outcomes only.

Knows warping of joints, finished beams, restriction and alignment of supports. Refuses to know forests and rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from draftwood.errors import NonFiniteError
from draftwood.sampling import SamplingParams, Streams, draw, draws, warp, warp_beams
from draftwood.trace import Outcome


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
        """Up to `count` distinct indices of weights [n], drawn one after the other (Gumbel-top-k)."""
        keys = probs / self._streams.exponential(self._purpose, tuple(probs.shape), probs.device)
        best = keys.topk(min(count, keys.shape[0]))
        return [i for i, key in zip(best.indices.tolist(), best.values.tolist(), strict=True) if key > 0]


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Outcomes (beam, token) of positive probability: `key` [n] ascending, `prob` [n] float64 that sums to 1.

    A beam is named by the caller's label, for example its forest node, so that p and q agree on names. The key of
    (beam, token) is beam·(V + 1) + token + 1; ties and order are by beam, then token. Probabilities are float64
    whatever the logits were: residuals subtract nearly equal numbers, and after truncation there are few.
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
        """Tokens [n], STAY where a finished beam stays."""
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
        sought = torch.tensor([self.key_of(outcome) for outcome in outcomes], device=self.key.device)
        places = torch.searchsorted(self.key, sought).clamp_(max=len(self) - 1)
        return torch.where(self.key[places] == sought, self.prob[places], 0.0).tolist()

    def restrict(self, beams: Sequence[int]) -> Joint:
        """Only the outcomes of some beams, renormalised (spec §3 step 2, §9.2); empty where nothing is left."""
        keep = torch.isin(self.beam, torch.tensor(list(beams), dtype=torch.long, device=self.key.device))
        if bool(keep.all()):
            return self
        prob = self.prob[keep]
        return Joint(self.key[keep], prob / prob.sum(), self.vocab_size)

    def draws(self, count: int, randomness: Randomness, replacement: bool = True) -> list[Outcome]:
        """`count` draws in order: iid, or distinct (all outcomes where there are fewer)."""
        if not len(self):
            return []
        places = randomness.picks(self.prob, count) if replacement else randomness.distinct(self.prob, count)
        return [self.name(key) for key in self.key[places].tolist()]


def align(p: Joint, q: Joint) -> tuple[Tensor, Tensor, Tensor]:
    """(keys [u] ascending, p [u], q [u]) over the union of two supports."""
    if torch.equal(p.key, q.key):
        return p.key, p.prob, q.prob
    keys = torch.unique(torch.cat((p.key, q.key)))
    aligned = []
    for joint in (p, q):
        values = torch.zeros(keys.shape[0], dtype=torch.float64, device=keys.device)
        values[torch.searchsorted(keys, joint.key)] = joint.prob
        aligned.append(values)
    return keys, aligned[0], aligned[1]


def joint_of(
    scores: Tensor,
    logits: Tensor,
    params: SamplingParams,
    mode: Literal["joint", "token"] = "joint",
    finished: Sequence[bool] | None = None,
    labels: Sequence[int] | None = None,
) -> Joint:
    """p_beam over beams and tokens from joint log-likelihoods `scores` [A] and `logits` [A_live, V].

    `finished` [A] marks beams that ended: they have the one outcome STAY at their own likelihood, and no logits row.
    Rows of logits follow the live beams in the order of `scores`. `labels` [A] (default 0..A-1) name the beams.
    mode "joint" warps the joint (paper), "token" each beam's conditional first, a finished beam keeping its mass.
    Temperature 0 in mode "joint" is the one best outcome, ties to the lowest label, then token.
    """
    count, vocab = scores.shape[0], logits.shape[-1]
    names = list(range(count)) if labels is None else list(labels)
    done = [False] * count if finished is None else list(finished)
    order = sorted(range(count), key=names.__getitem__)
    device = logits.device
    label = torch.tensor([names[i] for i in order], dtype=torch.long, device=device)
    if order != list(range(count)):
        row_of = {beam: row for row, beam in enumerate(i for i in range(count) if not done[i])}
        logits = logits[[row_of[i] for i in order if not done[i]]]
        scores = scores[order]
        done = [done[i] for i in order]
    if not any(done):
        dense, first = warp_beams(scores, logits, params, mode), 1
    else:
        dense, first = _with_finished(scores, logits, params, mode, torch.tensor(done, device=device)), 0
    flat = dense.flatten()
    places = flat.nonzero()[:, 0]
    prob = flat[places].double()
    total = prob.sum()
    if not bool(torch.isfinite(total)) or not len(places):
        raise NonFiniteError("a joint distribution of beams is not finite (NaN or infinite logits)")
    columns = dense.shape[1]
    row = places.div(columns, rounding_mode="floor")
    key = label[row] * (vocab + 1) + (places - row * columns) + first
    return Joint(key, prob / total, vocab)


def _with_finished(
    scores: Tensor, logits: Tensor, params: SamplingParams, mode: Literal["joint", "token"], done: Tensor
) -> Tensor:
    """[A, V + 1] probabilities whose first column is STAY."""
    if mode == "token":
        dense = logits.new_zeros(done.shape[0], logits.shape[-1] + 1)
        dense[~done, 1:] = warp(logits, params)
        dense[done, 0] = 1.0
        return torch.softmax(scores, -1)[:, None] * dense
    dense = logits.new_full((done.shape[0], logits.shape[-1] + 1), -torch.inf, dtype=scores.dtype)
    dense[~done, 1:] = (scores[~done, None] + torch.log_softmax(logits, -1)).to(dense.dtype)
    dense[done, 0] = scores[done]
    return warp(dense.flatten(), params).view_as(dense)
