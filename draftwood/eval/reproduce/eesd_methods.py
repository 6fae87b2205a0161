"""What runs for early-exiting speculative decoding (Liu et al. 2024): methods, tasks, sizes, exits to train.

Names and options only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwood.eval.experiments.learned import Exits, Learned, Places, Recorded
from draftwood.eval.reproduce.experiment import PLAIN, Evaluation, Size

METHODS, CONTROL, EXITS = "methods", "control", "exits"
TASKS = {"math": "GSM8K", "summaries": "XSum", "library": "HumanEval", "stories": "MT-Bench"}  # ours -> its place
TWO = ("math", "summaries")
SIZES = {
    "small": Size(items=16, seeds=1, tokens=64),
    "full": Size(items=200, seeds=1, tokens=512, whole=True),
}
MOST = 10  # §4.1: K of the baselines; controllers end rounds before it
TREE = (2, 1, 1, 1, 1, 1)  # Table 7's shape is not given
BETA, CALI = "eesd + beta-ts", "eesd + cali-ts"
OWN = {"eesd + speedup-ts": "speedup-ts", "eesd + optimal-stopping": "optimal-stopping"}  # not the paper's
VANILLA, SELF = "vanilla, K=10", "self-spec, K=10"
ROWS = {"EESD + Beta-TS": BETA, "EESD + Cali-TS": CALI, "Medusa": "medusa", "Self SD": SELF}
NO_SAMPLES, NO_MODEL = "eesd, cali-ts, no sampling part", "eesd, cali-ts, no model part"
NO_EXIT = "eesd without the exit layer"


def fixed(k: int) -> str:
    return f"eesd, K={k}"


def sweep(size: Size) -> tuple[int, ...]:
    """K of Figure 3."""
    return (1, 2, 3, 4, 5, 6, 8, 10) if size.whole else (1, 2, 4, 6, 10)


def learn(size: Size) -> Learned:
    """The predictor of cali-ts; for the whole experiment exits as well: by N, by depth, and one on given text alone."""
    if not size.whole:
        return Learned(calibration=Recorded(prompts=56, tokens=48))
    return Learned(calibration=Recorded(prompts=280, tokens=96), exits=Exits(steps=800, batch=16))


def _eesd(depth: str = "fixed", k: int = MOST, **more: Any) -> dict[str, Any]:
    return {"name": "eesd", "gamma": k, "depth": depth, **more}


def controllers(made: Places) -> dict[str, str]:
    """Controllers by the names that EESD has with them."""
    cali = {CALI: f"cali-ts:{made.places['calibration']}"} if "calibration" in made.places else {}
    return {BETA: "beta-ts", **cali, **OWN}


def compared(made: Places) -> dict[str, Mapping[str, Any]]:
    """Tables 1 to 3."""
    found: dict[str, Mapping[str, Any]] = {PLAIN: {"name": "autoregressive"}}
    if "draft" not in made.missing:
        found |= {f"vanilla, K={k}": {"name": "speculative", "gamma": k} for k in (4, MOST)}
    found["self-spec"] = {"name": "self-spec"}
    found[SELF] = {"name": "self-spec", "gamma": MOST, "depth": "fixed"}
    if "medusa" not in made.missing:
        found["medusa"] = {"name": "medusa"}
    return found | {name: _eesd(depth) for name, depth in controllers(made).items()}


def controlled(size: Size, made: Places) -> dict[str, Mapping[str, Any]]:
    """Figure 3, Tables 4, 5, 7 and 8."""
    found: dict[str, Mapping[str, Any]] = {PLAIN: {"name": "autoregressive"}}
    found |= {fixed(k): _eesd(k=k) for k in sweep(size)}
    found |= {name: _eesd(depth) for name, depth in controllers(made).items()}
    for controller in ("fixed", "beta-ts", "speedup-ts"):
        options = {"gamma": MOST, "depth": controller}
        ending = ", K=10" if controller == "fixed" else f" + {controller}"
        if "draft" not in made.missing:
            found[f"vanilla{ending}"] = {"name": "speculative", **options}
        found[f"self-spec{ending}"] = {"name": "self-spec", **options}
    for name, depth in controllers(made).items():
        if name in (BETA, CALI):
            found[f"{name}, tree"] = {"name": "eesd", "tree": list(TREE), "depth": depth}
    if path := made.places.get("calibration"):
        found[NO_SAMPLES] = _eesd(f"cali-ts:path={path},sample_deviation=10")
        found[NO_MODEL] = _eesd(f"cali-ts:path={path},model_deviation=10")
    if rest := made.places.get("behind"):
        found[NO_EXIT] = {"name": "self-spec", "attention": rest, "mlp": rest, "gamma": MOST, "depth": "beta-ts"}
    return found


def trained(made: Places) -> dict[str, Mapping[str, Any]]:
    """Figures 4 and 5, and self-distillation of Table 4: exits that were trained equally long."""
    found: dict[str, Mapping[str, Any]] = {PLAIN: {"name": "autoregressive"}}
    return found | {one.label: _eesd("beta-ts", exit=one.place) for one in made.exits}


def evaluations(size: Size, made: Places) -> list[Evaluation]:
    greedy = {"temperature": 0.0}
    found = [
        Evaluation(METHODS, compared(made), tuple(TASKS), size, greedy),
        Evaluation(CONTROL, controlled(size, made), TWO, size, greedy),
    ]
    return found + [Evaluation(EXITS, trained(made), TWO, size, greedy)] * bool(made.exits)
