"""DSBD: dynamic-width speculative beam decoding, against beam sampling and against methods with one hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from benchmarks.intervals import Choose
from benchmarks.papers.settings import PLAIN
from benchmarks.papers.study import Paper, Size, Study, Sweep, per_joule, quality, rate
from draftwood.eval.intervals import Array

SIZES = {"small": Size(30, 5), "full": Size(60, 5)}
SPEED_AT_EQUAL_QUALITY: Paper = (1.5, 1.9)  # §4.2, over both data sets
ENERGY_AT_EQUAL_QUALITY: Paper = (1.8, 2.5)
TABLE_1: dict[str, dict[str, Paper]] = {  # ratios of its rows, the least and the most of both pairs of models
    "SQuAD": {PLAIN: (1.262, 1.566), "speculative": (0.926, 0.984), "points": (7, 12)},
    "Spider": {PLAIN: (1.380, 1.448), "speculative": (0.928, 0.955), "points": (1, 11)},
}
ONE_BEAM = "dsbd, one beam kept, t=0.9"


def measure(study: Study) -> dict[str, Callable[[], None]]:
    """All of the paper's exhibits that can be measured follow from one sweep."""
    return {"beams": lambda: beams(study)}


def beams(study: Study) -> None:
    """Figures 4 to 8, Table 1, Theorem 3.2."""
    result = study.run("beams")
    exhibits = {"SQuAD": "Figure 4", "Spider": "Figures 5 and 6"}
    settings = (("the paper's settings", "dsbd, W_S="), ("our settings", "dsbd (ours)"))
    for (task, exhibit), (whose, prefix) in product(exhibits.items(), settings):
        equal_quality(study, result, exhibit, task, whose, prefix)
    for task, paper in TABLE_1.items():
        for other in (PLAIN, "speculative"):
            if other in result.labels:
                ratio = result.faster(ONE_BEAM, other, [task])
                study.compare("Table 1", f"{task}: speed of {ONE_BEAM} over {other}", paper[other], ratio)
        points, what = result.measure("points", task, ONE_BEAM), f"{task}: score of {ONE_BEAM} above plain decoding's"
        study.compare("Table 1", what, paper["points"], points, " points", 0.0)
    for width, gamma in ((6, 2), (6, 3), (3, 2)):
        of, over = (f"dsbd, W_S={width}, t={threshold}, gamma={gamma}" for threshold in (0.9, 0.7))
        if of in result.labels and over in result.labels:
            ratio = result.faster(of, over, ["Spider"])
            study.compare("Figure 8", f"Spider: speed of {of} over t=0.7", (1.0, None), ratio)
            ratio = result.perplexity(of, over, ["Spider"])
            study.compare("Figure 8", f"Spider: perplexity of {of} over t=0.7", (1.0, None), ratio)
    for task in result.tasks:
        of = "dsbd, W_S=6, t=0.9, gamma=3"
        layers = result.measure("layers/predicted", task, of)
        study.compare("Theorem 3.2", f"{task}: layers per round over those predicted, {of}", (1.0, 1.0), layers)
        if "beam sampling, W=4" not in result.labels:
            continue
        slots, one = (result.row(task, label)["decoding"]["peak_slots"] for label in ("beam sampling, W=4", PLAIN))
        if one:  # else time was over before any run of it
            study.note(f"§3.4, {task}: 4 beams take {slots / one:.2f} times the cache slots of one sequence.")


def equal_quality(study: Study, result: Sweep, exhibit: str, task: str, whose: str, prefix: str) -> None:
    """The fastest DSBD that answers no worse than the best beam sampling, against it.

    Both are chosen on half of the items and judged on the other; where no DSBD answers as well, the best one is taken.
    The difference of their quality on the items that they are judged on stands beside their speed.
    """
    beams, candidates = result.starting("beam sampling"), result.starting(prefix)
    if not beams or not candidates or task not in result.tasks:
        return
    labels, choose = [*candidates, *beams], at_equal_quality(len(candidates))

    def ratio(of: Array, over: Array) -> Array:
        return rate(of) / rate(over)

    def energy(of: Array, over: Array) -> Array:
        return per_joule(of) / per_joule(over)

    about = f"DSBD with {whose} over beam sampling, at equal quality"
    speed, chosen = result.apart(task, labels, choose, ratio)
    study.compare(exhibit, f"{task}: tokens per second of {about}", SPEED_AT_EQUAL_QUALITY, speed)
    if study.session.get("idle_watts"):
        joule = result.apart(task, labels, choose, energy)[0]
        study.compare(exhibit, f"{task}: tokens per joule of {about}", ENERGY_AT_EQUAL_QUALITY, joule)
    factor, unit, measure = 100, " points", "quality"
    if not result.by_score(task, labels):
        factor, unit, measure = 1, " nats per token", "quality (minus log perplexity)"
    better = result.apart(task, labels, choose, lambda of, over: factor * (quality(of) - quality(over)))[0]
    study.compare(exhibit, f"{task}: {measure} of {about}", (0.0, 0.0), better, unit, 0.0)
    study.note(f"{exhibit}, {task}, {whose}: {chosen}.")


def at_equal_quality(count: int) -> Choose:
    """Chooses among the first `count` candidates the fastest that is as good as the best of the others, and that one.

    Of several as good the faster one; where none is as good as that, the best.
    """

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        good, fast = quality(sums), rate(sums)
        order = good + 1e-9 * fast / fast.max()
        other = count + order[count:].argmax(0)
        enough = good[:count] >= np.take_along_axis(good, other[None], 0)
        fastest = np.where(enough, fast[:count], -np.inf).argmax(0)
        return np.where(enough.any(0), fastest, order[:count].argmax(0)), other

    return choose
