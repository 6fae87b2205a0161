"""README's table of speed: one experiment, measured on one machine at one commit."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.pages.tables import documents, frame, markdown, source, times, value
from draftwood.errors import ConfigurationError

EXPERIMENT = "headline"
COLUMNS = {  # (pair, type) -> head
    ("embedded", "float32"): "embedded, 12x192",
    ("grown-12x768", "bfloat16"): "grown, 12x768",
}
TIMES = {  # a row of the table -> the method whose time per token it has
    "time per token behind the prompt, plain decoding": "plain",
    "time per token behind the prompt, chain of 4": "chain of 4",
}
METHODS = {  # a row of the table -> the part of the experiment, temperature and method
    "`speculative`, chain of 4": ("chains", 1, "chain of 4"),
    "the default (`speculative`, `depth=auto`, `lookup=true`)": ("chains", 1, "depth=auto, with lookup"),
    "`mcsd`, tree 2,1,1,1, T = 0.7": ("mcsd", 0.7, "mcsd 2,1,1,1"),
    "`mcsd`, the paper's tree 4,2,2,1, T = 0.7": ("mcsd", 0.7, "mcsd 4,2,2,1"),
    "`eesd`, no draft model": ("eesd", 1, "eesd + confidence"),
    "`speculative-beam-search` over `beam-search`, 4 beams": ("beams", 0, "width 4, 4 drafted, gamma 4"),
}


def speed_table() -> str:
    """The table, and what measured it."""
    rows: list[dict[str, Any]] = []
    for label, method in TIMES.items():
        result = frame(EXPERIMENT, "chains", task="all", temperature=0, method=method)
        rows.append({"": label, **cells(result, lambda row: f"{1000 / value(row['tokens_per_second']):.3g} ms")})
    for label, (part, temperature, method) in METHODS.items():
        result = frame(EXPERIMENT, part, task="all", temperature=temperature, method=method)
        rows.append({"": label, **cells(result, both)})
    table = markdown(pd.DataFrame(rows, columns=["", *COLUMNS.values()]).fillna(""))
    return f"{table}\n\n`python -m benchmarks run {EXPERIMENT}`: {measured()}."


def measured() -> str:
    """The machine, day and commit of the table; raises ConfigurationError where its runs differ in them."""
    known = {source(document["environment"]) for document in documents(EXPERIMENT)}
    if len(known) != 1:
        raise ConfigurationError(
            f"the runs of {EXPERIMENT} are of different machines, days or commits: {'; '.join(sorted(known))}; "
            f"run `python -m benchmarks run {EXPERIMENT}` anew, all of it"
        )
    return known.pop()


def both(row: pd.Series) -> str:
    """A speed-up with the prompt, and in parentheses that of decoding alone."""
    return f"{times(row['speed_up_with_prompt'])} (decoding alone {times(row['speed_up'])})"


def cells(rows: pd.DataFrame, cell: Any) -> dict[str, str]:
    """The cells of a row of the table by column; none where nothing was measured."""
    known = {(row["pair"], row["type"]): cell(row) for _, row in rows.iterrows()}
    return {head: known[key] for key, head in COLUMNS.items() if key in known}
