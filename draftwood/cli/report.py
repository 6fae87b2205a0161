"""`draftwood report`: pages of tables and figures about evaluations."""

from __future__ import annotations

from pathlib import Path

from draftwood.cli.groups import OUTPUT, ColorOptions
from draftwood.cli.options import flag


def report(
    *,
    directory: Path = flag(
        ..., "What `draftwood eval --out` wrote, or a directory of several of these.", "DIR", argument=True
    ),
    out: Path | None = flag(None, "Page and figures go here.", "DIR", panel=OUTPUT, usual="DIR itself"),
    figures: str = flag("svg", "Format of the figures.", "svg|png|pdf", panel=OUTPUT),
    output: ColorOptions,
) -> None:
    """Write a page of tables and figures about an evaluation.

    One self-contained HTML file, which works offline, and its figures as separate
    files. An unfinished evaluation is reported as far as it got.
    """
    from draftwood.eval.report import page
    from draftwood.explain.terminal import console

    err = console(output.color, stderr=True)
    with err.status("reading") as status:
        written, files = page.write(directory, out, status.update, figures)
    folder = files[0].parent if files else None
    print(written)
    if folder is not None:
        print(f"{len(files)} figures in {folder}")
