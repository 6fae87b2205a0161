"""The tables of docs/papers.md: what each paper gives beside what result files hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from benchmarks.execute import read
from benchmarks.experiment import HERE
from benchmarks.pages.tables import markdown, source, text
from benchmarks.papers.settings import papers

RESULTS = HERE / "results" / "papers"
# ends of notes that the page has, too
SHOWN = ("made in time.", "learnt from.", "commits of its runs.", "items are compared.")
NOTHING = "Not measured with this version: `python -m benchmarks.papers {} --keep` does."


def documents(paper: str) -> list[dict[str, Any]]:
    """The result files of a paper, that of the embedded pair first."""
    return [read(path) for path in sorted(RESULTS.glob(f"{paper}-*.json"))]


def findings(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each quantity: what the paper gives, and for each pair what was found and how it compares."""
    keys = ["source", "what", "the paper"]
    rows = [
        [each["exhibit"], each["what"], paper_cell(each), document["pair"], here_cell(each)]
        for document in results
        for each in document["tables"]["findings"]
    ]
    frame = pd.DataFrame(rows, columns=[*keys, "pair", "here"])
    order = pd.MultiIndex.from_frame(frame[keys].drop_duplicates())
    wide = frame.set_index([*keys, "pair"])["here"].unstack().reindex(order)
    wide = wide.reindex(columns=[document["pair"] for document in results])  # one may have nothing to compare
    return markdown(wide.fillna("not measured").reset_index())


def digits(finding: Mapping[str, Any]) -> str:
    """The format of its numbers: points are whole, all else has two decimals."""
    return ".0f" if "points" in finding["unit"] else ".2f"


def paper_cell(finding: Mapping[str, Any]) -> str:
    """1.50–1.90x, or the one end that the paper gives."""
    low, high = (text(end and end + 1e-9, digits(finding)) for end in finding["paper"])  # 1.275 is 1.28
    if not low and not high:
        return "–"
    ends = f"at most {high}" if not low else f"above {low}" if not high else low if low == high else f"{low}–{high}"
    return f"{ends}{finding['unit']}"


def here_cell(finding: Mapping[str, Any]) -> str:
    """1.36x (1.25 to 1.48, n=30): same direction, smaller."""
    shown = text(finding["here"], digits(finding), finding["unit"], ends=True) if finding["here"] else ""
    if not shown:
        return "not measured"
    says = verdict(finding["paper"], finding["here"], finding["even"])
    return f"{shown}: {says}" if says else shown


def verdict(paper: Sequence[float | None], here: Mapping[str, Any], even: float | None) -> str:
    """Whether the direction is the paper's, where an interval shows one, and whether the size is."""
    below, above = paper
    low, high = here["low"], here["high"]
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
        words.append("no more" if here["value"] <= above else "more")
    return ", ".join(words)


def origins(results: Sequence[Mapping[str, Any]]) -> str:
    """Where the numbers come from and how much was measured, by pair and command; and the paper's scale."""
    lines = []
    for document in results:
        known: dict[str, list[str]] = {}
        for part in document["parts"]:
            size = part["size"] | {"items": asked(document, part["part"])}
            about = f"`{part['made_by']}`, {source(part['environment'])}; {amount(**size)}"
            about = "; ".join([about, *(note.rstrip(".") for note in part["notes"] if note.endswith(SHOWN))])
            known.setdefault(about, []).append(part["part"])
        lines += [f"- {document['pair']} ({', '.join(parts)}): {about}." for about, parts in known.items()]
    scale = papers()[results[0]["paper"]].scale if results else None
    return "\n".join([*lines, f"- the paper: {amount(**scale.model_dump())}."] if scale else lines)


def asked(document: Mapping[str, Any], part: str) -> int | dict[str, int] | None:
    """The items of each task that a part has asked: one number where they are as many."""
    rows = [row for row in document["tables"]["rows"] if row["sweep"] == part]
    counts = {row["task"]: row["tokens/s"]["n"] for row in rows}
    return counts.popitem()[1] if len({*counts.values()}) == 1 else counts or None


def amount(items: int | Mapping[str, int] | None, seeds: int | None, tokens: int | None) -> str:
    """30 items a task, 2 seeds, at most 64 new tokens; of a paper that does not say, that."""
    each = ", ".join(f"{name} {count}" for name, count in items.items()) if isinstance(items, Mapping) else items
    said = [
        (f"{each} items" if isinstance(items, Mapping) else f"{each} items a task") if items else "",
        f"{seeds} seed{'s' * (seeds != 1)}" if seeds else "",
        f"at most {tokens} new tokens" if tokens else "",
    ]
    return ", ".join(filter(None, said)) or "no number of items, seeds or tokens is given"


def methods(name: str, sweep: str, task: str, pattern: str, measures: str) -> str:
    """A row for each method of a result file that a pattern fits, with some of its measures; lossy ones say so."""
    chosen = [
        {
            "method": row["method"] + " (lossy)" * row.get("lossy", False),
            "settings": row["settings"],
            **{key: text(row.get(key), ends=True) for key in measures.split(", ")},
        }
        for row in read(RESULTS / f"{name}.json")["tables"]["rows"]
        if (row["sweep"], row["task"]) == (sweep, task) and fnmatchcase(row["method"], pattern)
    ]
    return markdown(pd.DataFrame(chosen).replace("", "–")) if chosen else NOTHING.format(name.partition("-")[0])


def trained(name: str, columns: str) -> str:
    """A row for each model that was trained for a paper: figures of its training, then measures of its own row."""
    tables = read(RESULTS / f"{name}.json")["tables"]
    own = {row["method"]: row for row in tables["rows"]}
    last = {each["model"]: each for each in tables["learned"]}  # a model may be trained twice, shorter the second time
    chosen = []
    for each in tables["learned"]:
        row = own.get(each["model"], {}) if last[each["model"]] is each else {}
        cells = {key: each[key] if key in each else text(row.get(key), ends=True) for key in columns.split(", ")}
        chosen.append({"model": each["model"], **cells})
    if not chosen:
        return NOTHING.format(name.partition("-")[0])
    shown = pd.DataFrame(chosen).map(lambda cell: f"{cell:.2f}" if isinstance(cell, float) else cell)
    return markdown(shown.replace("", "–"))


def filled(page: str) -> str:
    """The page with its tables made anew, each between a comment that says which and `<!-- end -->`.

    `<!-- findings of PAPER -->`, `<!-- rows of FILE | SWEEP | TASK | PATTERN | MEASURES -->`,
    `<!-- trained of FILE | COLUMNS -->`.
    """

    def block(found: re.Match[str]) -> str:
        kind, asked = found[1], found[2]
        if kind == "findings":
            results = documents(asked)
            table = f"{origins(results)}\n\n{findings(results)}" if results else NOTHING.format(asked)
        elif not (RESULTS / f"{asked.split(' | ')[0]}.json").is_file():
            table = NOTHING.format(asked.partition("-")[0])
        else:
            table = (methods if kind == "rows" else trained)(*asked.split(" | "))
        return f"<!-- {kind} of {asked} -->\n{table}\n<!-- end -->"

    return re.sub(r"(?s)<!-- (findings|rows|trained) of ([^\n]+) -->\n.*?<!-- end -->", block, page)
