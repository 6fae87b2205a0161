"""Tables of results on pages other than docs/results.md: README, the model card, docs/papers.md, docs/serving.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.experiment import Selection, Strict, parsed, validated
from benchmarks.tables import CELLS, OVERVIEW, PAPERS, documents, experiments, markdown, number, rows_of
from draftwood.eval import provenance
from draftwood.eval.reproduce.paper import Paper
from draftwood.eval.reproduce.paper import load as paper

ResultsOf = Callable[[str], Sequence[Mapping[str, Any]]]  # of an experiment by its name
REPRODUCED = "reproductions"  # the experiment whose results `draftwood reproduce` writes
MARKS = ("", *"¹²³⁴⁵⁶⁷⁸⁹")  # of machines, the first unmarked
PAGES = ("README.md", "draftwood/models/embedded/README.md", "docs/papers.md", "docs/serving.md")  # beside bench


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


class Measured(Selection):
    """What was measured for a claim: a text for each row of an experiment."""

    experiment: str
    cell: str


class Claim(Strict):
    """A table, figure, theorem or algorithm of a paper, what it is in the code, and what was measured of it.

    Of an `exhibit` of `draftwood reproduce` what it says and its comparisons are known.
    """

    of: str  # Figure 4
    exhibit: str = ""
    compared: list[str] = Field(default=["*"])  # patterns of the exhibit's comparisons that belong here
    says: str = ""
    code: tuple[str, ...]  # dotted names, or paths
    again: tuple[str, ...]  # commands that draw it or test it again
    measured: tuple[Measured, ...] = ()
    unmeasured: str = ""  # why nothing is
    beside: str  # what agrees with the paper, what does not, and why


Papers = dict[str, tuple[Claim, ...]]  # by the paper's name


def claims(folder: Path) -> Papers:
    """The claims of all papers."""

    class Asked(Strict):
        papers: Papers

    return validated(Asked, {"papers": parsed(folder / PAPERS)}, str(folder / PAPERS)).papers


def claimed(name: str, found: Sequence[Claim], results_of: ResultsOf) -> str:
    """A paper's claims, a section and a table for each."""
    known, made = paper(name), list[str]()
    for claim in found:
        lines = list(_measured(name, known, claim, results_of)) or [claim.unmeasured or "not measured yet"]
        code, again = (", ".join(f"`{each}`" for each in some) for some in (claim.code, claim.again))
        rows = {
            "the paper": claim.says or known.exhibit(claim.exhibit).claim,
            "agreement": claim.beside,
            "measured": "<br>".join(lines),
            "commands": again,
            "code": code,
        }
        made.append(f"### {claim.of}\n\n" + _table([[key, " ".join(cell.split())] for key, cell in rows.items()]))
    return "\n\n".join(made)


def _measured(name: str, known: Paper, claim: Claim, results_of: ResultsOf) -> Iterator[str]:
    asked = list(claim.measured)
    if claim.exhibit:
        cell = "{what}: {here} (the paper: {paper}): {verdict}"
        for run, told in ((name, cell), (f"{name}-*", "{run}, " + cell)):
            where = {"run": run, "exhibit": known.exhibit(claim.exhibit).short, "what": claim.compared}
            asked.append(Measured(experiment=REPRODUCED, rows="comparisons", where=where, cell=told))
    for each in asked:
        for row in rows_of(results_of(each.experiment), each):
            if text := CELLS.fill(each.cell, row).removesuffix(": "):  # without a verdict the reason is said
                yield text


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
    if (folder / PAPERS).is_file():
        for name, found in claims(folder).items():
            of = {each.experiment for claim in found for each in claim.measured}
            of |= {REPRODUCED for claim in found if claim.exhibit}
            made[f"claims of {name}"] = claimed(name, found, results_of), of
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
