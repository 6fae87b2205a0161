"""Tables of results on pages other than docs/results.md: README, the model card, docs/serving.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.experiment import Selection, Strict, parsed, validated
from benchmarks.tables import CELLS, OVERVIEW, documents, experiments, markdown, number, rows_of
from draftwood.eval import provenance

ResultsOf = Callable[[str], Sequence[Mapping[str, Any]]]  # of an experiment by its name
MARKS = ("", *"¹²³⁴⁵⁶⁷⁸⁹")  # of machines, the first unmarked
PAGES = ("README.md", "draftwood/models/embedded/README.md", "docs/serving.md")  # beside bench


class Line(Strict):
    """A row of an overview: from which experiment its cells come, and the rows of it that may be shown."""

    label: str
    experiment: str
    rows: str
    cell: str
    where: dict[str, Any] = Field(default_factory=dict)
    best: str = ""  # show the row in which this is greatest; else the first


class Overview(Strict):
    """One table over several experiments: for each column what the rows must have, too."""

    marker: str
    columns: dict[str, dict[str, Any]]
    lines: tuple[Line, ...]


def overview(asked: Overview, results_of: ResultsOf) -> str:
    """The overview, and what computed its cells; one is empty where nothing was measured."""
    made, machines = [["", *asked.columns]], list[str]()
    for line in asked.lines:
        results, cells = results_of(line.experiment), [line.label]
        for wanted in asked.columns.values():
            rows = rows_of(results, Selection(rows=line.rows, where={**line.where, **wanted}))
            row = (
                max(rows, key=lambda each: number(each[line.best]), default=None)
                if line.best
                else next(iter(rows), None)
            )
            if row is None:
                cells.append("")
                continue
            if (machine := provenance.machine(row)) not in machines:
                machines.append(machine)
            mark = MARKS[machines.index(machine)]
            cells.append(f"{CELLS.fill(line.cell, row)}{mark and f' {mark}'}")
        made.append(cells)
    told = "; ".join(f"{mark} {machine}".strip() for mark, machine in zip(MARKS, machines, strict=False))
    return f"{_table(made)}\n\nMeasured with {told}."


def _table(rows: Sequence[Sequence[str]]) -> str:
    made = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in made)


def filled(text: str, folder: Path) -> str:
    """A page with its marked tables made anew: `<!-- NAME -->` to `<!-- end of NAME -->`."""

    @cache
    def results_of(name: str) -> list[dict[str, Any]]:
        return documents(folder / f"{name}.yaml")

    made: dict[str, tuple[str, set[str]]] = {  # by marker, and the experiments that are shown
        table.marker: (markdown(table, results_of(path.stem)), {path.stem})
        for path, experiment in experiments(folder)
        for table in experiment.tables
        if table.marker
    }
    if (folder / OVERVIEW).is_file():
        asked = validated(Overview, parsed(folder / OVERVIEW), str(folder / OVERVIEW))
        made[asked.marker] = overview(asked, results_of), set()
    shown = {name for marker, (_, of) in made.items() if f"<!-- {marker} -->\n" in text for name in of}
    made["machines"] = machines(sorted(shown), results_of), set()
    for marker, (table, _) in made.items():
        begin, end = f"<!-- {marker} -->\n", f"\n<!-- end of {marker} -->"
        if begin in text and end in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def machines(names: Iterable[str], results_of: ResultsOf) -> str:
    """Which results of these experiments were measured on which machine."""
    found: dict[str, list[str]] = {}
    for name in names:
        for each in results_of(name):
            if told := provenance.machine(each["environment"]):
                found.setdefault(told, []).append(f"{name}/{each['run']}")
    return _table([["measured with", "results"], *([told, ", ".join(results)] for told, results in found.items())])
