"""Speed at equal quality: Pareto fronts of two families of settings, bootstrapped and cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import permutations

import numpy as np

from benchmarks.experiment import Rows, Strict
from draftwood.eval.intervals import Array, Interval, drawn
from draftwood.eval.summary import NATS, SECONDS, TOKENS, decode_seconds, scored
from draftwood.eval.tasks import parse
from draftwood.util.jsonl import Record

Point = tuple[float, float]  # (speed, quality), more is better
SAMPLES, LEVELS = 500, 21
EQUAL = {"equal score": ("score", 0.0), "a point of score less": ("score", 0.01), "equal perplexity": ("perplexity", 0)}


class Front(Strict):
    """Patterns of labels: settings whose speed is compared at equal quality."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, fastest first, so that quality rises along it."""
    best, kept = -math.inf, []
    for speed, quality in sorted(points, key=lambda point: (-point[0], -point[1])):
        if quality > best:
            kept.append((speed, quality))
            best = quality
    return kept


def at_equal_quality(ours: Sequence[Point], theirs: Sequence[Point], slack: float = 0.0) -> float | None:
    """Our front's speed over theirs: the median over qualities spread evenly over what both reach.

    Fronts are linear between their points. None where ours does not reach what their fastest has. A quality lower by
    `slack` counts as equal.
    """
    mine, other = (np.array(front(each)).T for each in (ours, theirs))  # [speed and quality, point]
    mine[1] += slack
    low, high = other[1][0], min(other[1][-1], mine[1][-1])
    if high < low:
        return None
    levels = np.linspace(low, high, LEVELS)
    return float(np.median(np.interp(levels, mine[1], mine[0]) / np.interp(levels, other[1], other[0])))


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
    groups = [group for each in (fast, good) for group in each.values()]
    whole = [i for i in range(len(labels)) if all("tokens" in record for group in groups for record in group[i])]
    ours, theirs = (
        [i for i in whole if any(fnmatchcase(labels[i], each) for each in patterns)]
        for patterns in (asked.ours, asked.theirs)
    )
    rows: Rows = []
    for task in fast if ours and theirs else ():
        judged = good.get(task, fast[task])
        if not judged[0] or not fast[task][0]:
            continue
        tokens, metric = _column(fast[task], TOKENS), parse(task).headline
        score = _column(judged, partial(scored, name=metric))
        nats, length = _column(judged, NATS), _column(judged, TOKENS)
        places = sorted({record["place"] for record in judged[0]})
        document = np.array([[record["place"] == place for record in judged[0]] for place in places], dtype=float)
        halves = [np.array([number % 2 == half for number in range(len(places))], float) for half in (0, 1)]
        weights = np.vstack([np.ones((1, len(places))), *halves, drawn(len(places), SAMPLES)]) @ document
        qualities = {  # [all documents, those of each half, samples of them; setting]
            "score": (weights @ score) / np.maximum(weights.sum(-1, keepdims=True), 1e-9),
            "perplexity": -np.exp((weights @ nats) / np.maximum(weights @ length, 1)),
        }
        items = np.vstack([np.ones((1, len(tokens))), drawn(len(tokens), SAMPLES)])
        for prompt in (False, True):
            speeds = (items @ tokens) / (items @ _column(fast[task], SECONDS if prompt else decode_seconds))
            for name, (by, slack) in EQUAL.items():
                whole_quality, *of_halves = qualities[by][:3]

                def ratio(speed: Array, good: Array, mine: Sequence[int] = ours, slack: float = slack) -> float | None:
                    points = [[(float(speed[i]), float(good[i])) for i in chosen] for chosen in (mine, theirs)]
                    return at_equal_quality(points[0], points[1], slack)

                found = [ratio(speed, good) for speed, good in zip(speeds[1:], qualities[by][3:], strict=True)]
                known = [value for value in found if value is not None]
                low, high = map(float, np.quantile(known, [0.025, 0.975])) if known else (None, None)
                fitted = []
                for chosen_by, judged_by in permutations(of_halves) if len(places) > 1 else ():
                    edge = front([(float(speeds[0][i]), float(chosen_by[i])) for i in ours])
                    chosen = [i for i in ours if (float(speeds[0][i]), float(chosen_by[i])) in edge]
                    fitted.append(ratio(speeds[0], judged_by, chosen))
                crossed = [value for value in fitted if value is not None]
                value = ratio(speeds[0], whole_quality)
                rows.append(
                    {
                        "task": task,
                        "at": name,
                        "prompt": "counted" if prompt else "not counted",
                        "speed": Interval(value=value, low=low, high=high, n=len(tokens)),
                        "reached": len(known) / SAMPLES,
                        "cross_fitted": float(np.mean(crossed)) if crossed else None,
                    }
                )
    return rows


def _column(groups: Sequence[Sequence[Record]], value: Callable[[Record], float | None]) -> Array:
    """[run, setting]; runs that failed belong to settings that are left out."""
    found = [[value(r) or 0.0 if "tokens" in r else 1.0 for r in group] for group in groups]
    return np.array(found, dtype=float).T
