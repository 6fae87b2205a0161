"""The table of docs/models.md: GGUF files under draftwood and llama.cpp."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.kinds.files import OURS, THEIRS
from benchmarks.pages.tables import documents, frame, markdown, sources, times, value

COLUMNS = {  # field, format, unit of the field
    "ms a token": ("token_ms", ".1f", 1),
    "prompt, s": ("prompt_ms", ".2f", 1000),
    "load, s": ("load_seconds", ".2f", 1),
    "first token, s": ("first_seconds", ".1f", 1),
    "memory, MB": ("peak_megabytes", ".0f", 1),
    "perplexity": ("to_float32", ".4f", 1),
}
MANY_ROWS = (4, 8)


MIXTURES = """Qwen3-30B-A3B's layer shape, 4 of its 48 layers, with random weights: draftwood / llama.cpp, which crashes
on these files where it reorders weights, so it does not reorder them here. A forward pass of several rows over that of
one stands beside the bytes that their distinct experts have, over those of one."""


def mixtures() -> str:
    """A row for each file of a mixture, as in `table`; empty where none was measured."""
    if not documents("mixtures"):
        return ""
    found, rows = frame("mixtures", "files"), frame("mixtures", "rows")
    lines = []
    for run, engines in found.groupby("run", sort=False):
        line: dict[str, Any] = {"file": run, "types": engines["types"].iloc[0]}
        for name in ("ms a token", "prompt, s", "memory, MB"):
            line[name] = both(engines, *COLUMNS[name])
        for count in MANY_ROWS:
            of_count = rows[(rows["run"] == run) & (rows["rows"] == count)]
            read = of_count[of_count["engine"] == OURS]["bytes_to_one"].iloc[0]
            line[f"{count} rows"] = f"{both(of_count, 'to_one', '.2f', 1)} ({read:.2f})"
        lines.append(line)
    return f"{MIXTURES}\n\n{markdown(pd.DataFrame(lines))}\n\n{sources('mixtures')}"


def table() -> str:
    """A row for each file: ours / llama.cpp's; empty where none was measured."""
    measured = documents("files")
    if not measured:
        return ""
    prompt = measured[0]["settings"]["prompt"]
    found, rows, ratios = frame("files", "files"), frame("files", "rows"), frame("files", "ratios", what="token")
    speeds = {} if ratios.empty else dict(zip(ratios["run"], ratios["ratio"], strict=True))
    lines = []
    for run, engines in found.groupby("run", sort=False):
        line: dict[str, Any] = {"file": run, "types": engines["types"].iloc[0]}
        for name, (field, form, unit) in COLUMNS.items():
            line[name] = both(engines, field, form, unit)
        line["speed"] = times(speeds[run], True) if run in speeds else "-"
        for count in MANY_ROWS:
            line[f"{count} rows"] = both(rows[(rows["run"] == run) & (rows["rows"] == count)], "to_one", ".2f", 1)
        lines.append(line)
    return f"""draftwood / llama.cpp, in processes that take turns: a token; a prompt of {prompt} tokens to its first
token; loading; a whole command to its first token; memory above that of a process which has imported PyTorch, or
llama.cpp's binding; perplexity over that of the file in float32; how many times as fast a token of ours is; a forward
pass of several rows over that of one. Types but a model's first were written by llama.cpp's quantiser.

{markdown(pd.DataFrame(lines))}

{sources("files")}"""


def both(rows: pd.DataFrame, field: str, form: str, unit: float) -> str:
    """Our number / llama.cpp's, of rows that have an engine each; a dash where one was not measured."""
    known = {row["engine"]: value(row.get(field)) / unit for row in rows.to_dict("records")}
    shown = (known.get(engine, float("nan")) for engine in (OURS, THEIRS))
    return " / ".join("-" if pd.isna(number) else format(number, form) for number in shown)
