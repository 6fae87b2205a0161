"""Speed at equal quality: Pareto fronts of two families of settings, bootstrapped and cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from draftwood.eval.experiments.experiment import Rows, Strict
from draftwood.eval.intervals import Array, drawn
from draftwood.eval.store import Record
from draftwood.eval.summary import scored
from draftwood.eval.tasks import parse

Point = tuple[float, float]  # (speed, quality), more is better
SAMPLES, LEVELS = 500, 21
EQUAL = {"equal score": ("score", 0.0), "a point of score less": ("score", 0.01), "equal perplexity": ("perplexity", 0)}


class Front(Strict):
    """Patterns of labels: settings whose speed is compared at equal quality."""

    ours: str
    theirs: str


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


def at_equal_quality(ours: Sequence[Point], theirs: Sequence[Point], slack: float = 0.0) -> float | None:
    """Our front's speed over theirs: the median over qualities spread evenly over what both reach.

    None where ours does not reach what their fastest has. A quality lower by `slack` counts as equal.
    """
    mine, other = front([(speed, quality + slack) for speed, quality in ours]), front(theirs)
    low, high = other[0][1], min(other[-1][1], mine[-1][1])
    if high < low:
        return None
    ratios = []
    for level in np.linspace(low, high, LEVELS):
        fast, slow = speed_at(mine, float(level)), speed_at(other, float(level))
        if fast is not None and slow is not None:  # rounding may lift the last level above the front
            ratios.append(fast / slow)
    return float(np.median(ratios))


def fronts(
    asked: Front,
    labels: Sequence[str],
    fast: Mapping[str, Sequence[Sequence[Record]]],
    good: Mapping[str, Sequence[Sequence[Record]]],
) -> Rows:
    """A row for each task, notion of equal quality, and whether the prompt counts.

    A front of many noisy points flatters itself, so `cross_fitted` chooses settings on half of the documents and
    judges them on the other half.
    """
    from draftwood.eval.experiments.methods import decode_seconds

    whole = [
        i
        for i in range(len(labels))
        if all("tokens" in r for each in (fast, good) for g in each.values() for r in g[i])
    ]
    ours = [i for i in whole if fnmatchcase(labels[i], asked.ours)]
    theirs = [i for i in whole if fnmatchcase(labels[i], asked.theirs)]
    rows: Rows = []
    if not ours or not theirs:
        return rows
    for task in fast:
        judged = good.get(task, fast[task])
        if not judged[0] or not fast[task][0]:
            continue
        metric = parse(task).headline

        def column(groups: Any, value: Any) -> Array:
            """[run, setting]; runs that failed belong to settings that are left out."""
            found = [[value(r) or 0.0 if "tokens" in r else 1.0 for r in group] for group in groups]
            return np.array(found, dtype=float).T

        tokens = column(fast[task], lambda record: record["tokens"])
        score = column(judged, lambda record, metric=metric: scored(record, metric))
        nats, length = (column(judged, lambda record, name=name: record.get(name)) for name in ("nats", "tokens"))
        places = sorted({record["place"] for record in judged[0]})
        document = np.array([[record["place"] == place for record in judged[0]] for place in places], dtype=float)

        def quality(by: str, weights: Array, score: Array = score, nats: Array = nats, length: Array = length) -> Array:
            if by == "score":
                return np.asarray((weights @ score) / weights.sum(-1, keepdims=True))
            return np.asarray(-np.exp((weights @ nats) / np.maximum(weights @ length, 1)))

        everything = np.ones((1, len(judged[0])))
        resampled = drawn(len(places), SAMPLES) @ document
        items = drawn(len(tokens), SAMPLES)
        halves = [np.asarray([number % 2 == half for number in range(len(places))]) @ document for half in (0, 1)]
        for prompt in (False, True):
            seconds = column(fast[task], (lambda record: record["seconds"]) if prompt else decode_seconds)
            speed = tokens.sum(0) / seconds.sum(0)
            speeds = (items @ tokens) / (items @ seconds)
            for name, (by, slack) in EQUAL.items():

                def points(chosen: Sequence[int], speed: Array, good: Array) -> list[Point]:
                    return [(float(speed[i]), float(good[i])) for i in chosen]

                def ratio(speed: Array, good: Array, mine: Sequence[int] = ours, slack: float = slack) -> float | None:
                    return at_equal_quality(points(mine, speed, good), points(theirs, speed, good), slack)

                found = [ratio(a, b) for a, b in zip(speeds, quality(by, resampled), strict=True)]
                known = [value for value in found if value is not None]
                low, high = np.quantile(known, [0.025, 0.975]) if known else (None, None)
                fitted = []
                for half in (0, 1) if len(places) > 1 else ():
                    chosen_by, judged_by = quality(by, halves[half]), quality(by, halves[1 - half])
                    edge = set(front(points(ours, speed, chosen_by)))
                    chosen = [i for i in ours if (float(speed[i]), float(chosen_by[i])) in edge]
                    fitted.append(ratio(speed, judged_by, chosen))
                crossed = [value for value in fitted if value is not None]
                rows.append(
                    {
                        "task": task,
                        "at": name,
                        "prompt": "counted" if prompt else "not counted",
                        "speed": {
                            "value": ratio(speed, quality(by, everything)[0]),
                            "low": None if low is None else float(low),
                            "high": None if high is None else float(high),
                            "n": len(tokens),
                        },
                        "reached": len(known) / SAMPLES,
                        "cross_fitted": float(np.mean(crossed)) if crossed else None,
                    }
                )
    return rows
