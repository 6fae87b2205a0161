"""Result files as pandas frames, numbers with their intervals as text, frames as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from benchmarks.execute import read
from benchmarks.experiment import HERE, find, load
from benchmarks.kinds.methods import MethodEntry, expanded

RESULTS = HERE / "results"


def documents(experiment: str) -> list[dict[str, Any]]:
    """The result files of an experiment that its YAML file has runs for, in the order of these."""
    files = [RESULTS / experiment / f"{run}.json" for run in load(find(experiment)).runs]
    return [read(file) for file in files if file.is_file()]


def labels(experiment: str) -> set[str]:
    """The labels of methods that an experiment of kind `methods` runs now; older results may have others."""
    parts = load(find(experiment)).settings["parts"].values()
    entries = [[MethodEntry(**method) for method in part["methods"]] for part in parts]
    return {setting.label for each in entries for setting in expanded(each)}


def frame(experiment: str, table: str, **where: Any) -> pd.DataFrame:
    """The rows of a table of all result files, each with `run`, `pair` and `type`, whose fields are as `where` says."""
    rows = []
    for document in documents(experiment):
        about = {"run": document["run"], "pair": document["models"].get("pair", "")}
        about["type"] = document["environment"]["dtype"]
        rows += [{**about, **row} for row in document["tables"].get(table, ())]
    rows = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
    return pd.DataFrame(rows)


def value(number: Any) -> float:
    """The value of a number or an interval; NaN where there is none."""
    result = number["value"] if isinstance(number, Mapping) else number
    return float("nan") if result is None else float(result)


def rate(number: Any) -> str:
    """Tokens per second: 140, or 3.2 where they are few."""
    found = value(number)
    return format(found, ".0f" if found >= 10 else ".1f")


def text(number: Any, form: str = ".2f", unit: str = "", ends: bool = False) -> str:
    """A number or the value of an interval, with its ends and n if they are asked for; empty where there is none."""
    if pd.isna(value(number)):
        return ""
    shown = format(value(number), form) + unit
    if ends and number["low"] is not None:
        shown += f" ({number['low']:{form}} to {number['high']:{form}}, n={number['n']})"
    return shown


def times(number: Any, ends: bool = False, digits: int = 2) -> str:
    """A ratio as 1.08x, or as 1.08x (0.98 to 1.18, n=48)."""
    return text(number, f".{digits}f", "x", ends)


def span(numbers: Sequence[Any], form: str = ".2f") -> str:
    """The least and the greatest of some values: 1.08 to 1.16; raises ValueError where there are none."""
    known = [value(number) for number in numbers]
    return " to ".join(dict.fromkeys(format(end, form) for end in (min(known), max(known))))


def pivoted(rows: pd.DataFrame, index: Sequence[str], by: str, cell: str = "cell") -> pd.DataFrame:
    """A row for each combination of the `index` fields and a column for each value of `by`, in their order."""
    wide = rows.pivot_table(cell, list(index), by, aggfunc="first", sort=False)
    return wide.fillna("").reset_index()


def markdown(rows: pd.DataFrame) -> str:
    """A table of text."""
    cells = [list(rows.columns), ["---"] * len(rows.columns), *rows.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in cells)


def sources(experiment: str) -> str:
    """The command that repeats an experiment, and the machine, day and commit of its results."""
    result: dict[str, list[str]] = {}
    for document in documents(experiment):
        result.setdefault(source(document["environment"]), []).append(f"`{document['run']}`")
    measured = "; ".join(f"{', '.join(runs)}: {about}" for about, runs in result.items())
    return f"`python -m benchmarks run {experiment}`. Measured: {measured}."


def source(environment: Mapping[str, Any]) -> str:
    """Machine, day and commit of a result file."""
    return f"{machine(environment)}, {environment['began'][:10]}, commit {short(environment['git_commit'])}"


def short(commit: str) -> str:
    """A commit in nine letters, with what says that the tree had changes."""
    name, plus, changes = commit.partition("+")
    return name[:9] + plus + changes


def machine(session: Mapping[str, Any]) -> str:
    """The machine in words; empty where it was not written down."""
    if not session.get("threads"):
        return ""
    threads = f"{session['threads']} thread{'s' * (session['threads'] != 1)} of {session['processor']}"
    able = f" with {session['instructions']}" if session.get("instructions") else ""  # which the name may not tell
    kernels = f"kernels {session['kernels']}" if session.get("kernels") else "PyTorch's kernels"
    return f"{threads}{able}, {kernels}"
