"""Markdown from result files: docs/results.md. Other pages that show tables are pages.py's.

A column is a template over the fields of a row and of its file (pair, dtype, threads, run): `{speed_up:.2fx~}`. Behind
the number's format `x` puts a times sign, `M` writes millions, `~` the interval. A cell with an unknown field is
empty, or is made by the next template behind `||`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from string import Formatter
from typing import Any

from benchmarks.execute import read, results_of
from benchmarks.experiment import Drawing, Experiment, Rows, Selection, Table, load
from draftwood.errors import ConfigurationError
from draftwood.eval import provenance
from draftwood.eval.report.charts import Curve, Span, curves
from draftwood.util import plots
from draftwood.util.plots import PALETTE

HEAD = """# Results

Every number here comes from the files under `benchmarks/results`; `python -m benchmarks pages` makes this page
of them. Each section names the command that repeats the measurement. Ratios compare methods whose runs were
interleaved on the same prompts; in parentheses are 95% bootstrap intervals. Runs of a section can be of different
machines: compare times only between runs that name the same processor and kernels. Where a section says so, it was
measured by an earlier program, whose command and commit are kept. A grown pair has the small pair's text and
acceptance at the cost of a larger shape.
"""
OVERVIEW = "overview.yaml"  # a table over several experiments, shown by other pages only


class Cells(Formatter):
    """Formats values of rows: numbers, texts, intervals {value, low, high} and ranges {low, high}."""

    def format_field(self, value: Any, spec: str) -> str:
        interval, spec = spec.endswith("~"), spec.removesuffix("~")
        million, spec = spec.endswith("M"), spec.removesuffix("M")
        unit, spec = ("x", spec[:-1]) if spec.endswith("x") else ("", spec)
        ends: tuple[Any, Any] = (None, None)
        if isinstance(value, Mapping) and "value" not in value:  # what a conclusion says of several rows
            return " to ".join(dict.fromkeys(format(value[end], spec) for end in ("low", "high")))
        if isinstance(value, Mapping):
            value, ends = value["value"], (value["low"], value["high"])
        if value is None:
            raise KeyError("no value")
        if million:
            return "none" if not value else f"{value / 1e9:.3g}B" if value >= 1e9 else f"{value / 1e6:.3g}M"
        text = format(value, spec) + unit
        if interval and None not in ends:
            text += f" ({format(ends[0], spec)} to {format(ends[1], spec)})"
        return text

    def fill(self, template: str, row: Mapping[str, Any]) -> str:
        """The first of the templates between `||` whose fields the row has; empty where there is none."""
        for each in template.split(" || "):
            try:
                return self.vformat(each, (), row).replace("|", "\\|").replace("\n", " ")
            except (KeyError, IndexError, TypeError):
                continue
        return ""


CELLS = Cells()


def documents(file: Path) -> list[dict[str, Any]]:
    """The results of an experiment, in the order of its runs; others, of one's own models, behind them."""
    order = list(load(file).runs)
    found = [whole(path.stem, read(path)) for path in sorted(results_of(file).glob("*.json"))]
    return sorted(found, key=lambda each: order.index(each["run"]) if each["run"] in order else len(order))


def whole(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """A result file as it is, or what another command wrote: its lists and mappings of rows become tables."""
    if "tables" in document:
        return document
    tables: dict[str, Rows] = {}
    for key, value in document.items():
        rows = value
        if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()):
            rows = [{"name": name, **row} for name, row in value.items()]
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            tables[key] = rows
    environment = document.get("environment") or document.get("circumstances") or {}
    environment = {**environment, "git_commit": environment.get("git_commit", environment.get("commit"))}
    rest = {key: value for key, value in document.items() if key not in tables}
    return {"models": {}, **rest, "run": name, "environment": environment, "tables": tables}


def rows_of(results: Sequence[Mapping[str, Any]], wanted: Selection) -> Rows:
    """The rows of all files, with what the files say of them, that are asked for; lossy methods say so."""
    found = []
    for result in results:
        models = result["models"]
        about = {**result, "pair": models.get("pair", ""), "draft": models.get("draft_of", ""), **result["environment"]}
        for row in result["tables"].get(wanted.rows, ()):
            known = {**about, "type": about.get("dtype"), **row}
            if not all(_has(known, *each) for each in wanted.where.items()):
                continue
            if any(_has(known, *each) for each in wanted.without.items()):
                continue
            if known.get("lossy"):
                known["method"] += " (lossy)"
            found.append(known)
    return found


def _has(row: Mapping[str, Any], key: str, values: Any) -> bool:
    """Whether the row's field, such as `task` or `method[name]`, is one of the values; one with a star is a pattern."""
    try:
        found = CELLS.get_field(key, (), row)[0]
    except KeyError:
        found = None
    return any(
        fnmatchcase(str(found), each) if isinstance(each, str) and "*" in each else found == each
        for each in (values if isinstance(values, list) else [values])
    )


def number(value: Any) -> float:
    """The value of a number or interval."""
    return float(value["value"] if isinstance(value, Mapping) else value)


