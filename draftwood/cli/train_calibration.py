"""`draftwood train calibration`: the predictor of the depth controller cali-ts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from draftwood.cli import flags
from draftwood.errors import ConfigurationError

RECORDING, TRAINING = "Recording", "Training"
SUFFIX = ".safetensors"


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
    prompts: Annotated[
        str,
        typer.Option(
            metavar="FILE|world",
            help="Prompts, one per line; world: those that the embedded pair was trained on, of every domain.",
            rich_help_panel=RECORDING,
        ),
    ] = "world",
    limit: Annotated[int, typer.Option(metavar="N", help="Most prompts.", rich_help_panel=RECORDING)] = 280,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens to decode for each prompt.", rich_help_panel=RECORDING)
    ] = 96,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T",
            help="0: greedy. Repeat it for several, which prompts take in turn.",
            rich_help_panel=RECORDING,
            show_default="0 and 1",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(metavar="N", help="Most of them; the best counts.", rich_help_panel=TRAINING)
    ] = 60,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of prompts, texts and training.", rich_help_panel=TRAINING)
    ] = 0,
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
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the method. gamma is 10 unless given. Repeatable.",
            rich_help_panel=RECORDING,
            show_default=False,
        ),
    ] = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Train what tells cali-ts whether a draft will be accepted (EESD Eq. 5).

    Prompts are decoded with drafts, and a linear predictor learns from the hidden
    states of both models which of them were accepted. It belongs to these models.
    """
    if out.suffix != SUFFIX:
        raise ConfigurationError(f"--out names a {SUFFIX} file, not {out}")
    if epochs < 1:
        raise ConfigurationError(f"--epochs is {epochs}, but must be at least 1")
    from draftwood.cli.rendering import as_json, console, percent
    from draftwood.depth.calibrated import PLACES, save_calibration, train_calibration
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
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out.parent):  # whether it can be written, now and not after the work
        pass
    engine = models.load()
    chosen = engine.method(chosen)
    with _progress(len(texts), color) as advance:
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


@contextmanager
def _progress(total: int, color: bool | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr in prompts decoded, where stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from draftwood.cli.rendering import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda count: None
        return
    columns = (TextColumn("recording"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, advance=count)
