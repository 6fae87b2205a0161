"""Speed against quality: Pareto fronts, speed at equal quality, and how sure the figures are.

Knows numbers and records of runs. Refuses to know methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from beams_items import Record

Point = tuple[float, float]  # (speed, quality), more is better
SAMPLES = 1000


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, fastest first, so that quality rises along it."""
    best, kept = -math.inf, []
    for speed, quality in sorted(points, key=lambda point: (-point[0], -point[1])):
        if quality > best:
            kept.append((speed, quality))
            best = quality
    return kept


def speed_at(curve: Sequence[Point], quality: float) -> float | None:
    """The speed at which a front reaches a quality, linear between its points; None where it never does."""
    for i, (speed, reached) in enumerate(curve):
        if quality <= reached:
            if i == 0:
                return speed
            before, below = curve[i - 1]
            return before + (speed - before) * (quality - below) / (reached - below)
    return None


def pooled(points: Sequence[Point]) -> list[Point]:
    """Points fastest first, neighbours that fall in quality averaged until it rises.

    Unlike `front` it does not pick the lucky ones.
    """
    blocks: list[list[Point]] = []
    for point in sorted(points, reverse=True):
        blocks.append([point])
        while len(blocks) > 1 and _mean(blocks[-2])[1] >= _mean(blocks[-1])[1]:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_mean(block) for block in blocks]


def _mean(block: Sequence[Point]) -> Point:
    speeds, qualities = zip(*block, strict=True)
    return fmean(speeds), fmean(qualities)


def at_equal_quality(
    ours: Sequence[Point], theirs: Sequence[Point], levels: int = 21, slack: float = 0.0
) -> dict[str, float | None]:
    """Our front's speed over theirs, at qualities spread evenly over what both reach.

    Below our fastest point's quality our speed is that point's. All None where we do not reach what their fastest has.
    With `slack` a quality that much lower counts as equal.
    """
    mine, other = front([(speed, quality + slack) for speed, quality in ours]), front(theirs)
    low, high = other[0][1], min(other[-1][1], mine[-1][1])
    if high < low:
        return {"median": None, "low": None, "high": None, "from": low, "to": high}
    ratios = []
    for level in np.linspace(low, high, levels):
        fast, slow = speed_at(mine, float(level)), speed_at(other, float(level))
        if fast is not None and slow is not None:  # rounding may lift the last level above the front
            ratios.append(fast / slow)
    return {"median": float(np.median(ratios)), "low": min(ratios), "high": max(ratios), "from": low, "to": high}


def decode_seconds(rows: Sequence[Sequence[Record]]) -> np.ndarray:
    """Seconds of each run [item, setting] as if the prompt had been in the cache.

    The first round's forwards, which hold the prompt's, count as the run's mean later round; where there was no later
    round, as the setting's.
    """
    forwards = np.array([[r["draft_seconds"] + r["verify_seconds"] for r in row] for row in rows])
    rounds = np.array([[r["later_rounds"] for r in row] for row in rows], dtype=float)
    typical = forwards.sum(0) / np.maximum(rounds.sum(0), 1)
    mean = np.where(rounds > 0, forwards / np.maximum(rounds, 1), typical[None])
    whole = np.array([[r["seconds"] - r["first_forwards"] for r in row] for row in rows])
    return whole + mean


def values(rows: Sequence[Sequence[Record]], name: str) -> np.ndarray:
    """One field of the records, [item, setting]."""
    return np.array([[r[name] for r in row] for row in rows], dtype=float)


def interval(samples: np.ndarray) -> list[list[float]]:
    """The middle 95% of bootstrap samples [sample, setting], per setting."""
    return [[float(low), float(high)] for low, high in np.percentile(samples, [2.5, 97.5], axis=0).T]


