"""`draftwood train medusa`: heads for a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import flags
from draftwood.cli.train_exit import TRAINING, Sizes, carried_out, prepared

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import Settings


def medusa(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the heads go.", show_default=False)],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|world",
            help="What `draftwood train corpus` wrote, or any text: .jsonl with text or tokens; or the embedded "
            "pair's world.",
        ),
    ] = "world",
    target: flags.Target = None,
    heads: Annotated[
        int, typer.Option(metavar="K", help="Heads: tokens that are foretold.", rich_help_panel=TRAINING)
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
    steps: Annotated[int, typer.Option(metavar="N", help="Steps.", rich_help_panel=TRAINING)] = 1000,
    batch: Annotated[int, typer.Option(metavar="N", help="Rows of a step.", rich_help_panel=TRAINING)] = 16,
    context: Annotated[int, typer.Option(metavar="N", help="Tokens of a row.", rich_help_panel=TRAINING)] = 256,
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Parts that a step is computed in.", rich_help_panel=TRAINING)
    ] = 1,
    rate: Annotated[float, typer.Option(metavar="X", help="Peak learning rate.", rich_help_panel=TRAINING)] = 1e-3,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps of warm-up.", rich_help_panel=TRAINING)] = 50,
    distill: Annotated[
        float,
        typer.Option(
            metavar="W",
            help="Weight of distillation on the target's own distributions; the rest is cross-entropy on the text.",
            rich_help_panel=TRAINING,
        ),
    ] = 0.0,
    precision: Annotated[
        str, typer.Option(metavar="TYPE", help="Of products: bfloat16 or float32.", rich_help_panel=TRAINING)
    ] = "bfloat16",
    store: Annotated[str, typer.Option(metavar="TYPE", help="Of the file: bfloat16 or float32.")] = "bfloat16",
    rows: Annotated[
        int, typer.Option(metavar="N", help="Rows to train on at most; then they are read again.")
    ] = 20_000,
    held_out: Annotated[int, typer.Option(metavar="N", help="Rows that are measured and not trained on.")] = 32,
    save_every: Annotated[int, typer.Option(metavar="N", help="Steps between two saves.")] = 100,
    measure_every: Annotated[int, typer.Option(metavar="N", help="Steps between two measurements.")] = 100,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order of rows, and of the world.")] = 0,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Train heads that foretell several tokens at once (method medusa).

    The target is frozen; heads on its last hidden state learn what comes after the
    next token. Killed at any time, the same command goes on from the last save.
    torchrun runs it on several devices.
    """
    from draftwood.cli.rendering import as_json, console
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
        f"held out: acceptance head by head {each}" + ("" if document["plot"] else "; no plot without matplotlib"),
        markup=False,
        soft_wrap=True,
    )
