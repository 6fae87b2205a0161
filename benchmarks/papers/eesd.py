"""EESD: drafts from an early exit, whose depth is drawn by Thompson sampling, against other ways to draft."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import numpy as np

from benchmarks.papers.learned import Way, exit_layer, label_of, predictor
from benchmarks.papers.settings import OURS, PAPERS, PaperMethod
from benchmarks.papers.study import PREDICTED, Paper, Size, Study, Sweep, rate
from draftwood.errors import ModelError
from draftwood.eval.intervals import Array, Interval

SIZES = {"small": Size(30, 3, 64), "full": Size({"GSM8K": 100, "XSum": 50, "HumanEval": 60, "MT-Bench": 80}, 3, 512)}
TABLES_1_TO_3: dict[str, tuple[Paper, ...]] = {  # speed-ups over the paper's targets, in the order of its data sets
    "eesd + beta-ts": ((1.57, 2.13), (1.25, 1.84), (2.08, 2.21), (1.82, 2.03)),
    "eesd + cali-ts": ((1.59, 2.29), (1.27, 1.92), (2.15, 2.45), (1.89, 2.11)),
    "medusa": ((1.42, 1.77), (1.20, 1.53), (1.61, 1.97), (1.71, 1.89)),
    "self-spec, K=10": ((1.13, 1.37), (1.12, 1.35), (1.36, 1.38), (1.46, 1.58)),
    "vanilla, K=10": ((0.69, 1.88), (0.55, 1.46), (0.97, 1.09), (0.91, 1.02)),
}
TABLES_10_TO_13: dict[str, tuple[tuple[Paper, Paper], ...]] = {  # v_d and r_d, likewise
    "eesd + beta-ts": (
        ((0.34, 0.52), (0.58, 0.68)),
        ((0.24, 0.48), (0.47, 0.66)),
        ((0.54, 0.64), (0.72, 0.75)),
        ((0.45, 0.56), (0.63, 0.70)),
    ),
    "eesd + cali-ts": (
        ((0.35, 0.56), (0.59, 0.71)),
        ((0.25, 0.49), (0.48, 0.67)),
        ((0.55, 0.65), (0.73, 0.76)),
        ((0.47, 0.58), (0.66, 0.72)),
    ),
}
TABLE_4: dict[tuple[str, str], Paper] = {  # of GSM8K and XSum
    ("eesd, cali-ts, no sampling part", "eesd + cali-ts"): (0.892, 0.927),
    ("eesd, cali-ts, no model part", "eesd + cali-ts"): (0.922, 0.948),
    ("eesd, K=10", "eesd + beta-ts"): (0.859, 0.869),
}
NO_LAYER: Paper = (0.618, 0.625)  # Table 4: a head alone over the exit, 1.18/1.91 and 1.15/1.84
NO_DISTILLATION: Paper = (0.940, 0.953)  # 1.73/1.84 and 1.82/1.91
TABLE_5: dict[
    tuple[str, str], dict[str, Paper]
] = {  # Beta-TS over K = 10, from 0.99/0.96 and 2.02/1.88 to 1.25/1.23 and 1.40/1.35
    ("vanilla + beta-ts", "vanilla, K=10"): {"GSM8K": (1.0313, 1.0745), "XSum": (1.1039, 1.1438)},
    ("self-spec + beta-ts", "self-spec, K=10"): {"GSM8K": (1.0292, 1.0511), "XSum": (1.0163, 1.0370)},
}
EESD_OVER_TABLE_5: dict[str, Paper] = {  # over others with Beta-TS: 2.13/2.02 to 1.84/0.85, 1.84/1.40 to 2.13/1.44
    "vanilla + beta-ts": (1.0545, 2.1647),
    "self-spec + beta-ts": (1.3143, 1.4792),
}
TABLE_7: Paper = (1.0272, 1.1042)  # a tree over a chain, 1.89/1.84 to 2.12/1.92
TABLE_8: Paper = (1.0368, 1.0421)  # Cali-TS over Beta-TS, of XSum
ASKED_FOR = ("exits",)  # parts that are measured with --full or by name alone: they train nine exits
CONTROLLERS = ("beta-ts", "cali-ts", "speedup-ts", "optimal-stopping")  # the last two are ours


def measure(study: Study) -> dict[str, Callable[[], None]]:
    """Tables and figures by part. An exit is trained first, by the paper's own loss."""
    return {
        "methods": lambda: methods(study),
        "control": lambda: control(study),
        "exits": lambda: exits(study),
    }


def learned(study: Study) -> dict[str, str]:
    """The exit and its predictor by what stands for them in the settings."""
    exit = exit_layer(study)[0]
    return {"EXIT": exit, "CALIBRATION": predictor(study, exit)}


