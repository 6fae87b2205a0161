"""`draftwood train calibration`: the predictor of the depth controller cali-ts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftwood.cli import flags, train_flags
from draftwood.cli.learned_file import check_name
from draftwood.cli.output_file import check_writable
from draftwood.cli.progress import advancing
from draftwood.cli.train_flags import RECORDING
from draftwood.errors import ConfigurationError


def calibration(
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="The .safetensors file to write; JSON goes beside it. Use it as depth=cali-ts:PATH.",
            rich_help_panel=flags.OUTPUT,
            show_default=False,
        ),
    ],
    prompts: train_flags.Prompts = "corpus",
    limit: train_flags.Limit = 280,
    max_new_tokens: train_flags.MaxNewTokens = 96,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T",
            help="0: greedy. Repeat it for several, which prompts take in turn.",
            rich_help_panel=RECORDING,
            show_default="0 and 1",
        ),
    ] = None,
    epochs: train_flags.Epochs = 60,
    seed: train_flags.RecordingSeed = 0,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who drafts: speculative, eesd, self-spec; what is learned belongs to its draft model.",
            rich_help_panel=RECORDING,
        ),
    ] = "speculative",
    settings: Annotated[
        list[str] | None, flags.setting("An option of the method. gamma is 10 unless given. Repeatable.", RECORDING)
    ] = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Train what tells cali-ts whether a draft will be accepted (EESD Eq. 5).

    Prompts are decoded with drafts, and a linear predictor learns from the hidden
    states of both models which of them were accepted. It belongs to these models.
    """
    check_name(out, "cali-ts")
    if epochs < 1:
        raise ConfigurationError(f"--epochs is {epochs}, but must be at least 1")
    from draftwood.depth.calibrated import PLACES, save_calibration, train_calibration
    from draftwood.explain.terminal import as_json, console, percent
    from draftwood.methods import METHODS
    from draftwood.models.identity import fingerprint, fingerprints
    from draftwood.train.calibration import record
    from draftwood.train.recording import prompts_of

    given = list(settings or ())
    if "gamma" in getattr(METHODS.get(method), "model_fields", ()) and not any(s.startswith("gamma=") for s in given):
        given.append(f"gamma={PLACES}")
    models = flags.ModelFlags(target, draft, dtype, device)
    chosen = flags.method(method, given, models.drafts)
    texts = prompts_of(prompts, limit, seed)
    check_writable(out)  # now, not after the work
    engine = models.load()
    chosen = engine.method(chosen)
    with advancing("recording", len(texts), color) as advance:
        drafts = record(engine, chosen, texts, temperature or (0.0, 1.0), max_new_tokens, seed, advance)
    trained = train_calibration(drafts, epochs=epochs, seed=seed)
    names = {"models": engine.names, "method": chosen.as_dict(), "prompts": len(texts), "drafts": len(drafts)}
    draft_models = chosen.models(engine.target, engine.drafts)
    save_calibration(out, trained, fingerprint(engine.target), fingerprints(draft_models), names)
    judgement = trained.judgement
    assert judgement is not None
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
    if json:
        print(as_json(found))
        return
    show = console(color).print
    show(
        f"{out}: {len(drafts):,} drafts of {len(texts)} prompts, {percent(judgement.accepted)} accepted · "
        f"log loss {judgement.log_loss:.3f} (always the same word: {judgement.base_loss:.3f}) · "
        f"AUC {judgement.auc:.3f} · use it with --set depth=cali-ts:{out}",
        markup=False,
        soft_wrap=True,
    )
