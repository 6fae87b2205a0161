"""`draftwood train calibration`: the predictor of the depth controller cali-ts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood.cli.groups import OUTPUT, MethodOptions, OutputOptions, PairOptions
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import advancing
from draftwood.cli.train_options import RECORDING, RecordingOptions, check_name


def calibration(
    *,
    recording: RecordingOptions,
    temperature: list[float] = flag(
        [], "0: greedy. Repeat it for several, which prompts take in turn.", panel=RECORDING, usual="0 and 1"
    ),
    method: str = flag(
        "speculative",
        "Who drafts: speculative, eesd, self-spec; what is learned belongs to its draft model.",
        "NAME",
        panel=RECORDING,
    ),
    settings: list[str] = flag(
        [], "An option of the method. gamma is 10 unless given. Repeatable.", "KEY=VALUE", ("--set",), RECORDING
    ),
    models: PairOptions,
    out: Path = flag(
        ...,
        "The .safetensors file to write. Use it as depth=cali-ts:PATH.",
        "PATH",
        panel=OUTPUT,
    ),
    output: OutputOptions,
) -> None:
    """Train what tells cali-ts whether a draft will be accepted (EESD Eq. 5).

    Prompts are decoded with drafts, and a linear predictor learns from the hidden
    states of both models which of them were accepted. It belongs to these models.
    """
    check_name(out, "cali-ts")
    from dataclasses import asdict

    from draftwood.depth.calibrated import PLACES, save_calibration
    from draftwood.explain.terminal import as_json, console, percent
    from draftwood.methods import METHODS
    from draftwood.models.artifact import fingerprint, fingerprints
    from draftwood.train.calibration import record, train_calibration

    if "gamma" in getattr(METHODS.get(method), "model_fields", ()) and not any(
        s.startswith("gamma=") for s in settings
    ):
        settings = [*settings, f"gamma={PLACES}"]
    chosen = MethodOptions(method=method, settings=settings).chosen(models.drafts)
    texts = recording.texts()
    check_writable(out)
    engine = models.load()
    chosen = engine.method(chosen)
    seed = recording.seed
    with advancing("recording", len(texts), output.color) as advance:
        drafts = record(engine, chosen, texts, temperature or (0.0, 1.0), recording.max_new_tokens, seed, advance)
    trained, judgement = train_calibration(drafts, epochs=recording.epochs, seed=seed)
    names = {"models": engine.names, "method": chosen.as_dict(), "prompts": len(texts), "drafts": len(drafts)}
    about = {**names, "judgement": asdict(judgement)}
    draft_models = chosen.models(engine.target, engine.drafts)
    save_calibration(out, trained, fingerprint(engine.target), fingerprints(draft_models), about)
    found: dict[str, Any] = {
        "out": str(out),
        **names,
        "accepted": judgement.accepted,
        "log_loss": judgement.log_loss,
        "base_loss": judgement.base_loss,
        "auc": judgement.auc,
        "calibration_error": judgement.error,
        "model_deviation": trained.model_deviation,
        "sample_deviation": trained.sample_deviation,
        "theta0": trained.theta0,
    }
    if output.json_:
        print(as_json(found))
        return
    console(output.color).print(
        f"{out}: {len(drafts):,} drafts of {len(texts)} prompts, {percent(judgement.accepted)} accepted · "
        f"log loss {judgement.log_loss:.3f} (always the same word: {judgement.base_loss:.3f}) · "
        f"AUC {judgement.auc:.3f} · use it with --set depth=cali-ts:{out}",
        markup=False,
        soft_wrap=True,
    )
