"""Bets against laws: an e-process that grows where tokens do not follow the laws that are claimed for them.

A bet multiplies a stake of 1 by q(x) / p(x) at each token x, where p is the claimed law of the token and q another law
that was chosen before it was seen. If the claims hold the mean stake stays 1 at most, whenever one looks (Ville: it
ever reaches 1 / risk with probability `risk` at most), so it may be looked at after every token, and testing may stop
at any time. Several ways to choose q share the stake; their mean is the evidence.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from draftwood.certify.checks import RISK

ScoreRow: TypeAlias = npt.NDArray[np.float64]
TILTS = np.array([0.25, 0.5, 0.75, 0.9, 1.1, 1.4, 2.0, 4.0])  # q is proportional to p to these powers
CONTEXT_WEIGHTS = (3.0, 20.0)  # tokens that the claimed law counts for, beside those that were seen in the context
BINS, BIN_WEIGHT = 8, 6.0  # of the probability integral transform
RATIO_WEIGHT = 4.0
BETS = len(TILTS) + len(CONTEXT_WEIGHTS) + 3
POWER = 0.9  # probability with which a distance would be seen
REPLICAS, MAX_MISSED = 200, 8  # simulated servers, and of them unseen: with 20 distances tried POWER holds at 95%


@dataclass(frozen=True, slots=True)
class ClaimedLaw:
    """The claimed law of a token, most probable first: names of its outcomes and their probabilities, all above 0."""

    names: Sequence[str]
    p: ScoreRow

    @property
    def entropy(self) -> float:
        return float(-(self.p * np.log(self.p)).sum())


@dataclass
class Evidence:
    """An e-process over tokens, each with its claimed law, and how much of a bias it could have seen."""

    seed: int = 0
    risk: float = RISK
    draws: int = 0
    seen_after: int | None = None  # tokens until it reached 1 / risk
    impossible: str = ""  # a token that its law does not know
    logs: ScoreRow = field(default_factory=lambda: np.zeros(BETS))
    laws: list[ScoreRow] = field(default_factory=list)
    places: Counter[Hashable] = field(default_factory=Counter)
    _contexts: dict[Hashable, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _bins: dict[Hashable, ScoreRow] = field(default_factory=lambda: defaultdict(lambda: np.full(BINS, BIN_WEIGHT)))
    _observed: Counter[str] = field(default_factory=Counter)
    _expected: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    @property
    def log(self) -> float:
        """The logarithm of the evidence: of the mean of all bets' stakes."""
        if self.impossible:
            return math.inf
        highest = float(self.logs.max())
        return highest + math.log(float(np.exp(self.logs - highest).mean()))

    @property
    def against(self) -> bool:
        return self.seen_after is not None

    def add(self, law: ClaimedLaw, token: str, context: Hashable, place: Hashable = 0) -> None:
        """A token that was drawn in a context (equal contexts have equal laws), at a place of a round or a text."""
        self.draws += 1
        if token not in law.names:
            self.impossible = self.impossible or token
            self.seen_after = self.seen_after or self.draws
            return
        x, p = law.names.index(token), law.p
        stakes = [*self._tilts(p, x), *self._context(law, x, context), *self._uniform(p, x, place)]
        self.logs += np.array([*stakes, self._ratio(law, x)])
        self.laws.append(p)
        self.places[place] += 1
        if self.seen_after is None and self.log >= -math.log(self.risk):
            self.seen_after = self.draws

    def _tilts(self, p: ScoreRow, x: int) -> ScoreRow:
        powers = p[None] ** TILTS[:, None]
        return np.log(powers[:, x] / powers.sum(1) / p[x])  # type: ignore[no-any-return]

    def _context(self, law: ClaimedLaw, x: int, context: Hashable) -> list[float]:
        """Bets on the tokens that were drawn in the same context before, mixed with the claim."""
        counts = self._contexts[context]
        total, seen = sum(counts[name] for name in law.names), counts[law.names[x]]
        counts[law.names[x]] += 1
        p = float(law.p[x])
        return [math.log((seen + weight * p) / (total + weight) / p) for weight in CONTEXT_WEIGHTS]

    def _uniform(self, p: ScoreRow, x: int, place: Hashable) -> list[float]:
        """The randomised probability integral transform is uniform: by its histogram of the place, and of all."""
        u = float(p[:x].sum() + self._random.random() * p[x])
        slot = min(BINS - 1, int(u * BINS))
        stakes = []
        for key in ("all", ("place", place)):
            bins = self._bins[key]
            stakes.append(math.log(BINS * bins[slot] / bins.sum()))
            bins[slot] += 1
        return stakes

    def _ratio(self, law: ClaimedLaw, x: int) -> float:
        """How much more often than claimed each token was drawn before, in all contexts."""
        ratios = np.array(
            [(self._observed[name] + RATIO_WEIGHT) / (self._expected[name] + RATIO_WEIGHT) for name in law.names]
        )
        self._observed[law.names[x]] += 1
        for name, p in zip(law.names, law.p, strict=True):
            self._expected[name] += p
        return math.log(ratios[x] / float((law.p * ratios).sum()))

    def power(self) -> float | None:
        """The least mean total variation, of laws sharper and flatter than claimed, that would have been seen.

        With probability `POWER`, by simulated tokens of the same laws and the bets on tilts alone: the others can only
        add. None where no such distance was found.
        """
        if not self.laws:
            return None
        p = _padded(self.laws)
        gains = np.stack([np.where(p > 0, tilted(p, power) / np.maximum(p, 1e-300), 1.0) for power in TILTS])
        logs = np.log(np.maximum(gains, 1e-300))
        random, rows = np.random.default_rng(self.seed), np.arange(len(p))
        return _least_seen(p, lambda q: logs[:, rows, _drawn(q, random)].cumsum(1), BETS, self.risk)

    def figures(self) -> dict[str, Any]:
        """For the certificate's JSON."""
        least = self.power()
        return {
            "tokens": self.draws,
            "e_value_log10": None if math.isinf(self.log) else self.log / math.log(10),
            "seen_after_tokens": self.seen_after,
            "impossible_token": self.impossible or None,
            "total_variation_seen": least,
            "seen_with_probability": None if least is None else POWER,
            "places": {str(place): count for place, count in sorted(self.places.items(), key=str)},
            "risk": self.risk,
        }


