"""MCSD, improved: static trees that begin with tokens of the target, forks, and decision models.

A tree whose first layer is drawn from the target is lossy. `verify=longest` is the rule that the authors released.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.learned import DecisionKind, decision
from benchmarks.papers.settings import PLAIN
from benchmarks.papers.study import Paper, Size, Study
from draftwood.errors import ConfigurationError

SIZES = {"small": Size(30, 3, 64), "full": Size(80, 5, 200)}
TABLE_2: dict[str, dict[str, Paper]] = {  # alpha, of both targets
    "speculative, gamma=4": {"MT-Bench": (0.17, 0.18), "TriviaQA": (0.15, 0.21), "Alpaca": (0.20, 0.21)},
    "mcsd 4,2,2,1": {"MT-Bench": (0.29, 0.31), "TriviaQA": (0.21, 0.33), "Alpaca": (0.34, 0.35)},
    "target-init. 2,4,3,1,1": {"MT-Bench": (0.40, 0.47), "TriviaQA": (0.51, 0.53), "Alpaca": (0.46, 0.52)},
}
TABLE_3: dict[str, dict[str, Paper]] = {
    "speculative, gamma=5": {"MT-Bench": (0.11, 0.13), "TriviaQA": (0.12, 0.14), "Alpaca": (0.13, 0.13)},
    "mcsd 4,2,2,1,1": {"MT-Bench": (0.20, 0.23), "TriviaQA": (0.21, 0.21), "Alpaca": (0.23, 0.23)},
    "fork W=16": {"MT-Bench": (0.74, 0.75), "TriviaQA": (0.75, 0.80), "Alpaca": (0.75, 0.79)},
}
TABLE_4: dict[str, Paper] = {"MT-Bench": (0.76, 0.93), "TriviaQA": (0.86, 0.96), "Alpaca": (0.80, 0.94)}
MOST_SPEED_UP: Paper = (None, 1.90)  # abstract
MOST_OVER_MCSD: Paper = (None, 1.275)
OURS, THREE, LESS_LOSSY = "target-init. 2,4,3,1,1", "target-init. 3,4,3,1,1", "longest root 2,4,3,1,1"


def measure(study: Study) -> dict[str, Callable[[], None]]:
    """Static trees at temperature 0.7, forks at 1 and 0."""
    return {
        "trees": lambda: trees(study),
        "shapes": lambda: shapes(study),
        "forks": lambda: forks(study),
        "forks-greedy": lambda: greedy_forks(study),
    }


def trees(study: Study) -> None:
    """Tables 1 and 2, Figure 3."""
    result = study.run("trees")
    for label, paper in TABLE_2.items():
        for task, ends in paper.items():
            alpha = result.measure("alpha", task, label)
            study.compare("Table 2", f"{task}: alpha of {label}", ends, alpha, "", None)
    for other, ends in ((PLAIN, MOST_SPEED_UP), ("mcsd 4,2,2,1", MOST_OVER_MCSD), ("mcsd 4,3,1,1", (None, None))):
        ratio = result.faster(OURS, other)
        study.compare("Figure 3, abstract", f"all tasks: speed of {OURS} over {other}", ends, ratio)
    for label, other in ((OURS, PLAIN), (THREE, PLAIN), (THREE, OURS), (LESS_LOSSY, PLAIN)):
        ratio, what = result.perplexity(label, other), f"all tasks: perplexity of {label} over {other}"
        study.compare("Table 1", what, (1.0, None), ratio)
    for task in result.tasks:
        for label in (OURS, THREE, LESS_LOSSY):
            if (points := result.measure("points", task, label)) is not None and points["value"] is not None:
                what = f"{task}: score of {label} above plain decoding's"
                study.compare("Table 1", what, (None, 0.0), points, " points", 0.0)
            elif label in result.labels:
                study.note(
                    f"Table 1, {task}: perplexity under the target {result.value('perplexity', task, label):.2f} of "
                    f"{label}, {result.value('perplexity', task, PLAIN):.2f} of {PLAIN}."
                )


def shapes(study: Study) -> None:
    """Figure 4: of the trees behind two tokens of the target the paper finds 2,4,3,1,1 the fastest."""
    result = study.run("shapes")
    of, over = "2,4,3,1,1", "2,1,1,1,1"
    study.compare("Figure 4", f"MT-Bench: speed of {of} over {over}", (1.0, None), result.faster(of, over))


def decisions(study: Study) -> dict[str, str]:
    """The files of decision models by what stands for them in the settings; trained where they are not there yet."""
    models: dict[str, str] = {}
    kinds: tuple[tuple[DecisionKind, str], ...] = (("output", "OUTPUT"), ("hidden", "HIDDEN"))
    for kind, name in kinds:
        try:
            models[name], judged = decision(study, kind, 140 if study.full else 56, 64 if study.full else 48)
        except ConfigurationError as error:  # drafts without hidden states
            study.note(f"Decisions on {kind} are left out: {error}.")
            continue
        if judged not in study.learned:
            study.learned.append(judged)
    return models


def forks(study: Study) -> None:
    """Table 3, Figures 5, 6 and 8; decision models are trained first."""
    result = study.run("forks", decisions(study))
    for label, paper in TABLE_3.items():
        for task, ends in paper.items():
            alpha = result.measure("alpha", task, label)
            study.compare("Table 3", f"{task}: alpha of {label}", ends, alpha, "", None)
    study.compare("Figure 5", f"speed of fork W=16 over {PLAIN}", (1.0, None), result.faster("fork W=16", PLAIN))
    for width in (4, 16):
        label = f"fork W={width}"
        study.compare("Figure 6", f"speed of {label} over W=1", (1.0, None), result.faster(label, "fork W=1"))
        for kind in ("output", "hidden"):
            ratio = result.faster(f"{label}, decisions on {kind}", label)
            what = f"speed of {label} with decisions on {kind} over without"
            study.compare("Figure 8", what, (None, None), ratio, even=None)


def greedy_forks(study: Study) -> None:
    """Table 4."""
    result = study.run("forks-greedy", decisions(study) if study.full else None)
    for task, ends in TABLE_4.items():
        for label in ("fork W=16", "exact fork W=16"):
            alpha = result.measure("alpha", task, label)
            study.compare("Table 4", f"{task}, temperature 0: alpha of {label}", ends, alpha, "", None)
