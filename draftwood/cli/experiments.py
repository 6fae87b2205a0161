"""`draftwood eval FILE`: an experiment's runs, each into a result file, and the page that is made of these."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.running import progress
from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwood.cli.groups import ModelOptions


def run(
    file: Path, only: Sequence[str], smoke: bool, out: Path | None, models: ModelOptions | None, color: bool | None
) -> None:
    """Measure the runs that are asked for and print their tables. Ctrl-C keeps what was measured."""
    from draftwood.eval.experiments import execute, tables
    from draftwood.eval.experiments.experiment import load
    from draftwood.eval.experiments.pairs import Pair, home

    experiment = load(file)
    out = out or execute.results_of(file)
    if smoke and out == execute.results_of(file):
        raise ConfigurationError("a smoke run is no result; give --out DIR for it")
    pair, dtype = None, "float32"
    if models is not None:
        if not models.draft:
            raise ConfigurationError("experiments compare a target and a draft; give --draft, too")
        target, dtype = Path(models.target or ""), models.dtype
        pair = Pair(target.name, target, Path(models.draft[0]), home() / target.name)
    for name, each in execute.chosen(experiment, only, pair, dtype).items():
        try:
            with progress(color, name, live=False) as update:

                def told(what: str, done: int, total: int | None, name: str = name) -> None:
                    update(completed=done, total=total, description=f"{name}: {what}")

                document = execute.execute(experiment, file, name, each, out, smoke, pair, told)
        except KeyboardInterrupt:
            print(f"{out / name}.work keeps what was measured; the same command goes on", file=sys.stderr)
            sys.exit(130)
        for table in experiment.tables:
            if made := tables.markdown(table, [document]):
                print(f"\n{table.title}\n\n{made}")
        print(f"\n{out / name}.json")


def write_page(folder: Path, out: Path) -> None:
    """Write the page of results, and the tables that other pages show."""
    from draftwood import plots
    from draftwood.cli.running import check_writable, write_text
    from draftwood.eval.experiments.pages import PAGES, filled
    from draftwood.eval.experiments.tables import drawings, page

    text = page(folder)
    check_writable(out, "--results")
    write_text(out, text, "--results")
    print(out)
    for name, title, drawn in drawings(folder):
        path = out.parent / "assets" / name
        path.parent.mkdir(exist_ok=True)
        plots.save(drawn, path, title)
        print(path)
    for path in (folder.parent / name for name in PAGES):
        if path.is_file() and (after := filled(before := path.read_text("utf-8"), folder)) != before:
            write_text(path, after, "--results")
            print(path)
