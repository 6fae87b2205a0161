"""`draftwood train decision` and `train calibration`: what predicts from recorded drafts whether one is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict

from draftwood.cli.groups import OUTPUT, MethodOptions, OutputOptions, PairOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.cli.running import check_writable, progress
from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.train.calibration_metrics import CalibrationMetrics

RECORDING, TRAINING = "Recording", "Training"
SUFFIX = ".safetensors"
KINDS = {"hidden": "the draft's last hidden state", "output": "its most probable tokens and its entropy"}
FEWEST = 100  # examples
THRESHOLD = 0.4  # the controller's default, MCSD's beta


class RecordingOptions(OptionGroup):
    """Options of the generations whose drafts are recorded for training."""

    model_config = ConfigDict(title=RECORDING)

    prompts: str = flag(
        "corpus",
        "Prompts, one per line; corpus: those of the embedded pair's training data.",
        "FILE|corpus",
    )
    limit: int = flag(280, "Most prompts.", ge=1)
    max_new_tokens: int = flag(96, "Tokens to decode for each prompt.", ge=1)
    epochs: int = flag(60, "Most epochs; the best one is kept.", panel=TRAINING, ge=1)
    seed: int = flag(0, "Seed of prompts, texts and training.", panel=TRAINING)

    def texts(self) -> list[str]:
        """The prompts."""
        from draftwood.train.prompts import prompts_of

        return prompts_of(self.prompts, self.limit, self.seed)


def decision(
    *,
    kind: Literal["hidden", "output"] = flag(
        "output",
        "hidden: reads the draft's last hidden state; output: its most probable tokens and its entropy.",
        "KIND",
        panel=TRAINING,
    ),
    recording: RecordingOptions = RecordingOptions(max_new_tokens=64, epochs=30),
    temperature: list[float] = flag(
        [], "Sampling temperature; 0: greedy. Repeatable: every prompt at each.", panel=RECORDING, usual="1"
    ),
    method: str = flag(
        "mcsd-fork",
        "Method that drafts: mcsd-fork, mcsd, specinfer or speculative. The result works with all of them.",
        "NAME",
        panel=RECORDING,
    ),
    settings: list[str] = flag(
        [], "An option of the method, such as gamma=6. Repeatable.", "KEY=VALUE", ("--set",), RECORDING
    ),
    top: int = flag(8, "With --kind output: how many probabilities it reads.", panel=TRAINING, ge=1),
    width: int = flag(64, "Hidden units of a layer.", panel=TRAINING, ge=1),
    models: PairOptions,
    out: Path = flag(
        ...,
        "The .safetensors file to write, with a figure next to it. Use it as depth=decision:PATH.",
        "PATH",
        panel=OUTPUT,
    ),
    output: OutputOptions,
) -> None:
    """Train a model that ends drafting where acceptance is unlikely (MCSD §3.3).

    Prompts are decoded with drafts, and a small network learns which were accepted.
    It is evaluated on held-out prompts, and works with this draft model only.
    """
    check_name(out, "decision")
    chosen = MethodOptions(method=method, settings=settings).chosen(models.drafts)
    from draftwood.depth.decision import save_decision
    from draftwood.train.calibration_metrics import draw_calibration
    from draftwood.train.decisions import record, recordable, train_decision
    from draftwood.util import plots

    texts = recording.texts()
    check_writable(out)
    engine = models.load(chosen)
    chosen = recordable(engine, chosen)
    temperatures = temperature or [1.0]
    limit, seed = recording.max_new_tokens, recording.seed
    with progress(output.color, "recording", len(texts) * len(temperatures)) as update:
        examples = record(
            engine, texts, kind, chosen, temperatures, limit, top, seed, lambda done, of: update(completed=done)
        )
    if len(examples) < FEWEST:
        raise RequestError(
            f"only {len(examples)} drafts were judged, but {FEWEST} are needed; give more prompts or --max-new-tokens"
        )
    model, judgement = train_decision(kind, *examples.tensors(), width=width, epochs=recording.epochs, seed=seed)
    recorded = {
        "models": engine.names,
        "method": chosen.as_dict(),
        "temperatures": temperatures,
        "prompts": len(texts),
        "max_new_tokens": limit,
        "examples": len(examples),
        "seed": seed,
    }
    figure = str(out.with_suffix(".png")) if plots.available() else None
    document = {"out": str(out), "figure": figure, "kind": kind, **recorded, **judgement.figures()}
    summary = f"{kind}: {KINDS[kind]}, {len(examples):,} drafts of {len(texts)} prompts"
    output.give(document, summary, *_tables(judgement))  # before it is written: a full disk loses the file alone
    save_decision(out, model, examples.draft, judgement.as_dict(), recorded)
    if figure:
        title = f"Decision model of kind {kind} on held-out prompts"
        draw_calibration(judgement, Path(figure), title, THRESHOLD)
    if not output.json_:
        output.say("", f"{out}{f' and {figure}' if figure else ''} · use it with --set depth=decision:{out}")
        output.say(*([] if figure else ["no figure: it needs matplotlib, pip install 'draftwood[plots]'"]))


def calibration(
    *,
    recording: RecordingOptions,
    temperature: list[float] = flag(
        [], "Sampling temperature; 0: greedy. Repeatable: prompts alternate.", panel=RECORDING, usual="0 and 1"
    ),
    method: str = flag(
        "speculative",
        "Method that drafts: speculative, eesd or self-spec. The result works with its draft model only.",
        "NAME",
        panel=RECORDING,
    ),
    settings: list[str] = flag(
        [], "An option of the method; gamma is 10 by default. Repeatable.", "KEY=VALUE", ("--set",), RECORDING
    ),
    models: PairOptions,
    out: Path = flag(..., "The .safetensors file to write. Use it as depth=cali-ts:PATH.", "PATH", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Train the acceptance predictor of depth=cali-ts (EESD Eq. 5).

    Prompts are decoded with drafts, and a linear predictor learns from the hidden
    states of both models which were accepted. It works with these models only.
    """
    check_name(out, "cali-ts")
    from draftwood.depth.calibrated import NUMBERS, PLACES, save_calibration
    from draftwood.explain.terminal import percent
    from draftwood.methods import METHODS
    from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
    from draftwood.train.calibration import record, train_calibration

    known = getattr(METHODS.get(method), "model_fields", ())
    if "gamma" in known and not any(each.startswith("gamma=") for each in settings):
        settings = [*settings, f"gamma={PLACES}"]
    chosen = MethodOptions(method=method, settings=settings).chosen(models.drafts)
    texts = recording.texts()
    check_writable(out)
    engine = models.load(chosen)
    chosen, seed = engine.method(chosen), recording.seed
    limit = recording.max_new_tokens
    with progress(output.color, "recording", len(texts)) as update:
        drafts = record(
            engine, chosen, texts, temperature or (0.0, 1.0), limit, seed, lambda done, of: update(completed=done)
        )
    trained, judgement = train_calibration(drafts, epochs=recording.epochs, seed=seed)
    recorded = {"models": engine.names, "method": chosen.as_dict(), "prompts": len(texts), "drafts": len(drafts)}
    learned = {name: getattr(trained, name) for name in NUMBERS}
    output.give(
        {"out": str(out), **recorded, **judgement.figures(), **learned},
        f"{out}: {len(drafts):,} drafts of {len(texts)} prompts, {percent(judgement.accepted)} accepted · "
        f"log loss {judgement.log_loss:.3f} (always the same word: {judgement.base_loss:.3f}) · "
        f"AUC {judgement.auc:.3f} · use it with --set depth=cali-ts:{out}",
    )
    of_draft = fingerprints(chosen.models(engine.target, engine.drafts))
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
