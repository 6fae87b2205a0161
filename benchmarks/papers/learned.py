"""Models that the papers' methods need: decision models of MCSD, the predictor of Cali-TS. Each is trained once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.papers.study import Study
from draftwood.depth.calibrated import PLACES, save_calibration
from draftwood.depth.decision import DecisionKind, save_decision
from draftwood.methods import Method
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
from draftwood.train import calibration, decisions
from draftwood.train.prompts import CORPUS, prompts_of

SEED = 0
JUDGED = ("examples", "accepted", "auc", "overlap", "log_loss", "base_loss", "error")


def _counted(study: Study, what: str) -> Callable[[int, int], None]:
    return lambda done, total: study.told(f"recording drafts for {what}: {done} of {total} prompts")


def _place(study: Study, name: str) -> Path:
    path = study.out / "trained" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def decision(study: Study, kind: DecisionKind, prompts: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """A decision model of MCSD: its file, and how well it predicts on prompts that it did not see."""
    path = _place(study, f"{kind}-{prompts}x{tokens}.safetensors")
    if not path.is_file():
        texts = prompts_of(CORPUS, prompts, SEED)
        told = _counted(study, f"decisions on {kind}")
        examples = decisions.record(study.engine, texts, kind, max_new_tokens=tokens, seed=SEED, progress=told)
        model, judged = decisions.train_decision(kind, *examples.tensors(), seed=SEED)
        about = {"prompts": prompts, "max_new_tokens": tokens, "examples": len(examples), "seed": SEED}
        save_decision(path, model, examples.draft, asdict(judged), about)
    noted = artifact.load(path, "decision").about["judgement"]
    return str(path), {"model": f"decisions on {kind}", **{name: noted[name] for name in JUDGED}}


def predictor(study: Study, prompts: int, tokens: int) -> str:
    """The file of a predictor for Cali-TS, of the target's exit."""
    path = _place(study, f"calibration-{prompts}x{tokens}.safetensors")
    if not path.is_file():
        engine, method = study.engine, Method.parse({"name": "eesd", "gamma": PLACES})
        texts, told = prompts_of(CORPUS, prompts, SEED), _counted(study, "cali-ts")
        drafts = calibration.record(engine, method, texts, (0.0, 1.0), tokens, SEED, told)
        trained, judged = calibration.train_calibration(drafts, seed=SEED)
        whose = fingerprints(method.models(engine.target, engine.drafts))
        about = {"prompts": prompts, "drafts": len(drafts.place), "judgement": asdict(judged)}
        save_calibration(path, trained, fingerprint(engine.target), whose, about)
    return str(path)
