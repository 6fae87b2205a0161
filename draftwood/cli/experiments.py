"""`draftwood eval FILE`: an experiment's runs, each into a result file, and the page that is made of these."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.running import progress
from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwood.cli.groups import ModelOptions
    from draftwood.cli.scaling import RayOptions
    from draftwood.eval.experiments.experiment import Run

Execute = Callable[..., dict[str, Any]]  # `execute` with all but a run's name, the run and what is told


def run(
    file: Path,
    only: Sequence[str],
    smoke: bool,
    out: Path | None,
    models: ModelOptions | None,
    scaling: RayOptions,
    color: bool | None,
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
    runs = execute.chosen(experiment, only, pair, dtype)
    work = partial(execute.execute, experiment, file, out=out, smoke=smoke, models=pair)
    documents = on_ray(work, runs, scaling, color) if scaling.wanted else in_turns(work, runs, color)
    try:
        for name, document in zip(runs, documents, strict=True):
            for table in experiment.tables:
                if made := tables.markdown(table, [document]):
                    print(f"\n{table.title}\n\n{made}")
            print(f"\n{out / name}.json")
    except KeyboardInterrupt:
        kept = [str(place) for place in (out / f"{name}.work" for name in runs) if place.is_dir()]
        print(f"{', '.join(kept) or out} keeps what was measured; the same command resumes", file=sys.stderr)
        sys.exit(130)


def in_turns(work: Execute, runs: Mapping[str, Run], color: bool | None) -> Iterator[dict[str, Any]]:
    """The runs' documents, measured one after the other in this process, each with a bar."""
    for name, run in runs.items():
        with progress(color, name, live=False) as update:

            def told(what: str, done: int, total: int | None, name: str = name) -> None:
                update(completed=done, total=total, description=f"{name}: {what}")

            document = work(name=name, run=run, told=told)
        yield document


def on_ray(work: Execute, runs: Mapping[str, Run], scaling: RayOptions, color: bool | None) -> Iterator[dict[str, Any]]:
    """The same, measured by processes on Ray."""
    threads = max(run.threads for run in runs.values())
    make = partial(_elsewhere, work, os.getcwd(), sys.argv)
    with progress(color, "runs", len(runs)) as update, scaling.spread(threads) as spread:
        for document in spread(make, runs.items()):
            update(advance=1)
            yield document


def _elsewhere(work: Execute, place: str, arguments: list[str]) -> Callable[[tuple[str, Run]], dict[str, Any]]:
    """What measures a run in another process as if it were this command's."""
    os.chdir(place)
    sys.argv = arguments
    return lambda item: work(name=item[0], run=item[1])


def write_page(folder: Path, out: Path) -> None:
    """Write the page of results, and the tables that other pages show."""
    from draftwood.cli.running import check_writable, write_text
    from draftwood.eval.experiments.pages import PAGES, filled
    from draftwood.eval.experiments.tables import drawings, page
    from draftwood.util import plots

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
