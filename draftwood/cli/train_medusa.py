"""`draftwood train medusa`: heads for a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import flags, train_flags
from draftwood.cli.train_flags import TRAINING
from draftwood.cli.training_run import NO_PLOT, Sizes, carried_out, prepared

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import Settings


def medusa(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the heads go.", show_default=False)],
    data: train_flags.Data = "corpus",
    target: flags.Target = None,
    heads: Annotated[
        int, typer.Option(metavar="K", help="Heads: tokens that are predicted.", rich_help_panel=TRAINING)
    ] = 4,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            metavar="",
            help="Heads end in the target's own head: far fewer parameters, less acceptance.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    decay: Annotated[
        float, typer.Option(metavar="X", help="Head k's loss weighs X^k.", rich_help_panel=TRAINING)
    ] = 0.8,
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
    """Train heads that predict several tokens at once (method medusa).

    The target is frozen; heads on its last hidden state learn what comes after the
    next token. Killed at any time, the same command goes on from the last save.
    torchrun runs it on several devices.
    """
    from draftwood.explain.terminal import as_json, console
    from draftwood.train.heads import HeadRun, HeadSettings

    sizes = Sizes(rows, held_out, context, save_every, measure_every)
    sizes.check(precision, store)

    def settle(model: Decoder) -> Settings:
        plain = (steps, batch, accumulate, rate, warmup, distill, seed, precision == "bfloat16")
        return HeadSettings(model.n_layers, 1, *plain, heads=heads, shared=shared, decay=decay)

    run = prepared(target, data, out, device, dtype, settle, HeadRun, sizes)
    document = carried_out(run, sizes, store, color)
    if document is None:
        return
    document = {key: value for key, value in document.items() if key != "layers"} | {"heads": heads, "shared": shared}
    if json:
        print(as_json(document))
        return
    show = console(color).print
    show(
        f"{out}: {heads} heads, {document['parameters']:,} parameters, {document['steps']} steps, "
        f"{document['tokens']:,} tokens, {document['seconds']:.0f} s",
        markup=False,
        soft_wrap=True,
    )
    each = ", ".join(f"{document[f'acceptance_{k}']:.3f}" for k in range(1, heads + 1))
    show(
        f"held out: acceptance head by head {each}" + ("" if document["plot"] else NO_PLOT),
        markup=False,
        soft_wrap=True,
    )
