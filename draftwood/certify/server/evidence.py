"""Bets against laws: an e-process that grows where tokens do not follow the laws that are claimed for them.

A bet multiplies a stake of 1 by q(x) / p(x) at each token x, where p is the claimed law of the token and q another law
that was chosen before it was seen. If the claims hold the mean stake stays 1 at most, whenever one looks (Ville: it
ever reaches 1 / risk with probability `risk` at most), so it may be looked at after every token, and testing may stop
at any time. Several ways to choose q share the stake; their mean is the evidence.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from draftwood.certify.checks import RISK

Row: TypeAlias = npt.NDArray[np.float64]
TILTS = np.array([0.25, 0.5, 0.75, 0.9, 1.1, 1.4, 2.0, 4.0])  # q is proportional to p to these powers
CONTEXT_WEIGHTS = (3.0, 20.0)  # tokens that the claimed law counts for, beside those that were seen in the context
BINS, BIN_WEIGHT = 8, 6.0  # of the probability integral transform
RATIO_WEIGHT = 4.0
BETS = len(TILTS) + len(CONTEXT_WEIGHTS) + 3
POWER, REPLICAS = 0.9, 40  # probability with which a distance would be seen, over so many simulated servers


@dataclass(frozen=True, slots=True)
class Law:
    """The claimed law of a token, most probable first: names of its outcomes and their probabilities, all above 0."""

    names: Sequence[str]
    p: Row

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
    logs: Row = field(default_factory=lambda: np.zeros(BETS))
    laws: list[Row] = field(default_factory=list)
    places: Counter[Hashable] = field(default_factory=Counter)
    _contexts: dict[Hashable, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _bins: dict[Hashable, Row] = field(default_factory=lambda: defaultdict(lambda: np.full(BINS, BIN_WEIGHT)))
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

    def add(self, law: Law, token: str, context: Hashable, place: Hashable = 0) -> None:
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

    def _tilts(self, p: Row, x: int) -> Row:
        powers = p[None] ** TILTS[:, None]
        return np.log(powers[:, x] / powers.sum(1) / p[x])  # type: ignore[no-any-return]

    def _context(self, law: Law, x: int, context: Hashable) -> list[float]:
        """What was drawn in the same context before, mixed with the claim."""
        counts = self._contexts[context]
        total, seen = sum(counts[name] for name in law.names), counts[law.names[x]]
        counts[law.names[x]] += 1
        p = float(law.p[x])
        return [math.log((seen + weight * p) / (total + weight) / p) for weight in CONTEXT_WEIGHTS]

    def _uniform(self, p: Row, x: int, place: Hashable) -> list[float]:
        """The randomised probability integral transform is uniform: by its histogram of the place, and of all."""
        u = float(p[:x].sum() + self._random.random() * p[x])
        slot = min(BINS - 1, int(u * BINS))
        stakes = []
        for key in ("all", ("place", place)):
            bins = self._bins[key]
            stakes.append(math.log(BINS * bins[slot] / bins.sum()))
            bins[slot] += 1
        return stakes

    def _ratio(self, law: Law, x: int) -> float:
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
        width = max(map(len, self.laws))
        p = np.zeros((len(self.laws), width))
        for row, law in zip(p, self.laws, strict=True):
            row[: len(law)] = law
        gains = np.stack([np.where(p > 0, tilted(p, power) / np.maximum(p, 1e-300), 1.0) for power in TILTS])
        logs = np.log(np.maximum(gains, 1e-300))
        sides = [_least_seen(p, logs, powers, -math.log(self.risk), self.seed) for powers in (SHARPER, FLATTER)]
        return None if None in sides else max(sides)  # type: ignore[type-var]

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


def tilted(p: Row, power: float) -> Row:
    """Laws [N, K] (0 beyond their ends) to a power, normalised."""
    raised = np.where(p > 0, np.maximum(p, 1e-300) ** power, 0.0)
    return raised / raised.sum(1, keepdims=True)  # type: ignore[no-any-return]


def _least_seen(p: Row, logs: Row, powers: Sequence[float], least: float, seed: int) -> float | None:
    random = np.random.default_rng(seed)
    rows = np.arange(len(p))
    for power in powers:
        q = tilted(p, power)
        cumulated = q.cumsum(1)
        cumulated[:, -1] = 2.0
        missed = 0
        for _ in range(REPLICAS):
            drawn = (random.random((len(p), 1)) < cumulated).argmax(1)
            stakes = logs[:, rows, drawn].cumsum(1)  # [bets, tokens]
            highest = stakes.max(0)
            missed += not (highest + np.log(np.exp(stakes - highest).sum(0) / BETS) >= least).any()
            if missed > (1 - POWER) * REPLICAS:
                break
        else:
            return float(0.5 * np.abs(q - p).sum(1).mean())
    return None


@dataclass
class TwoSamples:
    """An e-process over pairs of outcomes, one of each side: it guesses which is whose.

    Given the two outcomes of a pair and that both sides have the same law, either order is as probable; a guess that
    says "the first is x" with probability w multiplies the stake by 2 w if it is right. Guesses come from what each
    side has drawn before. One bet for each `view` of an outcome; the mean of their stakes is the evidence.
    """

    views: int
    risk: float = RISK
    pairs: int = 0
    seen_after: int | None = None
    _counts: dict[tuple[Hashable, int], tuple[Counter[Hashable], Counter[Hashable]]] = field(
        default_factory=lambda: defaultdict(lambda: (Counter(), Counter()))
    )

    def __post_init__(self) -> None:
        self.logs = np.zeros(self.views)

    @property
    def log(self) -> float:
        highest = float(self.logs.max())
        return highest + math.log(float(np.exp(self.logs - highest).mean()))

    def add(self, context: Hashable, one: Sequence[Hashable], other: Sequence[Hashable]) -> None:
        """A pair of outcomes under one context, each in all views."""
        self.pairs += 1
        for view, (x, y) in enumerate(zip(one, other, strict=True)):
            first, second = self._counts[context, view]
            if x != y:
                right = (first[x] + 1) * (second[y] + 1)
                wrong = (first[y] + 1) * (second[x] + 1)
                self.logs[view] += math.log(2 * right / (right + wrong))
            first[x] += 1
            second[y] += 1
        if self.seen_after is None and self.log >= -math.log(self.risk):
            self.seen_after = self.pairs

    def power(self, seed: int = 0) -> float | None:
        """The least total variation that would have been seen with probability `POWER`, by simulation.

        One side is simulated with the frequencies of both, in the first view; of the other's outcomes the more frequent
        half of each context has lost a share to the rest.
        """
        laws = [_frequencies(*counts) for (_, view), counts in self._counts.items() if view == 0]
        laws = [law for law in laws if len(law) > 1]
        random = np.random.default_rng(seed)
        for share in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
            moved = [_moved(law, share) for law in laws]
            each = -(-self.pairs // max(1, len(laws)))
            missed = 0
            for _ in range(REPLICAS // 2):
                test = TwoSamples(1, self.risk / self.views)
                for place, (law, other) in enumerate(zip(laws, moved, strict=True)):
                    draws = random.choice(len(law), each, p=law), random.choice(len(law), each, p=other)
                    for x, y in zip(*draws, strict=True):
                        test.add(place, [int(x)], [int(y)])
                missed += test.seen_after is None
                if missed > (1 - POWER) * (REPLICAS // 2):
                    break
            else:
                return float(np.mean([0.5 * np.abs(a - b).sum() for a, b in zip(laws, moved, strict=True)]))
        return None


def _frequencies(first: Mapping[Hashable, int], second: Mapping[Hashable, int]) -> Row:
    counts = Counter(first) + Counter(second)
    values = np.array(sorted(counts.values(), reverse=True), dtype=np.float64)
    return values / values.sum()  # type: ignore[no-any-return]


def _moved(law: Row, share: float) -> Row:
    """The law after the upper half of its mass has given a share to the rest."""
    upper = np.arange(len(law)) < max(1, int((law.cumsum() < 0.5).sum()))
    loss = np.where(upper, share * law, 0.0)
    rest = np.where(upper, 0.0, law)
    return law - loss + loss.sum() * (rest / rest.sum())  # type: ignore[no-any-return]