class Speeds:
    """Tokens a second by setting: the median ratio to the turn's pace, times the median pace.

    A turn's pace is the geometric mean over all settings, so a moment in which the machine was slow cancels out.
    """

    def __init__(self, rows: Sequence[Sequence[Record]], samples: int, rng: np.random.Generator) -> None:
        tokens = values(rows, "tokens")
        self.decode, self.decode_samples = self._of(tokens / decode_seconds(rows), samples, rng)
        self.whole, self.whole_samples = self._of(tokens / values(rows, "seconds"), samples, rng)

    @staticmethod
    def _of(rate: np.ndarray, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        pace = np.exp(np.log(rate).mean(1))
        ratio, typical = rate / pace[:, None], float(np.median(pace))
        drawn = [np.median(ratio[rng.integers(len(ratio), size=len(ratio))], 0) for _ in range(samples)]
        return np.median(ratio, 0) * typical, np.array(drawn) * typical


class Qualities:
    """Score and perplexity by setting; documents, with all their repeats, are drawn anew for the intervals."""

    def __init__(
        self, numbers: Sequence[int], rows: Sequence[Sequence[Record]], samples: int, rng: np.random.Generator
    ) -> None:
        documents = sorted(set(numbers))
        place = {number: i for i, number in enumerate(documents)}
        member = np.zeros((len(documents), len(numbers)))
        for column, number in enumerate(numbers):
            member[place[number], column] = 1
        self.runs = member.sum(1)
        self._score, self._nats, self._tokens = (member @ values(rows, name) for name in ("score", "nats", "tokens"))
        count = len(documents)
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=samples).astype(float)
        self.score, self.perplexity = self.weighed(np.ones(count))
        self.score_samples, self.perplexity_samples = self.weighed(drawn)
        self.halves = [np.arange(count) % 2 == half for half in (0, 1)]

    def weighed(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(score, perplexity) with documents weighed [..., document]."""
        score = weights @ self._score / (weights @ self.runs)[..., None]
        return score, np.exp(weights @ self._nats / (weights @ self._tokens))


def compared(
    families: Mapping[str, Sequence[int]],
    speed: np.ndarray,
    speeds: np.ndarray,
    quality: Qualities,
    by: str,
    slack: float = 0.0,
) -> dict[str, Any]:
    """DSBD's speed over beam sampling's at equal quality: on the fronts, at each width, bootstrapped, cross-fitted.

    Quality may be lower by `slack`. A front of many noisy points flatters itself, so settings are also chosen on half
    of the documents and judged on the other half (`cross_fitted`).
    """
    ours, theirs = list(families["dsbd"]), list(families["beam sampling"])

    def good(weights: np.ndarray) -> np.ndarray:
        score, perplexity = quality.weighed(weights)
        return score if by == "score" else -perplexity

    def points(of: Sequence[int], speed: np.ndarray, good: np.ndarray) -> list[Point]:
        return [(float(speed[i]), float(good[i])) for i in of]

    whole = np.ones(len(quality.runs))
    all_good = good(whole)
    mine = front(points(ours, speed, all_good))
    result: dict[str, Any] = {
        "slack": slack,
        **at_equal_quality(mine, points(theirs, speed, all_good), slack=slack),
    }
    samples = quality.score_samples if by == "score" else -quality.perplexity_samples
    drawn = []
    for fast, well in zip(speeds, samples, strict=True):
        ratio = at_equal_quality(points(ours, fast, well), points(theirs, fast, well), slack=slack)["median"]
        if ratio is not None:
            drawn.append(ratio)
    result["reached"] = len(drawn) / len(samples)  # of the bootstrap samples; the interval is of those
    result["interval"] = [float(x) for x in np.percentile(drawn, [2.5, 97.5])] if drawn else None
    result["by_width"] = [
        None if (fast := speed_at(mine, float(all_good[i]) - slack)) is None else fast / float(speed[i]) for i in theirs
    ]
    fitted = []
    if all(half.any() for half in quality.halves):
        for half in (0, 1):
            chosen_by, judged_by = (good(quality.halves[k].astype(float)) for k in (half, 1 - half))
            edge = set(front(points(ours, speed, chosen_by)))
            chosen = [i for i in ours if (float(speed[i]), float(chosen_by[i])) in edge]
            judged = pooled(points(chosen, speed, judged_by))
            fitted.append(at_equal_quality(judged, points(theirs, speed, judged_by), slack=slack)["median"])
    known = [ratio for ratio in fitted if ratio is not None]
    result["cross_fitted"] = float(np.mean(known)) if known else None
    return result
