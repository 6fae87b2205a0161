"""DSBD: dynamic-width speculative beam decoding, against beam sampling and against methods with one hypothesis."""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.papers.study import PLAIN, Methods, Paper, Size, Study, Sweep, joules

TITLE = "Dynamic-Width Speculative Beam Decoding for Efficient LLM Inference"
SIZES = {"small": Size(30, 2), "full": Size(200, 3)}
TASKS = {"qa": "SQuAD", "sql": "Spider"}  # ours for the paper's
SAMPLING = {"temperature": 1.0, "top_k": 10, "top_p": 0.8}  # §4.1
SPEED_AT_EQUAL_QUALITY: Paper = (1.5, 1.9)  # §4.2, over both data sets
ENERGY_AT_EQUAL_QUALITY: Paper = (1.8, 2.5)
TABLE_1: dict[str, dict[str, Paper]] = {  # ratios of its rows, the least and the most of both pairs of models
    "qa": {PLAIN: (1.262, 1.566), "speculative": (0.926, 0.984), "points": (7, 12)},
    "sql": {PLAIN: (1.380, 1.448), "speculative": (0.928, 0.955), "points": (1, 11)},
}
ONE_BEAM = "dsbd, one beam kept, t=0.9"


def dsbd(width: int, threshold: float, gamma: int, **more: Any) -> dict[str, Any]:
    """Options of DSBD."""
    return {"name": "dsbd", "draft_width": width, "threshold": threshold, "gamma": gamma, **more}


def methods(full: bool) -> Methods:
    """The paper's settings (§4.2) or enough of them to see what each does, and ours beside them."""
    result: Methods = {
        PLAIN: {"name": "autoregressive"},
        "speculative": {"name": "speculative", "verify": "rejection", "gamma": 3},
        "specinfer": {"name": "specinfer", "verify": "rejection", "expansion": [2, 2, 1]},
    }
    result |= {f"beam sampling, W={width}": {"name": "beam-sampling", "width": width} for width in (2, 3, 4)}
    some = [(2, 0.9, 2), (3, 0.9, 2), (4, 0.9, 2), (6, 0.9, 2), (3, 0.7, 2), (6, 0.7, 2), (6, 0.9, 3)]
    for width, threshold, gamma in product((2, 3, 4, 5, 6), (0.7, 0.9), (2, 3)) if full else some:
        result[f"dsbd, W_S={width}, t={threshold:g}, gamma={gamma}"] = dsbd(width, threshold, gamma)
    # beyond the paper: the target's joint weighs the roots, drafts are deeper, layers wider
    ours = product((4, 6), (0.7, 0.9), (3, 4), (1, 2, 3)) if full else product((6,), (0.9,), (3, 4), (1, 3))
    for width, threshold, gamma, least in ours:
        label = f"dsbd (ours), W_S={width}, t={threshold:g}, gamma={gamma}, W_min={least}"
        result[label] = dsbd(width, threshold, gamma, root_weights="target", min_width=least)
    for threshold in (0.9, 0.7):
        result[f"dsbd, one beam kept, t={threshold:g}"] = dsbd(6, threshold, 3, one_cache=True)
    return result


def measure(study: Study, full: bool) -> None:
    """All of the paper's exhibits that can be measured follow from one sweep."""
    result = study.run("beams", methods(full), tuple(TASKS), SAMPLING)
    for (task, exhibit), (whose, prefix) in product(
        (("qa", "Figure 4"), ("sql", "Figures 5 and 6")),
        (("the paper's settings", "dsbd, W_S="), ("our settings", "dsbd (ours)")),
    ):
        equal_quality(study, result, exhibit, task, whose, prefix)
    for task, paper in TABLE_1.items():
        for other in (PLAIN, "speculative"):
            ratio = result.faster(ONE_BEAM, other, [task])
            study.compare("Table 1", f"{task}: speed of {ONE_BEAM} over {other}", paper[other], ratio)
        points, what = result.measure("points", task, ONE_BEAM), f"{task}: score of {ONE_BEAM} above plain decoding's"
        study.compare("Table 1", what, paper["points"], points, " points", 0.0)
    for width, gamma in ((6, 2), (6, 3), (3, 2)):
        of, over = (f"dsbd, W_S={width}, t={threshold}, gamma={gamma}" for threshold in (0.9, 0.7))
        if of in result.labels and over in result.labels:
            study.compare("Figure 8", f"sql: speed of {of} over t=0.7", (1.0, None), result.faster(of, over, ["sql"]))
    for task in TASKS:
        of = "dsbd, W_S=6, t=0.9, gamma=3"
        layers = result.measure("layers/predicted", task, of)
        study.compare("Theorem 3.2", f"{task}: layers per round over those predicted, {of}", (1.0, 1.0), layers)
        slots, one = (result.row(task, label)["decoding"]["peak_slots"] for label in ("beam sampling, W=4", PLAIN))
        study.notes.append(f"§3.4, {task}: 4 beams take {slots / one:.2f} times the cache slots of one sequence.")


def equal_quality(study: Study, result: Sweep, exhibit: str, task: str, whose: str, prefix: str) -> None:
    """The fastest DSBD whose score is no worse, against the beam sampling with the best score that has one.

    It is chosen after the fact, on the same items, which flatters it.
    """
    beams = result.starting("beam sampling")
    score = {label: result.value("score", task, label) for label in result.labels}
    good = {other: [label for label in result.starting(prefix) if score[label] >= score[other]] for other in beams}
    reached = [other for other in beams if good[other]]
    over = max(reversed(reached or beams), key=score.__getitem__)
    of = result.fastest(good[over], task) if good[over] else ""
    energy = "joule" if study.session.get("idle_watts") else "joule (estimate)"
    for name, ends, below in (("second", SPEED_AT_EQUAL_QUALITY, None), (energy, ENERGY_AT_EQUAL_QUALITY, joules)):
        what = f"{task}: tokens per {name} of DSBD with {whose} over {over}, at no less quality"
        ratio = None if not of else result.faster(of, over, [task], below) if below else result.faster(of, over, [task])
        study.compare(exhibit, what, ends, ratio)
    study.notes.append(f"{exhibit}, {whose}: {of or 'no setting is as good'} stands against {over}.")
