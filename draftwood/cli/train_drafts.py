"""`draftwood train decision` and `train calibration`: what predicts from recorded drafts whether one is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict

from draftwood.cli.groups import OUTPUT, MethodOptions, OutputOptions, PairOptions
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress
from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.engine.request import Prompt
    from draftwood.train.calibration_metrics import CalibrationMetrics

RECORDING, TRAINING = "Recording", "Training"
SUFFIX = ".safetensors"
KINDS = {"hidden": "the draft's last hidden state", "output": "its most probable tokens and its entropy"}
MIN_EXAMPLES = 100  # examples
DEFAULT_THRESHOLD = 0.4  # the controller's default, MCSD's beta


class RecordingOptions(OutputOptions, PairOptions, MethodOptions):
    """Options of the generations whose drafts are recorded for training."""

    model_config = ConfigDict(title=RECORDING)

    prompts: str = flag(
        "corpus", "Prompts, one per line; corpus: those of the embedded pair's training data.", "FILE|corpus"
    )
    limit: int = flag(280, "Most prompts.", ge=1)
    max_new_tokens: int = flag(96, "Tokens to decode for each prompt.", ge=1)
    temperature: list[float] = flag(
        [], "Sampling temperature; 0: greedy. Repeatable.", usual="1 for decision, 0 and 1 for calibration"
    )
    epochs: int = flag(60, "Most epochs; the best one is kept.", panel=TRAINING, ge=1)
    seed: int = flag(0, "Seed of prompts, texts and training.", panel=TRAINING)

    def texts(self) -> list[Prompt]:
        """The prompts."""
        from draftwood.train.prompts import prompts_of

        return prompts_of(self.prompts, self.limit, self.seed)


def decision(
    *,
    kind: Literal["hidden", "output"] = flag("output", "What it reads: hidden states, or the output.", panel=TRAINING),
    top: int = flag(8, "With --kind output: how many probabilities it reads.", panel=TRAINING, ge=1),
    width: int = flag(64, "Hidden units of a layer.", panel=TRAINING, ge=1),
    options: RecordingOptions = RecordingOptions(method="mcsd-fork", max_new_tokens=64, epochs=30),
    out: Path = flag(..., "The .safetensors file to write, a figure next to it.", "PATH", panel=OUTPUT),
) -> None:
    """Train a model that ends drafting where acceptance is unlikely (MCSD §3.3).

    Prompts are decoded with drafts, and a small network learns which were accepted.
    It is evaluated on held-out prompts, and works with this draft model only.
    """
    from draftwood.depth.decision import save_decision
    from draftwood.train.calibration_metrics import draw_calibration
    from draftwood.train.decisions import record, recordable, train_decision
    from draftwood.util import plots

    check_name(out, "decision")
    texts, seed, temperatures = options.texts(), options.seed, options.temperature or [1.0]
    check_writable(out)
    chosen = options.chosen(options.drafts)
    engine = options.load(chosen)
    method, limit = recordable(engine, chosen), options.max_new_tokens
    with progress(options.color, "recording", len(texts) * len(temperatures)) as update:
        examples = record(
            engine, texts, kind, method, temperatures, limit, top, seed, lambda done, of: update(completed=done)
        )
    if len(examples) < MIN_EXAMPLES:
        raise RequestError(
            f"only {len(examples)} drafts were judged, of {MIN_EXAMPLES} needed; give more prompts or --max-new-tokens"
        )
    model, judgement = train_decision(kind, *examples.tensors(), width=width, epochs=options.epochs, seed=seed)
    recorded = {
        "models": engine.names,
        "method": method.as_dict(),
        "temperatures": temperatures,
        "prompts": len(texts),
        "max_new_tokens": limit,
        "examples": len(examples),
        "seed": seed,
    }
    figure = str(out.with_suffix(".png")) if plots.available() else None
    document = {"out": str(out), "figure": figure, "kind": kind, **recorded, **judgement.figures()}
    summary = f"{kind}: {KINDS[kind]}, {len(examples):,} drafts of {len(texts)} prompts"
    options.give(document, summary, *_tables(judgement))  # before it is written: a full disk loses the file alone
    save_decision(out, model, examples.draft, judgement.as_dict(), recorded)
    if figure:
        title = f"Decision model of kind {kind} on held-out prompts"
        draw_calibration(judgement, Path(figure), title, DEFAULT_THRESHOLD)
    if not options.json_:
        options.say("", f"{out}{f' and {figure}' if figure else ''} · use it with --set depth=decision:{out}")
        options.say(*([] if figure else ["no figure: it needs matplotlib, pip install 'draftwood[plots]'"]))


def calibration(
    *,
    options: RecordingOptions = RecordingOptions(method="speculative"),
    out: Path = flag(..., "The .safetensors file to write. Use it as depth=cali-ts:PATH.", "PATH", panel=OUTPUT),
) -> None:
    """Train the acceptance predictor of depth=cali-ts (EESD Eq. 5).

    Prompts are decoded with drafts, and a linear predictor learns from the hidden
    states of both models which were accepted. It works with these models only.
    """
    from draftwood.depth.calibrated import NUMBERS, PLACES, save_calibration
    from draftwood.explain.terminal import percent
    from draftwood.methods import METHODS
    from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
    from draftwood.train.calibration import record, train_calibration

    check_name(out, "cali-ts")
    if "gamma" in getattr(METHODS.get(options.method or ""), "model_fields", ()):
        options = options.model_copy(update={"settings": [f"gamma={PLACES}", *options.settings]})
    chosen, texts, seed = options.chosen(options.drafts), options.texts(), options.seed
    check_writable(out)
    engine = options.load(chosen)
    method = engine.method(chosen)
    temperatures = options.temperature or (0.0, 1.0)
    with progress(options.color, "recording", len(texts)) as update:
        limit = options.max_new_tokens
        drafts = record(engine, method, texts, temperatures, limit, seed, lambda done, of: update(completed=done))
    trained, judgement = train_calibration(drafts, epochs=options.epochs, seed=seed)
    recorded = {"models": engine.names, "method": method.as_dict(), "prompts": len(texts), "drafts": len(drafts)}
    learned = {name: getattr(trained, name) for name in NUMBERS}
    options.give(
        {"out": str(out), **recorded, **judgement.figures(), **learned},
        f"{out}: {len(drafts):,} drafts of {len(texts)} prompts, {percent(judgement.accepted)} accepted · "
        f"log loss {judgement.log_loss:.3f} (always the same word: {judgement.base_loss:.3f}) · "
        f"AUC {judgement.auc:.3f} · use it with --set depth=cali-ts:{out}",
    )
    of_draft = fingerprints(method.models(engine.target, engine.drafts))
    about = {**recorded, "judgement": judgement.as_dict()}
    save_calibration(out, trained, fingerprint(engine.target), of_draft, about)


def check_name(out: Path, controller: str) -> None:
    """Raise ConfigurationError where depth=CONTROLLER:PATH could not name the file."""
    if out.suffix != SUFFIX:
        raise ConfigurationError(f"--out is {out}, but {controller} reads a {SUFFIX} file")
    if any(sign in str(out) for sign in ",="):
        raise ConfigurationError(
            f"--out is {out}, but depth={controller}:PATH takes a path without commas and =; rename it"
        )


def _tables(judgement: CalibrationMetrics) -> list[Table | str]:
    """Figures on held-out prompts, and what each threshold would keep."""
    from draftwood.explain.terminal import percent, simple_table

    figures = {
        "examples": f"{judgement.examples:,}",
        "share accepted": percent(judgement.accepted),
        "log loss": f"{judgement.log_loss:.3f}",
        "log loss of always predicting that share": f"{judgement.base_loss:.3f}",
        "area under the ROC curve": f"{judgement.auc:.3f}",
        "calibration error": f"{judgement.error:.3f}",
        "overlap of accepted and rejected": f"{judgement.overlap:.2f}",
    }
    kept = (">threshold", ">accepted drafts after which\ndrafting goes on", ">rejected drafts after which\nit stops")
    rows = [(f"{beta:g}", percent(goes), percent(stops)) for beta, goes, stops in judgement.thresholds]
    return [simple_table("held-out prompts", ">", rows=figures.items()), "", simple_table(*kept, rows=rows)]