def methods(study: Study) -> None:
    """Tables 1 to 3, 8 and 10 to 13, and what Eq. 14 predicts."""
    result = study.run("methods", learned(study))
    for label, paper in TABLES_1_TO_3.items():
        for task, ends in zip(study.paper.tasks, paper, strict=True) if label in result.labels else ():
            speed = result.measure("speed-up", task, label)
            study.compare("Tables 1 to 3", f"{task}: speed-up of {label}", ends, speed)
    for label, pairs in TABLES_10_TO_13.items():
        for task, shares in zip(study.paper.tasks, pairs, strict=True):
            for name, end in zip(("v_d", "r_d"), shares, strict=True):
                share = result.measure(name, task, label)
                study.compare("Tables 10 to 13, App. D and E", f"{task}: {name} of {label}", end, share, "", None)
            for name in PREDICTED if label == "eesd + beta-ts" else ():
                guess, what = result.measure(name, task, label), f"{task}: speed-up of {label}, {name}"
                study.compare("Tables 10 to 13, App. D and E", what, (None, None), guess, even=None)
    for other in ("medusa", "self-spec, K=10", "vanilla, K=10"):
        ratio, what = result.faster("eesd + beta-ts", other), f"all tasks: speed of eesd + beta-ts over {other}"
        study.compare("Tables 1 to 3", what, (1.0, None), ratio)
    ratio = result.faster("eesd + cali-ts", "eesd + beta-ts", ["XSum"])
    study.compare("Table 8", "XSum: speed of cali-ts over beta-ts", TABLE_8, ratio)
    for task in result.tasks:
        for label in result.starting("eesd + "):
            spent = result.row(task, label)["timing"]["time_shares"]
            parts = ", ".join(f"{part} {share:.0%}" for part, share in spent.items())
            study.note(f"Table 8, {task}: time of {label}: {parts}.")


def control(study: Study) -> None:
    """§5.1 to 5.3 and 5.7: fixed depths, parts taken away, Thompson sampling on other methods, trees."""
    result = study.run("control", learned(study))
    for (of, over), ends in TABLE_4.items():
        study.compare("Table 4", f"speed of {of} over {over}", ends, result.faster(of, over))
    for other, ends in EESD_OVER_TABLE_5.items():
        ratio, what = result.faster("eesd + beta-ts", other), f"all tasks: speed of eesd + beta-ts over {other}"
        study.compare("Table 5", what, ends, ratio)
    for task in result.tasks:
        for name in CONTROLLERS:
            apart = over_fixed(study, result, task, f"eesd + {name}")
            study.compare("Figure 3", f"{task}: speed of eesd + {name} over the best fixed depth", (1.0, None), apart)
        for (label, other), by_task in TABLE_5.items():
            what = f"{task}: speed of {label} over {other}"
            study.compare("Table 5", what, by_task[task], result.faster(label, other, [task]))
        for name in ("beta-ts", "cali-ts"):
            ratio = result.faster(f"eesd + {name}, tree", f"eesd + {name}", [task])
            study.compare("Table 7", f"{task}: speed of eesd + {name}, tree over chain", TABLE_7, ratio)


def over_fixed(study: Study, result: Sweep, task: str, label: str) -> Interval | None:
    """A controller over the fixed depth that is fastest on half of the items; both are timed on the other half."""
    fixed = result.starting("eesd, K=")
    if not fixed or label not in result.labels:
        return None

    def choose(sums: Array) -> tuple[np.ndarray, np.ndarray]:
        best = 1 + rate(sums[1:]).argmax(0)
        return np.zeros_like(best), best

    ratio, chosen = result.apart(task, [label, *fixed], choose, lambda of, over: rate(of) / rate(over))
    study.note(f"Figure 3, {task}: {chosen}.")
    return ratio


def exits(study: Study) -> None:
    """Figures 4 and 5, and Table 4's exits: each shape under Beta-TS; those alone whose labels are asked for."""
    shapes: dict[str, list[int]] = study.paper.training
    asked: list[tuple[int | None, int, Way]] = [(layers, 1, "mixed") for layers in shapes["layers"]]
    asked += [(None, 1, "mixed"), *((None, depth, "mixed") for depth in shapes["exit_layers"])]
    asked += [(None, 1, "given"), (None, 1, "target")]
    entries = {}
    for layers, depth, way in asked:
        if study.only and not any(fnmatchcase(label_of(study, layers, depth, way), each) for each in study.only):
            continue
        try:
            place, label = exit_layer(study, layers, depth, way)
        except ModelError as error:  # the target is not that deep
            study.note(f"An exit with N={layers} is left out: {error}.")
            continue
        options = {"name": "eesd", "verify": "rejection", "gamma": None, "exit": place, "depth": "beta-ts"}
        entries[label] = PaperMethod(options, OURS if way == "target" else PAPERS)
    result = study.run("exits", more=entries)
    given = study.models.exit is not None  # which may have another N
    usual = exit_layer(study)[1] if given else label_of(study, None, 1, "mixed")
    without: tuple[tuple[int, Way, Paper], ...] = ((0, "mixed", NO_LAYER), (1, "given", NO_DISTILLATION))
    for depth, way, ends in without:
        other = label_of(study, None, depth, way)
        study.compare("Table 4", f"speed of {other} over {usual}", ends, result.faster(other, usual))
