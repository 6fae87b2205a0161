"""EESD: drafts from an early exit, whose depth is drawn by Thompson sampling, against other ways to draft."""

from __future__ import annotations

from benchmarks.papers.learned import predictor
from benchmarks.papers.study import PLAIN, Methods, Paper, Size, Study
from draftwood.errors import ModelError
from draftwood.models.heads import exit as exits
from draftwood.models.heads import medusa

TITLE = "Speculative Decoding via Early-exiting for Faster LLM Inference with Thompson Sampling Control Mechanism"
SIZES = {"small": Size(16, 1, 64), "full": Size(200, 1, 512)}
TASKS = {"math": "GSM8K", "summaries": "XSum", "library": "HumanEval", "stories": "MT-Bench"}
GREEDY = {"temperature": 0.0}
TABLES_1_TO_3: dict[str, tuple[Paper, ...]] = {  # speed-ups over the paper's targets, in the order of TASKS
    "eesd + beta-ts": ((1.57, 2.13), (1.25, 1.84), (2.08, 2.21), (1.82, 2.03)),
    "eesd + cali-ts": ((1.59, 2.29), (1.27, 1.92), (2.15, 2.45), (1.89, 2.11)),
    "medusa": ((1.42, 1.77), (1.20, 1.53), (1.61, 1.97), (1.71, 1.89)),
    "self-spec, K=10": ((1.13, 1.37), (1.12, 1.35), (1.36, 1.38), (1.46, 1.58)),
    "vanilla, K=10": ((0.69, 1.88), (0.55, 1.46), (0.97, 1.09), (0.91, 1.02)),
}
TABLE_4: dict[tuple[str, str], Paper] = {  # of GSM8K and XSum
    ("eesd, cali-ts, no sampling part", "eesd + cali-ts"): (0.892, 0.927),
    ("eesd, cali-ts, no model part", "eesd + cali-ts"): (0.922, 0.948),
    ("eesd, K=10", "eesd + beta-ts"): (0.859, 0.869),
}
TABLE_5: Paper = (1.0163, 1.1438)  # Beta-TS over K = 10, 1.25/1.23 to 1.67/1.46
TABLE_7: Paper = (1.0272, 1.1042)  # a tree over a chain, 1.89/1.84 to 2.12/1.92
TABLE_8: Paper = (1.0368, 1.0421)  # Cali-TS over Beta-TS
EXIT = {"name": "eesd", "verify": "rejection"}
CONTROLLERS = ("beta-ts", "cali-ts", "speedup-ts", "optimal-stopping")  # the last two are ours


def controlled(calibration: str) -> Methods:
    """The exit's drafts under each controller; K is 10 (§4.1), controllers end rounds before it."""
    depths = {name: f"cali-ts:{calibration}" if name == "cali-ts" else name for name in CONTROLLERS}
    return {f"eesd + {name}": {**EXIT, "gamma": 10, "depth": depth} for name, depth in depths.items()}


def others(study: Study) -> Methods:
    """The methods that EESD is compared with, as far as these models have them."""
    result: Methods = {}
    if study.engine.drafts:
        vanilla = {"name": "speculative", "verify": "rejection", "depth": "fixed"}
        result |= {f"vanilla, K={gamma}": {**vanilla, "gamma": gamma} for gamma in (4, 10)}
    else:
        study.notes.append("No draft model was given, so vanilla speculative decoding is left out.")
    result["self-spec, K=10"] = {"name": "self-spec", "verify": "rejection", "gamma": 10, "depth": "fixed"}
    try:
        medusa.find(study.engine.target, None)
        result["medusa"] = {"name": "medusa", "verify": "rejection"}
    except ModelError as error:
        study.notes.append(f"Medusa is left out: {error}.")
    return result


