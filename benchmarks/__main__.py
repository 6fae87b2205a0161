"""`python -m benchmarks`: measure experiments, and write the pages that show their results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import check_kernels, started
from benchmarks.execute import chosen, execute, results_of
from benchmarks.experiment import HERE, find, load
from draftwood.cli.running import check_writable, progress, write_text
from draftwood.errors import ConfigurationError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="A file of benchmarks/experiments, or its name: engine.")],
    only: Annotated[list[str] | None, typer.Option(help="Only this run of the experiment. Repeatable.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run for seconds, to check that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory of results. Default: benchmarks/results/NAME.")] = None,
    llama_python: Annotated[
        Path | None, typer.Option(help="A Python with llama-cpp-python, which `files` compares with.")
    ] = None,
) -> None:
    """Measure an experiment's runs, each into a result file; the same command resumes where it was stopped."""
    file = find(experiment)
    loaded = load(file)
    place = out or results_of(file)
    if smoke and out is None:
        raise ConfigurationError("a smoke run is no result; give --out DIR for it")
    check_kernels()
    for name, each in chosen(loaded, only or ()).items():
        with progress(None, name, live=False) as update:

            def on_progress(what: str, done: int, total: int | None, name: str = name) -> None:
                update(completed=done, total=total, description=f"{name}: {what}")

            try:
                result = execute(
                    loaded, file, name, each, place, smoke, llama_python=llama_python, on_progress=on_progress
                )
            except KeyboardInterrupt:
                print(f"{place / name}.work keeps what was measured; the same command resumes", file=sys.stderr)
                raise typer.Exit(130) from None
        for row in result["tables"].get("failures", ()):
            print(f"{name}: {next(iter(row.values()))} was not measured: {row['failure']}", file=sys.stderr)
        print(f"{place / name}.json")


@app.command()
def pages(
    root: Annotated[Path, typer.Option(help="The clone whose pages are written.")] = HERE.parent,
) -> None:
    """Write docs/results.md, and the tables of results on other pages, from the result files."""
    from benchmarks.pages import made

    for path, text in made(root).items():
        check_writable(path, "--root")
        write_text(path, text, "--root")
        print(path)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code: 2 with one sentence for bad input, 130 after Ctrl-C."""
    return started(app, "benchmarks", arguments)


if __name__ == "__main__":
    sys.exit(main())
