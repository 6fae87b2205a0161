"""One layer of beams: DSBD's rules with and without replacement, and the references they must equal in law."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from draftwood.core.records import BeamLayer, Judged, Outcome
from draftwood.errors import ConfigurationError
from draftwood.verify.joint import Joint, Randomness, Shares, align, few_within, within
from draftwood.verify.tree import acceptance, residual, without
from draftwood.verify.width import ResidualChain, WidthRule


def verify_layer(
    draws: Sequence[Outcome],
    q: Joint,
    p: Joint,
    parents: Sequence[int],
    rule: WidthRule,
    randomness: Randomness,
    replacement: bool = True,
) -> BeamLayer:
    """Verify a drafted layer (spec §3 steps 1-5).

    `draws` are all W_S draws in order and with multiplicity from `q`, the draft's joint over *its* beams; `parents`
    are the labels of the distinct accepted beams of the layer before, `p` the target's joint over exactly these.
    """
    alive = set(parents)
    surviving = [draw for draw in draws if draw[0] in alive]
    if not replacement and len(set(draws)) < len(draws):
        raise ConfigurationError("draws without replacement must be distinct; these were drawn with replacement")
    q = q.restrict(parents)
    judge: _Iid | _Distinct = _Iid(p, q) if replacement else _Distinct(p, q)
    width, chance, least = rule.width(judge.chain, len(surviving), len(draws), replacement)
    if not replacement:
        width = min(width, p.possible)
    beams: list[Outcome] = []
    judged: list[Judged] = []
    for draw in draws:
        if draw[0] not in alive:
            judged.append(Judged(draw, "unreached"))
        elif len(beams) == width:
            judged.append(Judged(draw, "discarded"))
        else:
            p_x, q_x = judge.chances(draw)
            odds = acceptance(p_x, q_x)
            if randomness.coin(odds):
                judge.accept(draw)
                beams.append(draw)
                judged.append(Judged(draw, "accepted", p_x, q_x, odds))
            else:
                judge.reject(draw)
                judged.append(Judged(draw, "rejected", p_x, q_x, odds))
    accepted = len(beams)
    while len(beams) < width:
        beams.append(judge.support.name(randomness.pick(judge.rest())))
        judge.accept(beams[-1])
    return BeamLayer(width, beams, accepted, judged, accepted == width, chance, least)


class _Iid:
    """p' of draws with replacement: reset to p by every acceptance."""

    def __init__(self, p: Joint, q: Joint) -> None:
        self.support = p.support
        self._p, self._q = p, q
        self._known: dict[Outcome, tuple[float, float]] = {}  # p and q of outcomes of q, where these are few
        few = few_within(q, p.support)
        if few is None:
            places, inside = within(q, p.support)
            self.chain = ResidualChain(p.prob, inside, places)
        else:
            self.chain = ResidualChain(
                p.shares, [prob for _, prob in few.values()], [place for place, _ in few.values()]
            )
            self._known = dict(zip(few, self.chain.pairs, strict=True))
        self._rejections = 0

    def chances(self, draw: Outcome) -> tuple[float, float]:
        p, q = self._known.get(draw) or (*self._p.probs([draw]), *self._q.probs([draw]))
        return self.chain.value(p, q, self._rejections), q

    def accept(self, draw: Outcome) -> None:
        self._rejections = 0

    def reject(self, draw: Outcome) -> None:
        self._rejections += 1

    def rest(self) -> Shares:
        return self.chain.residual(self._rejections)


class _Distinct:
    """p' and q_i of draws without replacement: q_i loses every earlier draw, p the accepted beams."""

    def __init__(self, p: Joint, q: Joint) -> None:
        self.support, self._p, self._q = align(p, q)
        self.chain = ResidualChain(self._p, self._q)
        self._rest = self._p

    def _place(self, draw: Outcome) -> int:
        at = self.support.place(draw)
        assert at is not None  # p or q gave it a positive probability
        return at

    def chances(self, draw: Outcome) -> tuple[float, float]:
        at = self._place(draw)
        return float(self._rest[at]), float(self._q[at])

    def accept(self, draw: Outcome) -> None:
        at = self._place(draw)
        left = without(self._p, at)
        if left is not None:
            self._p = left
        self._rest = self._p
        self._forget(at)

    def reject(self, draw: Outcome) -> None:
        at = self._place(draw)
        self._rest = residual(self._rest, self._q, at)
        self._forget(at)

    def _forget(self, at: int) -> None:
        left = without(self._q, at)
        if left is not None:
            self._q = left

    def rest(self) -> Tensor:
        return self._rest


def sample_layer(p: Joint, width: int, randomness: Randomness, replacement: bool = True) -> BeamLayer:
    """Beam sampling, one layer straight from p: the reference, and DSBD's bonus layer after gamma accepted ones."""
    beams = p.draws(width, randomness, replacement)
    return BeamLayer(len(beams), beams, 0, [], False)


def bonus_width(last: int, rule: WidthRule) -> int:
    """Width of the layer after gamma accepted ones: the last layer's, at least the minimum."""
    return rule.fixed if rule.fixed is not None else max(last, rule.minimum)


def least_perplexity(log_likelihoods: Sequence[float], lengths: Sequence[int]) -> int:
    """The one-cache choice (DSBD §3.4): the beam of lowest perplexity exp(-log p / length), the first among ties.

    Not distribution-preserving, by design.
    """
    rates = [-score / length if length else math.inf for score, length in zip(log_likelihoods, lengths, strict=True)]
    return min(range(len(rates)), key=rates.__getitem__)
