"""`draftwood report`: the page about what `draftwood eval` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftwood.cli import flags


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="What `draftwood eval --out` wrote, or a directory that holds several of these.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Page and figures go here.", show_default="DIR itself"),
    ] = None,
    color: flags.Color = None,
) -> None:
    """Write a page of tables and figures about an evaluation.

    One self-contained HTML file, which works offline, and its figures as SVG
    files, with matplotlib as PNG files too. An evaluation that still runs, or
    was stopped, is reported as far as it came.
    """
    from draftwood.eval.report import page
    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    with err.status("reading") as status:
        written, files = page.write(directory, out, lambda figure: status.update(figure))
    folder = files[0].parent if files else None
    print(written)
    if folder is not None:
        print(f"{len(files)} figures in {folder}")
