"""README's table of speed, of the same files as docs/results.md."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.pages.tables import documents, frame, machine, markdown, text, times, value

COLUMNS = {  # (pair, type) -> head
    ("embedded", "float32"): "embedded, 12x192",
    ("grown-12x768", "bfloat16"): "grown, 12x768",
    ("grown-22x2048", "bfloat16"): "grown, 22x2048",
}
ENGINES = {  # a row of the table -> engine and mode
    "time per token behind the prompt, plain decoding": ("draftwood", "plain"),
    "time per token behind the prompt, chain of 4": ("draftwood", "speculation"),
    "the same in Hugging Face": ("Hugging Face", "assisted"),
    "the same in llama.cpp": ("llama.cpp", "speculation"),
    "the same in OpenVINO GenAI": ("OpenVINO GenAI", "speculation"),
}
METHODS = {  # a row of the table -> the part of `headline`, temperature and method
    "`speculative`, chain of 4": ("chains", 1, "chain of 4"),
    "the default (`speculative`, `depth=auto`, `lookup=true`)": ("chains", 1, "depth=auto, with lookup"),
    "`mcsd`, tree 2,1,1,1, T = 0.7": ("mcsd", 0.7, "mcsd 2,1,1,1"),
    "`mcsd`, the paper's tree 4,2,2,1, T = 0.7": ("mcsd", 0.7, "mcsd 4,2,2,1"),
    "`eesd`, no draft model": ("eesd", 1, "eesd + confidence"),
}


def speed_table() -> str:
    """The table, and what measured it."""
    rows: list[dict[str, Any]] = []
    for label, (engine, mode) in ENGINES.items():
        result = frame("peers", "rows", engine=engine, mode=mode)
        rows.append({"": label, **cells(result, lambda row: text(row["ms_per_token"], ".3g", " ms"))})
    for label, (part, temperature, method) in METHODS.items():
        result = frame("headline", part, task="all", temperature=temperature, method=method)
        rows.append({"": label, **cells(result, both)})
    beams = frame("beams", "search", task="all", width=4)
    beams["fast"] = beams["speed_up_with_prompt"].map(value)
    best = beams.sort_values("fast", ascending=False).drop_duplicates("run")
    rows.append({"": "`speculative-beam-search` over `beam-search`, 4 beams", **cells(best, both)})
    table = markdown(pd.DataFrame(rows, columns=["", *COLUMNS.values()]).fillna(""))
    return f"{table}\n\nTimes: {measured('peers')}. Speed-ups: {measured('headline', 'beams')}."


def measured(*experiments: str) -> str:
    """The machines of some experiments and the days of their results."""
    result: dict[str, set[str]] = {}
    for environment in (document["environment"] for name in experiments for document in documents(name)):
        result.setdefault(machine(environment), set()).add(environment["began"][:10])
    return "; ".join(f"{machine}, {' and '.join(sorted(days))}" for machine, days in result.items())


def both(row: pd.Series) -> str:
    """A speed-up with the prompt, and in parentheses that of decoding alone."""
    return f"{times(row['speed_up_with_prompt'])} (decoding alone {times(row['speed_up'])})"


def cells(rows: pd.DataFrame, cell: Any) -> dict[str, str]:
    """The cells of a row of the table by column; none where nothing was measured."""
    known = {(row["pair"], row["type"]): cell(row) for _, row in rows.iterrows()}
    return {head: known[key] for key, head in COLUMNS.items() if key in known}
