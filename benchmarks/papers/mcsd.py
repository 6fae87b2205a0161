"""MCSD, improved: static trees that begin with tokens of the target, forks, and decision models.

A tree whose first layer is drawn from the target is lossy. `verify=longest` is the rule that the authors released.
"""

from __future__ import annotations

from benchmarks.papers.learned import decision
from benchmarks.papers.study import PLAIN, Methods, Paper, Size, Study

TITLE = "Improving Multi-candidate Speculative Decoding"
SIZES = {"small": Size(16, 1, 64), "full": Size(80, 3, 200)}
TASKS = {"stories": "MT-Bench", "qa": "TriviaQA", "summaries": "Alpaca"}
TABLE_2: dict[str, dict[str, Paper]] = {  # alpha, of both targets
    "speculative, gamma=4": {"stories": (0.17, 0.18), "qa": (0.15, 0.21), "summaries": (0.20, 0.21)},
    "mcsd 4,2,2,1": {"stories": (0.29, 0.31), "qa": (0.21, 0.33), "summaries": (0.34, 0.35)},
    "target-init. 2,4,3,1,1": {"stories": (0.40, 0.47), "qa": (0.51, 0.53), "summaries": (0.46, 0.52)},
}
TABLE_3: dict[str, dict[str, Paper]] = {
    "speculative, gamma=5": {"stories": (0.11, 0.13), "qa": (0.12, 0.14), "summaries": (0.13, 0.13)},
    "mcsd 4,2,2,1,1": {"stories": (0.20, 0.23), "qa": (0.21, 0.21), "summaries": (0.23, 0.23)},
    "fork W=16, longest": {"stories": (0.74, 0.75), "qa": (0.75, 0.80), "summaries": (0.75, 0.79)},
}
TABLE_4: dict[str, Paper] = {"stories": (0.76, 0.93), "qa": (0.86, 0.96), "summaries": (0.80, 0.94)}  # temperature 0
MOST_SPEED_UP: Paper = (None, 1.90)  # abstract
MOST_OVER_MCSD: Paper = (None, 1.275)
MOST_OF_DECISIONS: Paper = (None, 1.10)  # App. A.2, what is expected of a perfect one
SHAPES = [[1, 1, 1, 1], [2, 1, 1, 1], [2, 2, 1, 1], [3, 2, 1, 1], [4, 3, 1, 1]]  # Figure 4, behind 2 initial tokens
MORE_SHAPES = [[3, 1, 1, 1], [4, 1, 1, 1], [4, 2, 1, 1], [2, 3, 1, 1], [3, 3, 1, 1], [4, 2, 2, 1], [4, 4, 1, 1]]
RULES = {"longest": "longest", "exact": "rejection"}  # of forks, by what their labels say


def tree(shape: list[int], initial: int | None = None, verify: str = "longest", **more: object) -> dict[str, object]:
    """A static tree, of the draft or behind `initial` tokens of the target."""
    first = {"verify": "rejection"} if initial is None else {"verify": verify, "initial": initial}
    return {"name": "mcsd", "tree": shape, **first, **more}


def trees() -> Methods:
    """§4.1 and 4.2."""
    shape = [4, 3, 1, 1]
    result: Methods = {
        PLAIN: {"name": "autoregressive"},
        "speculative, gamma=4": {"name": "speculative", "verify": "rejection", "gamma": 4},
        "mcsd 4,2,2,1": tree([4, 2, 2, 1]),
        "mcsd 4,3,1,1": tree(shape),
        "target-init. 2,4,3,1,1": tree(shape, 2),
        "target-init. 3,4,3,1,1": tree(shape, 3),
        "longest root 2,4,3,1,1": tree(shape, 2, "longest-root"),
        "independent init. 2,4,3,1,1": tree(shape, 2, "longest-root", replacement=True),
    }
    return result