def control(full: bool, calibration: str, has_draft: bool) -> Methods:
    """§5.1 to 5.3 and 5.7: fixed depths, parts taken away, Thompson sampling on other methods, trees."""
    result: Methods = {PLAIN: {"name": "autoregressive"}, **controlled(calibration)}
    for gamma in (1, 2, 3, 4, 5, 6, 8, 10) if full else (1, 2, 4, 6, 10):
        result[f"eesd, K={gamma}"] = {**EXIT, "gamma": gamma, "depth": "fixed"}
    for name in ["speculative"] * has_draft + ["self-spec"]:
        label = "vanilla" if name == "speculative" else name
        alike = {"name": name, "verify": "rejection", "gamma": 10}
        result |= {f"{label}, K=10": {**alike, "depth": "fixed"}, f"{label} + beta-ts": {**alike, "depth": "beta-ts"}}
    for name, depth in (("beta-ts", "beta-ts"), ("cali-ts", f"cali-ts:{calibration}")):
        result[f"eesd + {name}, tree"] = {**EXIT, "tree": [2, 1, 1, 1, 1, 1], "depth": depth}
    for part in ("sample", "model"):  # a deviation so large that the part counts for nothing
        label = f"eesd, cali-ts, no {'sampling' if part == 'sample' else part} part"
        result[label] = {**EXIT, "gamma": 10, "depth": f"cali-ts:path={calibration},{part}_deviation=10"}
    return result


def measure(study: Study, full: bool) -> None:
    """The target must have an exit. Exits of other shapes (Figures 4 and 5) are trained with `draftwood train eesd`."""
    exits.find(study.engine.target, None)  # raises where there is none, and says how to train one
    calibration = predictor(study, 140 if full else 56, 64 if full else 48)
    methods = {PLAIN: {"name": "autoregressive"}, **others(study), **controlled(calibration)}
    result = study.run("methods", methods, tuple(TASKS), GREEDY)
    for label, paper in TABLES_1_TO_3.items():
        for task, ends in zip(TASKS, paper, strict=True) if label in methods else ():
            study.compare(
                "Tables 1 to 3", f"{task}: speed-up of {label}", ends, result.measure("speed-up", task, label)
            )
    some = ("math", "summaries")
    has_draft = bool(study.engine.drafts)
    result = study.run("control", control(full, calibration, has_draft), some, GREEDY)
    for (of, over), ends in TABLE_4.items():
        study.compare("Table 4", f"speed of {of} over {over}", ends, result.faster(of, over))
    for task in some:
        best = result.fastest(result.starting("eesd, K="), task)
        for name in CONTROLLERS:  # the best K is chosen after the fact, on the same items, which favours it
            ratio = result.faster(f"eesd + {name}", best, [task])
            study.compare("Figure 3", f"{task}: speed of eesd + {name} over the best fixed depth", (1.0, None), ratio)
        study.notes.append(f"Figure 3, {task}: the best fixed depth is {best}.")
        for label in ["vanilla"] * has_draft + ["self-spec"]:
            what = f"{task}: speed of {label} + beta-ts over {label}, K=10"
            study.compare("Table 5", what, TABLE_5, result.faster(f"{label} + beta-ts", f"{label}, K=10", [task]))
        for name in ("beta-ts", "cali-ts"):
            ratio = result.faster(f"eesd + {name}, tree", f"eesd + {name}", [task])
            study.compare("Table 7", f"{task}: speed of eesd + {name}, tree over chain", TABLE_7, ratio)
        for name in ("beta-ts", "cali-ts"):
            shares = result.row(task, f"eesd + {name}")["timing"]["time_shares"]
            parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
            study.notes.append(f"Table 8, {task}: time of eesd + {name}: {parts}.")
    pair = {label: methods[label] for label in (PLAIN, "eesd + beta-ts", "eesd + cali-ts")}
    result = study.run("calibration", pair, tuple(TASKS), GREEDY, times=3)  # so that the two can be told apart
    study.compare(
        "Table 8", "speed of cali-ts over beta-ts", TABLE_8, result.faster("eesd + cali-ts", "eesd + beta-ts")
    )
