"""`python -m benchmarks.papers`: a paper's tables and figures measured again, beside what the paper gives."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmarks import pairs
from benchmarks.command import started
from benchmarks.execute import write
from benchmarks.papers.page import RESULTS, findings
from benchmarks.papers.study import Study
from draftwood.engine.loading import load

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Count = Annotated[int | None, typer.Option(min=1)]


@app.command()
def measure(
    paper: Literal["dsbd", "mcsd", "eesd"],
    full: Annotated[bool, typer.Option("--full", help="The paper's sweeps, on more items.")] = False,
    items: Count = None,
    seeds: Count = None,
    max_new_tokens: Count = None,
    pair: Annotated[str, typer.Option(help="The models: embedded, grown-12x768 or grown-22x2048.")] = "embedded",
    dtype: str = "auto",
    out: Annotated[Path | None, typer.Option(help="Default: paper-PAPER-PAIR.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Put the results where docs/papers.md takes them from.")] = False,
) -> None:
    """Measure a paper's tables and figures and compare them with the paper's.

    Runs are those of `draftwood eval`, in directories below --out. After Ctrl-C the same command goes on.
    """
    script = import_module(f"benchmarks.papers.{paper}")
    asked = {"items": items, "seeds": seeds, "tokens": max_new_tokens}
    size = replace(
        script.SIZES["full" if full else "small"], **{key: count for key, count in asked.items() if count is not None}
    )
    models = pairs.pair(pair)
    out = out or Path(f"paper-{paper}-{pair}")
    engine = load(models.target, models.draft, dtype=dtype)
    with Console(stderr=True).status("preparing") as status:
        study = Study(engine, size, out, status.update)
        script.measure(study, full)
    document = study.document(paper, pair, " ".join(["python -m benchmarks.papers", *sys.argv[1:]]))
    place = RESULTS / f"{paper}-{pair}.json" if keep else out / "results.json"
    write(place, document)
    print(findings([document]), "\n".join(study.notes), place, sep="\n")


if __name__ == "__main__":
    sys.exit(started(app, "benchmarks.papers"))