def forks(full: bool, models: dict[str, str]) -> Methods:
    """App. A: forks of depth 5, around the widths where the paper's curves level off and fall."""
    result: Methods = {
        PLAIN: {"name": "autoregressive"},
        "speculative, gamma=5": {"name": "speculative", "verify": "rejection", "gamma": 5},
        "mcsd 4,2,2,1,1": tree([4, 2, 2, 1, 1]),
    }
    widths = (1, 2, 4, 6, 8, 10, 12, 16, 21) if full else (1, 4, 10, 16, 21)
    for rule, verify in RULES.items():
        alike = {"name": "mcsd-fork", "gamma": 5, "verify": verify}
        for width in widths:
            result[f"fork W={width}, {rule}"] = {**alike, "width": width}
        for kind, path in models.items():
            for width in (4, 16):
                depth = f"decision:path={path},threshold=0.4"
                result[f"fork W={width}, {rule}, {kind}"] = {**alike, "width": width, "depth": depth}
    return result


def measure(study: Study, full: bool) -> None:
    """Static trees at temperature 0.7, forks at 1 and 0; decision models are trained first."""
    static(study)
    shapes(study, full)
    models, tokens = {}, 64 if full else 48
    for kind in ("output", "hidden"):
        path, judged = decision(study, kind, 140 if full else 56, tokens)
        models[f"decisions on {kind}"] = path
        study.learned.append(judged)
    result = study.run("forks", forks(full, models), tuple(TASKS), {"temperature": 1.0})
    for label, paper in TABLE_3.items():
        for task, ends in paper.items():
            study.compare("Table 3", f"{task}: alpha of {label}", ends, result.measure("alpha", task, label), "", None)
    for rule in RULES:
        for width in (4, 16):
            label = f"fork W={width}, {rule}"
            ratio = result.faster(label, f"fork W=1, {rule}")
            study.compare("Figures 5 and 6", f"speed of {label} over W=1", (1.0, None), ratio)
            for kind in models:
                ratio = result.faster(f"{label}, {kind}", label)
                what = f"speed of {label} with {kind} over without"
                study.compare("Figure 8", what, MOST_OF_DECISIONS, ratio, even=None)
    kept = ("autoregressive", "speculative", "mcsd")
    greedy = {label: each for label, each in forks(False, {}).items() if each["name"] in kept or "W=16" in label}
    result = study.run("forks-greedy", greedy, tuple(TASKS), {"temperature": 0.0})
    for task, ends in TABLE_4.items():
        for rule in RULES:
            label = f"fork W=16, {rule}"
            what = f"{task}, temperature 0: alpha of {label}"
            study.compare("Table 4", what, ends, result.measure("alpha", task, label), "", None)


def static(study: Study) -> None:
    """Tables 1 and 2, Figure 3."""
    result = study.run("trees", trees(), tuple(TASKS), {"temperature": 0.7})
    for label, paper in TABLE_2.items():
        for task, ends in paper.items():
            study.compare("Table 2", f"{task}: alpha of {label}", ends, result.measure("alpha", task, label), "", None)
    ours = "target-init. 2,4,3,1,1"
    for other, ends in ((PLAIN, MOST_SPEED_UP), ("mcsd 4,2,2,1", MOST_OVER_MCSD), ("mcsd 4,3,1,1", (None, None))):
        study.compare(
            "Figure 3, abstract", f"all tasks: speed of {ours} over {other}", ends, result.faster(ours, other)
        )
    for task in ("qa", "summaries"):
        for label in [label for label in result.labels if "init." in label or "root" in label]:
            what = f"{task}: score of {label} above plain decoding's"
            study.compare("Table 1", what, (None, 0.0), result.measure("points", task, label), " points", 0.0)


def shapes(study: Study, full: bool) -> None:
    """Figure 4: of the trees behind two tokens of the target the paper finds 2,4,3,1,1 the fastest."""
    asked = {f"2,{','.join(map(str, shape))}": tree(shape, 2) for shape in SHAPES + MORE_SHAPES * full}
    result = study.run("shapes", {PLAIN: {"name": "autoregressive"}, **asked}, ("stories",), {"temperature": 0.7})
    best = result.fastest(list(asked), "stories")
    of, over = "2,4,3,1,1", "2,1,1,1,1"
    study.compare("Figure 4", f"stories: speed of {of} over {over}", (1.0, None), result.faster(of, over))
    study.notes.append(f"Figure 4, stories: {best} is the fastest of {len(asked)} trees.")
