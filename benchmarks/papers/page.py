"""The tables of docs/papers.md: what each paper gives beside what result files hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from draftwood.util.safe_parsing import parse_json, read_text

RESULTS = Path(__file__).parents[1] / "results" / "papers"
NONE = "–"


def documents(paper: str) -> list[dict[str, Any]]:
    """The result files of a paper, that of the embedded pair first."""
    found = [parse_json(read_text(path)) for path in sorted(RESULTS.glob(f"{paper}-*.json"))]
    return sorted(found, key=lambda each: (each["pair"] != "embedded", each["pair"]))


def findings(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each quantity: what the paper gives, and for each pair what was found and how it compares."""
    rows = [
        {
            "source": each["exhibit"],
            "what": each["what"],
            "the paper": paper_cell(each),
            "pair": document["pair"],
            "here": here_cell(each),
        }
        for document in results
        for each in document["findings"]
    ]
    frame = pd.DataFrame(rows)
    keys = ["source", "what", "the paper"]
    order = frame[keys].drop_duplicates()
    wide = frame.set_index([*keys, "pair"])["here"].unstack().reindex(pd.MultiIndex.from_frame(order))
    return markdown(wide[[document["pair"] for document in results]].fillna("not run").reset_index())


def markdown(frame: pd.DataFrame) -> str:
    """A table of text in Markdown."""
    lines = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def digits(finding: Mapping[str, Any]) -> int:
    """Points are whole; all else has two decimals."""
    return 0 if "points" in finding["unit"] else 2


def paper_cell(finding: Mapping[str, Any]) -> str:
    """1.50–1.90×, or the one end that the paper gives."""
    low, high = (None if end is None else f"{end:.{digits(finding)}f}" for end in finding["paper"])
    if low is None and high is None:
        return NONE
    one = f"at most {high}" if low is None else f"above {low}" if high is None else low
    return f"{one if None in (low, high) or low == high else f'{low}–{high}'}{finding['unit']}"


def here_cell(finding: Mapping[str, Any]) -> str:
    """1.36× [1.25, 1.48]: same direction, smaller."""
    if finding["here"] is None or finding["here"][0] is None:
        return "not reached" if "no less quality" in finding["what"] else "not measured"
    number, space, ends = interval_cell(finding["here"], digits(finding)).partition(" ")
    says = verdict(finding["paper"], finding["here"], finding["even"])
    return f"{number}{finding['unit']}{space}{ends}" + (f": {says}" if says else "")


def verdict(paper: Sequence[float | None], here: Sequence[Any], even: float | None) -> str:
    """Whether the direction is the paper's, where an interval shows one, and whether the size is."""
    value, low, high, _ = here
    below, above = paper
    if low is None or high is None:
        return "one item has no interval"
    words = []
    if even is not None and (below, above) != (even, even):
        up = (below is not None and below >= even) or (below is None and above is not None and above > even)
        down = above is not None and above <= even
        if up or down:
            shown = low > even or high < even
            same = (low > even) == up
            words.append(("same direction" if same else "opposite direction") if shown else "no direction shown")
    if below is not None and above is not None:
        words.append("smaller" if high < below else "larger" if low > above else "as large")
    elif above is not None and (even is None or above > even):
        words.append("no more" if value <= above else "more")
    return ", ".join(words)


def origins(results: Sequence[Mapping[str, Any]]) -> str:
    """Where the numbers come from, a line for each pair."""
    lines = []
    for each in results:
        where, size = each["environment"], each["size"]
        when = f"{where['began'][:10]}, commit {where['git_commit'][:9]}"
        machine = f"{where['processor']}, {where['threads']} threads, kernels {where['kernels']}"
        count = f"{size['items']} items of each task, {size['seeds']} seed{'s' * (size['seeds'] != 1)}"
        lines.append(f"- {each['pair']}: `{each['made_by']}`, {when}, {machine}; {count}.")
    return "\n".join(lines)


def methods(name: str, sweep: str, task: str, prefix: str, measures: str) -> str:
    """A row for each method of a result file whose label begins so, with some of its measures."""
    wanted = measures.split(", ")
    chosen = [
        {"method": row["method"], **{key: interval_cell(row.get(key)) for key in wanted}}
        for row in parse_json(read_text(RESULTS / f"{name}.json"))["rows"]
        if (row["sweep"], row["task"]) == (sweep, task) and row["method"].startswith(prefix)
    ]
    return markdown(pd.DataFrame(chosen))


def trained(name: str, columns: str) -> str:
    """A row for each model that was trained for a paper, with some of its figures."""
    rows = parse_json(read_text(RESULTS / f"{name}.json"))["learned"]
    chosen = [{key: each[key] for key in ("model", *columns.split(", "))} for each in rows]
    return markdown(pd.DataFrame(chosen).map(lambda cell: f"{cell:.2f}" if isinstance(cell, float) else cell))


def interval_cell(interval: Sequence[float | None] | None, count: int = 2) -> str:
    """1.36 [1.25, 1.48], or a dash."""
    if interval is None or interval[0] is None:
        return NONE
    value, low, high, _ = interval
    return f"{value:.{count}f}" + ("" if low is None or high is None else f" [{low:.{count}f}, {high:.{count}f}]")


def filled(text: str) -> str:
    """The page with its tables made anew, each between a comment that says which and `<!-- end -->`.

    `<!-- findings of PAPER -->`, `<!-- rows of FILE | SWEEP | TASK | PREFIX | MEASURES -->`,
    `<!-- trained of FILE | COLUMNS -->`.
    """

    def block(found: re.Match[str]) -> str:
        kind, asked = found[1], found[2]
        if kind == "findings":
            results = documents(asked)
            table = f"{origins(results)}\n\n{findings(results)}"
        else:
            table = (methods if kind == "rows" else trained)(*asked.split(" | "))
        return f"<!-- {kind} of {asked} -->\n{table}\n<!-- end -->"

    return re.sub(r"(?s)<!-- (findings|rows|trained) of ([^\n]+) -->\n.*?<!-- end -->", block, text)