SHARPER = (1.03, 1.06, 1.1, 1.15, 1.25, 1.4, 1.7, 2.2, 3.0, 5.0)
FLATTER = (0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.45, 0.3, 0.1)


def tilted(p: ScoreRow, power: float) -> ScoreRow:
    """Laws [N, K] (0 beyond their ends) to a power, normalised."""
    raised = np.where(p > 0, np.maximum(p, 1e-300) ** power, 0.0)
    return raised / raised.sum(1, keepdims=True)  # type: ignore[no-any-return]


@dataclass
class TwoSamples:
    """An e-process over pairs of outcomes, one of each side: it guesses which is whose.

    Given the two outcomes of a pair and that both sides have the same law, either order is as probable; a guess that
    says "the first is x" with probability w multiplies the stake by 2 w if it is right. Guesses come from what each
    side has drawn before, for each `view` of an outcome, or say that the second side is sharper or flatter. The mean
    of all stakes is the evidence.
    """

    views: int
    risk: float = RISK
    pairs: int = 0
    seen_after: int | None = None
    laws: list[ScoreRow] = field(default_factory=list)
    _counts: dict[tuple[Hashable, int], tuple[Counter[Hashable], Counter[Hashable]]] = field(
        default_factory=lambda: defaultdict(lambda: (Counter(), Counter()))
    )

    def __post_init__(self) -> None:
        self.logs = np.zeros(self.views + len(SLOPES))

    @property
    def log(self) -> float:
        highest = float(self.logs.max())
        return highest + math.log(float(np.exp(self.logs - highest).mean()))

    def add(
        self,
        context: Hashable,
        one: Sequence[Hashable],
        other: Sequence[Hashable],
        law: ClaimedLaw | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """A pair of outcomes under one context, each in all views; `law` is about that of the first tokens `names`."""
        self.pairs += 1
        for view, (x, y) in enumerate(zip(one, other, strict=True)):
            first, second = self._counts[context, view]
            if x != y:
                right = (first[x] + 1) * (second[y] + 1)
                wrong = (first[y] + 1) * (second[x] + 1)
                self.logs[view] += math.log(2 * right / (right + wrong))
            first[x] += 1
            second[y] += 1
        if law is not None:
            p = dict(zip(law.names, law.p, strict=True))
            scores = [math.log(p.get(name, law.p[-1])) for name in names]
            self.logs[self.views :] += np.log(2 / (1 + np.exp(-SLOPES * (scores[0] - scores[1]))))
            self.laws.append(law.p)
        if self.seen_after is None and self.log >= -math.log(self.risk):
            self.seen_after = self.pairs

    def power(self, seed: int = 0) -> float | None:
        """The least mean total variation, of first outcomes sharper and flatter, that would have been seen.

        With probability `POWER`, by simulation and the bets on that alone.
        """
        if not self.laws:
            return None
        p = _padded(self.laws)
        logs = np.log(np.maximum(p, 1e-300))
        random, rows = np.random.default_rng(seed), np.arange(len(p))

        def evidence(q: ScoreRow) -> ScoreRow:
            gaps = logs[rows, _drawn(p, random)] - logs[rows, _drawn(q, random)]
            return np.log(2 / (1 + np.exp(-SLOPES[:, None] * gaps))).cumsum(1)  # type: ignore[no-any-return]

        return _least_seen(p, evidence, len(self.logs), self.risk)


SLOPES = np.array([-1.0, -0.4, -0.15, 0.15, 0.4, 1.0])  # of guesses, in the difference of log-probabilities


def _padded(laws: Sequence[ScoreRow]) -> ScoreRow:
    """Laws as rows [N, K] of one table, 0 beyond their ends."""
    p = np.zeros((len(laws), max(map(len, laws))))
    for row, law in zip(p, laws, strict=True):
        row[: len(law)] = law
    return p


def _drawn(q: ScoreRow, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """An outcome of each row of laws [N, K]."""
    cumulated = q.cumsum(1)
    cumulated[:, -1] = 2.0
    return (random.random((len(q), 1)) < cumulated).argmax(1)  # type: ignore[no-any-return]


def _least_seen(p: ScoreRow, evidence: Callable[[ScoreRow], ScoreRow], bets: int, risk: float) -> float | None:
    """The larger of the least distances seen, of sharper and of flatter laws than p [N, K].

    A distance is seen where more than `POWER` of all simulated servers would be, with 95% confidence for all distances.
    `evidence` simulates the logarithms of some stakes [.., N] of a server with other laws; `bets` share the stake.
    """
    distances = []
    for powers in (SHARPER, FLATTER):
        for power in powers:
            q = tilted(p, power)
            missed = 0
            for _ in range(REPLICAS):
                stakes = evidence(q)
                highest = stakes.max(0)
                missed += not (highest + np.log(np.exp(stakes - highest).sum(0) / bets) >= -math.log(risk)).any()
                if missed > MAX_MISSED:
                    break
            else:
                distances.append(float(0.5 * np.abs(q - p).sum(1).mean()))
                break
        else:
            return None
    return max(distances)