def markdown(table: Table, results: Sequence[Mapping[str, Any]]) -> str:
    """The table; empty where nothing was measured."""
    rows = rows_of(results, table)
    if table.best is not None:
        best: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            key, of = tuple(row.get(name) for name in table.best.by), table.best.of
            if key not in best or number(row[of]) > number(best[key][of]):
                best[key] = row
        rows = list(best.values())
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    pivoted: dict[str, None] = {}
    for place, row in enumerate(rows):
        cells = tuple(CELLS.fill(template, row) for template in table.columns.values())
        if table.pivot is None:
            lines[(*cells, str(place))] = {}
            continue
        name = CELLS.fill(table.pivot.by, row)
        pivoted.setdefault(name)
        lines.setdefault(cells, {})[name] = CELLS.fill(table.pivot.cell, row)
    if not lines:
        return ""
    head = [*table.columns, *pivoted]
    made = [head, ["---"] * len(head)]
    made += [[*key[: len(table.columns)], *(found.get(name, "") for name in pivoted)] for key, found in lines.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in made)


def section(experiment: Experiment, file: Path) -> Iterator[str]:
    """An experiment's part of the page."""
    results = documents(file)
    yield f"## {experiment.title}"
    if experiment.about:
        yield experiment.about.strip()
    again = experiment.made_by or f"python -m benchmarks run {file.stem}"
    yield f"To repeat: `{again}`." + (" Measured:" if results else " Not measured yet.")
    lines = []
    for result in results:
        e = result["environment"]
        told = [provenance.machine(e), f"torch {e['torch']}" if e.get("torch") else "", str(e.get("began", ""))[:10]]
        told += [f"commit {str(e['git_commit'])[:9]}" if e.get("git_commit") else ""]
        lines.append(f"- {result['run']}" + (": " + ", ".join(filter(None, told)) if any(told) else ""))
    if lines:
        yield "\n".join(lines)
    for note in dict.fromkeys(each["environment"].get("note") for each in results):
        if note:
            yield f"{note[0].upper()}{note[1:]}."
    for table in experiment.tables:
        made = markdown(table, results)
        if made:
            yield f"### {table.title}"
            if table.about:
                yield table.about.strip()
            yield made
    for name, asked in experiment.drawings.items():
        for result in results:
            yield f"![{asked.title}: {result['run']}](assets/{picture(file, result, name)})"
    if experiment.conclusions:
        yield concluded(experiment, results, file)


def concluded(experiment: Experiment, results: Sequence[Mapping[str, Any]], file: Path) -> str:
    """The conclusions with their numbers: `{name}` is "least to greatest" of a fact's values, `[low]`, `[high]` one.

    Raises ConfigurationError where a fact has no rows.
    """
    found: dict[str, dict[str, float]] = {}
    for name, fact in experiment.facts.items():
        values = [number(row[fact.of]) for row in rows_of(results, fact) if row.get(fact.of) is not None]
        if not values:
            raise ConfigurationError(f"{file}: no row has what the conclusions call {name!r}; correct facts.{name}")
        found[name] = {"low": min(values), "high": max(values), "count": len(values)}
    return CELLS.vformat(experiment.conclusions.strip(), (), found)


def picture(file: Path, result: Mapping[str, Any], name: str) -> str:
    """The file of a drawing of a run."""
    return f"{file.stem}-{result['run']}-{name}.svg"


def drawings(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """(file, title, matplotlib figure) of all drawings of the page."""
    for file, experiment in experiments(folder):
        for name, asked in experiment.drawings.items():
            for result in documents(file):
                yield picture(file, result, name), asked.title, drawn(asked, result)


def drawn(asked: Drawing, result: Mapping[str, Any]) -> Any:
    """The matplotlib figure of a run."""
    points: dict[str, list[tuple[float, Span]]] = {}
    colours: dict[str, str] = {}
    kinds: dict[Any, str] = {}
    for row in result["tables"].get(asked.rows, ()):
        if isinstance(row[asked.x], int):
            y, label = row[asked.y], CELLS.fill(asked.label, row)
            span = Span(y["value"], y["low"], y["high"]) if isinstance(y, Mapping) else Span(y)
            points.setdefault(label, []).append((row[asked.x], span))
            kinds.setdefault(row[asked.colour], PALETTE[len(kinds) % len(PALETTE)])
            colours[label] = kinds[row[asked.colour]]
    lines = [Curve(label, each, colours[label]) for label, each in points.items()]
    chart = curves(asked.x, asked.title, lines, doubling=True)
    return plots.figure(chart.draw, height=chart.height)


def experiments(folder: Path) -> list[tuple[Path, Experiment]]:
    """The experiments of a directory in the order of their sections."""
    found = [(path, load(path)) for path in sorted(folder.glob("*.yaml")) if path.name != OVERVIEW]
    if not found:
        raise ConfigurationError(f"{folder} holds no experiment (*.yaml); give the directory benchmarks/experiments")
    return sorted(found, key=lambda each: each[1].order)


def page(folder: Path) -> str:
    """The whole page of results; what nobody has measured yet has no section."""
    parts = [HEAD.strip()]
    for path, experiment in experiments(folder):
        if documents(path):
            parts += section(experiment, path)
    return "\n\n".join(parts) + "\n"
