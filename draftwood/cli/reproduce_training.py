"""What `draftwood reproduce` trains before it measures: decision models, the predictor of cali-ts, exits.

Kept below the reproduction's directory, so that it is done once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import ConfigurationError, DraftwoodError, ModelError

if TYPE_CHECKING:
    from draftwood.engine import Engine
    from draftwood.eval.reproduce.experiment import ExitShape, Made, Size

TRAINED, SEED = "trained", 0
PROMPTS, TOKENS = {False: 56, True: 280}, {False: 48, True: 96}  # by whether the scale is full
STEPS, BATCH, RATE, WARMUP, CONTEXT, ROWS, HELD_OUT = 800, 16, 3e-3, 25, 256, 2000, 32  # of exits
Told = Callable[[str], None]


def prepare(engine: Engine, paper: str, size: Size, out: Path, decision: Path | None, told: Told) -> Made:
    """What the paper's experiment needs to be trained for this pair, and what the pair lacks."""
    from draftwood.eval.reproduce.experiment import Made

    folder = out / TRAINED
    if any(sign in str(folder) for sign in ",=:"):
        raise ConfigurationError(f"--out is {out}, but methods name files below it; choose one without commas, = and :")
    if paper == "mcsd":
        return _for_trees(engine, size, folder, decision, told)
    return _for_exits(engine, size, folder, told) if paper == "eesd" else Made()


def _for_trees(engine: Engine, size: Size, folder: Path, given: Path | None, told: Told) -> Made:
    from dataclasses import asdict

    from draftwood.depth.decision import load_decision, save_decision
    from draftwood.eval.reproduce.experiment import Made
    from draftwood.models.artifact import fingerprints
    from draftwood.prompts import CORPUS, prompts_of
    from draftwood.train.decisions import record, train_decision

    if given is not None:
        load_decision(given, fingerprints(engine.drafts))
        return Made(decision=given)
    path = folder / "decision.safetensors"
    if path.exists():
        return Made(decision=path)
    count, tokens = PROMPTS[size.whole], TOKENS[size.whole]
    advance = _counted(told, "recording drafts for the decision model", count)
    try:
        examples = record(engine, prompts_of(CORPUS, count, SEED), "output", max_new_tokens=tokens, advance=advance)
        told("training the decision model")
        model, judgement = train_decision("output", *examples.tensors(), seed=SEED)
    except DraftwoodError as error:
        return Made(missing={"decision": f"There is no decision model for this pair: {error}."})
    recorded = {"prompts": count, "max_new_tokens": tokens, "seed": SEED}
    save_decision(path, model, examples.draft, asdict(judgement), recorded)
    return Made(decision=path)


def _for_exits(engine: Engine, size: Size, folder: Path, told: Told) -> Made:
    from draftwood.eval.reproduce.experiment import Made
    from draftwood.models import exit as exits
    from draftwood.models import heads

    own = exits.find(engine.target, None)  # raises where there is none, and says how to train one
    missing = {}
    if not engine.drafts:
        missing["draft"] = "No draft model was given, so vanilla speculative decoding is left out."
    try:
        heads.find(engine.target, None)
    except ModelError as error:
        missing["medusa"] = f"Medusa is left out: {error}."
    layers = exits.layered(engine.target).n_layers
    made = Made(shipped=own.layers, layers=layers, missing=missing)
    try:
        made = replace(made, calibration=_calibration(engine, size, folder, told))
    except DraftwoodError as error:
        missing["calibration"] = f"Cali-TS is left out: {error}."
    if not size.whole:
        missing["exits"] = "Not measured: exits would have to be trained, which --scale full does."
        return made
    from draftwood.eval.reproduce.eesd_methods import shapes

    try:
        return _trained(engine, made, shapes(layers), folder, told)
    except DraftwoodError as error:
        missing["exits"] = f"Exits could not be trained: {error}."
        return made


def _calibration(engine: Engine, size: Size, folder: Path, told: Told) -> Path:
    from dataclasses import asdict

    from draftwood.depth.calibrated import PLACES, save_calibration
    from draftwood.methods import Method
    from draftwood.models.artifact import fingerprint, fingerprints
    from draftwood.prompts import CORPUS, prompts_of
    from draftwood.train.calibration import record, train_calibration

    path = folder / "calibration.safetensors"
    if path.exists():
        return path
    count, tokens = PROMPTS[size.whole], TOKENS[size.whole]
    method = Method.parse({"name": "eesd", "gamma": PLACES})
    advance = _counted(told, "recording drafts for cali-ts", count)
    drafts = record(engine, method, prompts_of(CORPUS, count, SEED), (0.0, 1.0), tokens, SEED, advance)
    told("training the predictor of cali-ts")
    trained, judgement = train_calibration(drafts, seed=SEED)
    about = {"prompts": count, "drafts": len(drafts.place), "judgement": asdict(judgement)}
    whose = fingerprints(method.models(engine.target, engine.drafts))
    save_calibration(path, trained, fingerprint(engine.target), whose, about)
    return path


def _trained(engine: Engine, made: Made, shapes: Sequence[ExitShape], folder: Path, told: Told) -> Made:
    import torch

    from draftwood.models import checkpoint
    from draftwood.models import exit as exits
    from draftwood.train.exit_layer import ExitRun, Settings
    from draftwood.train.texts import CORPUS, read_texts

    if engine.tokenizer is None:
        raise ConfigurationError("the target has no tokenizer to read texts with")
    home = exits.layered(engine.target).home
    if home is None:
        raise ConfigurationError("the target was not loaded from a directory")
    target = checkpoint.load(home, packed=False)  # packed matrices cannot be trained above
    end = min(engine.end_tokens, default=0)
    told("reading texts")
    texts = read_texts(CORPUS, engine.tokenizer, end, min(CONTEXT, target.context), ROWS, HELD_OUT, SEED)
    found: dict[ExitShape, Path] = {}
    said: dict[str, list[str]] = {}
    for shape in shapes:
        place = folder / shape.name
        weight = 1.0 if shape.distilled else 0.0
        settings = Settings(shape.layers, shape.depth, STEPS, BATCH, 1, RATE, WARMUP, weight, SEED)
        told(f"training {shape.label}")
        run = ExitRun(target, texts, settings, place)
        for _ in run.train(50, STEPS, torch.bfloat16):
            told(f"training {shape.label}: {run.progress.step} of {STEPS} steps")
        found[shape] = place
        said[shape.label] = _cells(run)
    return replace(made, exits=found, training=said)


def _cells(run: Any) -> list[str]:
    """Weights, steps, seconds per batch."""
    weights = sum(part.numel() for part in run.exit.parameters() if part.requires_grad)
    seconds = run.progress.seconds / max(1, run.progress.step)
    return [f"{weights / 1e6:.2f}M", json.dumps(run.progress.step), f"{seconds:.2f}"]


def _counted(told: Told, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        told(f"{what}: {done} of {total} prompts")

    told(what)
    return advance
