"""`draftwood reproduce`: a paper's tables and figures, measured anew, as a page with the paper's beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import flags
from draftwood.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from draftwood.eval.reproduce.page import Beside

SCALES = ("small", "full")


def reproduce(
    paper: Annotated[
        str, typer.Argument(metavar="dsbd|mcsd|eesd", help="Which paper.", show_default=False, rich_help_panel=None)
    ],
    scale: Annotated[
        str,
        typer.Option(
            metavar="small|full",
            help="small: 5 to 12 minutes with the embedded pair. full: the paper's sweeps and many "
            "items, there about 2 hours for dsbd, 5 for mcsd, 6 for eesd, which then trains exits.",
        ),
    ] = "small",
    decision: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="mcsd: a decision model of `draftwood train decision` for the draft.",
            show_default="one is trained in about a minute",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Page, figures and results go here; the same command goes on where it was stopped.",
            rich_help_panel=flags.OUTPUT,
            show_default="reproduction-PAPER-SCALE",
        ),
    ] = None,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    compile: flags.Compile = False,
    color: flags.Color = None,
) -> None:
    """Measure what a paper's tables and figures show, and draw them beside the paper's.

    The papers: dsbd (beams), mcsd (trees of candidates), eesd (early exits). All
    runs as with `draftwood eval`, into directories below --out. The same command
    goes on where it was stopped; Ctrl-C leaves a page of what is there.
    """
    from draftwood.cli.evaluate import progress
    from draftwood.cli.reproduce_training import prepare
    from draftwood.eval.reproduce import page, reproducing
    from draftwood.eval.reproduce.paper import load
    from draftwood.explain.terminal import console

    if scale not in SCALES:
        raise ConfigurationError(f"there is no scale {scale!r}" + did_you_mean(scale, SCALES))
    experiment = reproducing.experiment(paper)
    if decision is not None and paper != "mcsd":
        raise ConfigurationError(f"--decision belongs to mcsd, not to {paper}; leave it out")
    said, size = load(paper), experiment.sizes[scale]
    out = out or Path(f"reproduction-{paper}-{scale}")
    engine = flags.ModelFlags(target, draft, dtype, device, quantize, compile).load()
    about = {"paper": paper, "scale": scale, "models": engine.names, "decision": decision and str(decision)}
    reproducing.claim(out, about)
    err = console(color, stderr=True)
    interrupted = False
    made = None
    try:
        with err.status("preparing") as status:
            made = prepare(engine, paper, size, out, decision, lambda what: status.update(what))
        evaluations = experiment.evaluations(size, made)
        with progress(color) as (begun, told):
            reproducing.run(engine, evaluations, out, begun, told)
    except KeyboardInterrupt:  # what has been measured is shown
        if made is None:
            raise
        interrupted = True
    results = reproducing.read(evaluations, out)
    shown = page.exhibits(said, experiment, results, size, made)
    with err.status("drawing") as status:
        written, files = page.write(said, shown, results, out, scale, lambda figure: status.update(figure))
    summary(shown, console(color).print)
    print(written)
    if files:
        print(f"{len(files)} figures in {files[0].parent}")
    if interrupted:
        sys.exit(130)


def summary(shown: Sequence[Beside], say: Callable[..., Any]) -> None:
    """The main comparisons as a table."""
    from rich.text import Text

    from draftwood.eval.reproduce.comparison import Order
    from draftwood.eval.reproduce.page import comparisons
    from draftwood.explain.terminal import simple_table

    table = simple_table()
    table.add_column("", overflow="fold", min_width=24)
    for name in ("the paper", "here", "verdict"):
        table.add_column(name, overflow="fold")
    for source, one in comparisons(shown):
        ranks = isinstance(one, Order)  # too long for a table; the page has them
        cells = ("order", "order") if ranks else (one.theirs, one.here)
        table.add_row(*map(Text, (f"{source}, {one.what}", *cells, one.short)))
    if table.row_count:
        say(table)
        say("intervals that reach 1 (of differences 0) leave the direction open; the page has all comparisons")
