"""`draftwood reproduce` and `draftwood report`: a paper's tables and figures measured again; pages of evaluations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from draftwood.cli.groups import OUTPUT, ColorOptions, ModelOptions
from draftwood.cli.options import flag
from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from draftwood.eval.reproduce.exhibits import Shown


def reproduce(
    *,
    paper: str = flag(..., "Which paper.", "dsbd|mcsd|eesd", argument=True),
    scale: Literal["small", "full"] = flag(
        "small",
        "small: few items and settings. full: the paper's sweeps on more items; trains exits for eesd.",
        panel=OUTPUT,
    ),
    limit: int | None = flag(None, "Items per task.", panel=OUTPUT, usual="the scale's", ge=1),
    seeds: int | None = flag(None, "Runs per item.", panel=OUTPUT, usual="the scale's", ge=1),
    max_new_tokens: int | None = flag(None, "Most tokens of each answer.", panel=OUTPUT, usual="the scale's", ge=1),
    training_steps: int | None = flag(
        None, "eesd --scale full: steps of training for each exit.", panel=OUTPUT, usual="the scale's", ge=1
    ),
    decision: Path | None = flag(
        None,
        "mcsd: a decision model of `draftwood train decision` for the draft.",
        "FILE",
        panel=OUTPUT,
        usual="one is trained first",
    ),
    out: Path | None = flag(
        None,
        "Page, figures and results go here; the same command resumes.",
        "DIR",
        panel=OUTPUT,
        usual="reproduction-PAPER-SCALE",
    ),
    models: ModelOptions,
    output: ColorOptions,
) -> None:
    """Measure a paper's tables and figures and compare them with the paper's.

    The papers: dsbd (beams), mcsd (trees of candidates), eesd (early exits). Runs
    are those of `draftwood eval`, in directories below --out. The same command
    resumes where it was stopped; Ctrl-C leaves a page of what was measured.
    """
    from draftwood.cli.evaluate import progress
    from draftwood.eval.reproduce import exhibits, page, reproducing, results
    from draftwood.eval.reproduce.paper import load
    from draftwood.explain.terminal import console

    asked = load(paper).resized(scale, training_steps, items=limit, seeds=seeds, tokens=max_new_tokens)
    if decision is not None and paper != "mcsd":
        raise ConfigurationError(f"--decision belongs to mcsd, not to {paper}; leave it out")
    out = out or Path(f"reproduction-{paper}-{scale}")
    engine = models.load()
    about = {"paper": paper, "scale": scale, "models": engine.names, "decision": decision and str(decision)}
    reproducing.claim(out, {**about, **asked.scales[scale].sizes})
    err = console(output.color, stderr=True)
    interrupted = False
    made = None
    try:
        with err.status("preparing") as status:
            made = reproducing.prepare(engine, asked, scale, out, decision, lambda what: status.update(what))
        evaluations = reproducing.evaluations(asked, scale, made)
        with progress(output.color) as (begun, told):
            reproducing.run(engine, evaluations, out, begun, told)
    except KeyboardInterrupt:  # what has been measured is shown
        if made is None:
            raise
        interrupted = True
    found = results.read(out, {name: each.settings for name, each in evaluations.items()})
    shown = exhibits.shown(asked, found, made)
    with err.status("drawing") as status:
        written, files = page.write(asked, paper, shown, found, out, scale, made, lambda figure: status.update(figure))
    summary(shown, console(output.color).print)
    print(written)
    if files:
        print(f"{len(files)} figures in {files[0].parent}")
    if interrupted:
        sys.exit(130)


def summary(shown: Sequence[Shown], say: Callable[..., Any]) -> None:
    """The main comparisons as a table."""
    from draftwood.eval.reproduce.comparison import Order
    from draftwood.eval.reproduce.exhibits import main_findings
    from draftwood.explain.terminal import simple_table

    rows = []
    for source, one in main_findings(shown):
        ranks = isinstance(one, Order)  # too long for a table; the page has them
        cells = ("order", "order") if ranks else (one.theirs, one.here)
        rows.append((f"{source}, {one.what}", *cells, one.short))
    if rows:
        say(simple_table("", "the paper", "here", "verdict", rows=rows))
        say("intervals that reach 1 (of differences 0) leave the direction open; the page has all comparisons")


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
