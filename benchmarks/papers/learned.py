"""Models that the papers' methods need: decision models of MCSD, EESD's exits and predictor.

Each is trained once of what it is made from.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.papers.models import Models
from benchmarks.papers.study import Study
from draftwood.depth.calibrated import PLACES, save_calibration
from draftwood.depth.decision import DecisionKind, save_decision
from draftwood.errors import ConfigurationError
from draftwood.eval.provenance import content
from draftwood.eval.tasks.base import digest
from draftwood.methods import Method
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
from draftwood.models.heads.exit import FILE, KIND, share
from draftwood.train import calibration, decisions
from draftwood.train.exit_layer import ExitRun
from draftwood.train.prompts import prompts_of
from draftwood.train.runs import prepare, train
from draftwood.train.self_distillation import write_texts
from draftwood.train.settings import ExitSettings, Saving, TextSource, WritingSettings
from draftwood.util.files import write_json, writing
from draftwood.util.safe_parsing import parse_json, read_text

__all__ = ["DecisionKind", "decision", "exit_layer", "predictor"]

SEED = 0
JUDGED = ("examples", "accepted", "auc", "overlap", "log_loss", "base_loss", "error")
REPORTED = ("steps", "acceptance", "agreement")
RECORDED = {"name": "mcsd-fork", "verify": "rejection", "width": 4, "gamma": 4, "depth": "fixed"}  # to learn from
Way = Literal["mixed", "given", "target"]
WAYS: dict[Way, str] = {  # what an exit learns from -> what its label says of it
    "mixed": "",  # text of the target and given text
    "given": ", on given text alone",
    "target": ", on the target's text alone",
}


def _counted(study: Study, what: str) -> Callable[[int, int], None]:
    return lambda done, total: study.told(f"recording drafts for {what}: {done} of {total} prompts")


def _place(study: Study, name: str, *origins: Any) -> Path:
    """The path of something learned, named after what it is made from: of something else another one is made."""
    stem, dot, suffix = name.partition(".")
    path = study.out / "trained" / f"{stem}-{digest(origins)[:8]}{dot}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _asked(models: Models) -> tuple[str | None, bool]:
    return content(models.prompts), models.chat  # of the corpus no file is read


def decision(study: Study, kind: DecisionKind, prompts: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """A decision model of MCSD: its file, and how well it predicts on prompts that it did not see."""
    models = study.models
    origins = [models.origins[role] for role in ("target", "draft", "drafter")]
    path = _place(study, f"{kind}-{prompts}x{tokens}.safetensors", origins, RECORDED, *_asked(models))
    if not path.is_file():
        texts = prompts_of(models.prompts, prompts, SEED, models.chat)
        told, method = _counted(study, f"decisions on {kind}"), models.own(RECORDED, {})
        engine = models.engine
        examples = decisions.record(engine, texts, kind, method, max_new_tokens=tokens, seed=SEED, progress=told)
        model, judged = decisions.train_decision(kind, *examples.tensors(), seed=SEED)
        about = {"prompts": prompts, "max_new_tokens": tokens, "examples": len(examples), "seed": SEED}
        save_decision(path, model, examples.draft, asdict(judged), about)
    noted = artifact.load(path, "decision").about["judgement"]
    return str(path), {"model": f"decisions on {kind}", **{name: noted[name] for name in JUDGED}}


def predictor(study: Study, exit: str) -> str:
    """The file of a predictor for Cali-TS, of an exit."""
    prompts, tokens = (140, 64) if study.full else (56, 48)
    origins = study.models.origins["target"], content(exit), *_asked(study.models)
    path = _place(study, f"calibration-{prompts}x{tokens}.safetensors", *origins)
    if not path.is_file():
        engine, method = study.models.engine, Method.parse({"name": "eesd", "gamma": PLACES, "exit": exit})
        texts = prompts_of(study.models.prompts, prompts, SEED, study.models.chat)
        drafts = calibration.record(engine, method, texts, (0.0, 1.0), tokens, SEED, _counted(study, "cali-ts"))
        trained, judged = calibration.train_calibration(drafts, seed=SEED)
        whose = fingerprints(method.models(engine.target, engine.drafts))
        about = {"prompts": prompts, "drafts": len(drafts.place), "judgement": asdict(judged)}
        save_calibration(path, trained, fingerprint(engine.target), whose, about)
    return str(path)


def exit_layer(study: Study, layers: int | None = None, depth: int = 1, way: Way = "mixed") -> tuple[str, str]:
    """An exit taught by the paper's own loss, cross-entropy on text (§3.2): its directory, and its label.

    It reads the target's first `layers` layers, by default a tenth, and has `depth` of its own. Where models name an
    exit, that stands for the default one.
    """
    if study.models.exit is not None and (layers, depth, way) == (None, 1, "mixed"):
        return study.models.exit, _given_exit(study, study.models.exit)
    layers, label = layers or share(study.models.engine.target.n_layers), label_of(study, layers, depth, way)
    taught: dict[str, Any] = study.paper.training["settings"]
    amount: dict[str, Any] = {"steps": study.steps, "batch": study.batch}
    settings = ExitSettings(**{**taught, **amount, "layers": layers, "depth": depth, "seed": SEED})
    source = TextSource(data=study.models.given if way == "given" else str(texts_of(study, way)), whole=True)
    origins = study.models.origins["target"], settings.model_dump(), content(source.data)
    place = _place(study, f"exit-{layers}-{depth}-{way}", *origins)
    report = place / "report.json"
    if not report.is_file():
        make = partial(prepare, ExitRun, settings, place, source, study.models.target)
        with closing(train(make, Saving())) as steps:
            for now in steps:
                study.told(f"training {label}: step {now.step} of {settings.steps}")
                if now.document is not None:
                    figures = {name: now.document[name] for name in REPORTED}
                    each = now.document["seconds"] / now.document["steps"]
                    rows = {"batch": settings.batch, "context": source.context}
                    write_json(report, {"model": label, **figures, **rows, "seconds_per_step": each})
                else:
                    study.check_time(f"step {now.step + 1} of {settings.steps} of {label}")
    judged = parse_json(read_text(report))
    if judged not in study.learned:
        study.learned.append(judged)
    return str(place), label


def label_of(study: Study, layers: int | None, depth: int, way: Way) -> str:
    """The label of an exit to train: the layers below it, its own, and what it learns from if it is not both."""
    layers = layers or share(study.models.engine.target.n_layers)
    return f"exit, N={layers}, {depth} layer{'s' * (depth != 1)}{WAYS[way]}"


def _given_exit(study: Study, directory: str) -> str:
    """The label of an exit that was trained before; what its file says of its training is kept."""
    file = artifact.load(Path(directory) / FILE, KIND)
    label, trained = label_of(study, file.settings["layers"], file.settings["depth"], "mixed"), file.about["trained"]
    judged = {"model": label, **{name: trained[name] for name in ("tokens", *REPORTED)}}
    if judged not in study.learned:
        study.learned.append(judged)
    return label


def texts_of(study: Study, way: Way) -> Path:
    """The file of texts that the target wrote, with the given ones among them or without."""
    if way == "target":
        lines = read_text(both := texts_of(study, "mixed")).split("\n")
        rows = [line for line in lines if line.strip() and parse_json(line).get("source") == way]
        if not rows:
            raise ConfigurationError(f"{both} says of no text that the target wrote it; `draftwood train corpus` does")
        with writing(own := _place(study, "texts-of-the-target.jsonl", content(both))):
            own.write_text("\n".join(rows) + "\n", "utf-8")
        return own
    if study.models.texts is not None:
        return study.models.texts
    count, tokens = (1000, 256) if study.full else (200, 128)
    models, how = study.models, study.paper.training["writing"]
    origins = models.origins["target"], how, content(models.given), *_asked(models)
    path = _place(study, f"texts-{count}x{tokens}.jsonl", *origins)
    about = {"prompts": models.prompts, "chat": models.chat, "given": models.given, "seed": SEED}
    settings = WritingSettings(**{**about, **how, "count": count, "max_new_tokens": tokens})
    for written in write_texts(models.engine, settings, path):
        study.told(f"writing texts to train on: {written} of {count}")
        if written < count:
            study.check_time(f"text {written + 1} of {count} to train on")
    return path
