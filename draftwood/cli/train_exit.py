"""`draftwood train eesd`: an exit layer for a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import flags, train_flags
from draftwood.cli.train_flags import TRAINING
from draftwood.cli.training_run import NO_PLOT, Sizes, carried_out, prepared

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import Settings


def eesd(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the exit layer goes.", show_default=False)],
    data: train_flags.Data = "corpus",
    target: flags.Target = None,
    layers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="First layers of the target that the exit is behind.",
            rich_help_panel=TRAINING,
            show_default="a tenth of its depth",
        ),
    ] = None,
    exit_layers: Annotated[
        int, typer.Option(metavar="N", help="Layers of the exit itself.", rich_help_panel=TRAINING)
    ] = 1,
    steps: train_flags.Steps = 1000,
    batch: train_flags.Batch = 16,
    context: train_flags.Context = 256,
    accumulate: train_flags.Accumulate = 1,
    rate: train_flags.Rate = 1e-3,
    warmup: train_flags.Warmup = 50,
    distill: train_flags.Distill = 0.0,
    precision: train_flags.Precision = "bfloat16",
    store: train_flags.Store = "bfloat16",
    rows: train_flags.Rows = 20_000,
    held_out: train_flags.HeldOut = 32,
    save_every: train_flags.SaveEvery = 100,
    measure_every: train_flags.MeasureEvery = 100,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    seed: train_flags.RunSeed = 0,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Train an exit layer, with which a target drafts for itself (method eesd).

    The target's first layers are frozen; a layer, norm and head above them learn
    to say what comes next. Killed at any time, the same command goes on from the
    last save. torchrun runs it on several devices.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.models.exit import check_depth, share
    from draftwood.train.exit_layer import ExitRun, Settings

    sizes = Sizes(rows, held_out, context, save_every, measure_every)
    sizes.check(precision, store)
    settings = Settings(0, exit_layers, steps, batch, accumulate, rate, warmup, distill, seed, precision == "bfloat16")

    def settle(model: Decoder) -> Settings:
        made = replace(settings, layers=share(model.n_layers) if layers is None else layers)
        check_depth(model, made.layers, made.depth)
        return made

    run = prepared(target, data, out, device, dtype, settle, ExitRun, sizes)
    document = carried_out(run, sizes, store, color)
    if document is None:
        return
    if json:
        print(as_json(document))
        return
    show = console(color).print
    show(
        f"{out}: an exit behind layer {run.settings.layers} of {run.target.n_layers}, "
        f"{document['parameters']:,} parameters, {document['steps']} steps, {document['tokens']:,} tokens, "
        f"{document['seconds']:.0f} s",
        markup=False,
        soft_wrap=True,
    )
    show(
        f"held out: acceptance {document['acceptance']:.3f}, same best token {document['agreement']:.3f}, "
        f"loss {document['loss']:.3f}" + ("" if document["plot"] else NO_PLOT),
        markup=False,
        soft_wrap=True,
    )
