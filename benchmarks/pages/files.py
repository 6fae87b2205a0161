"""The table of docs/models.md: GGUF files under draftwood and llama.cpp."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.kinds.files import OURS, THEIRS
from benchmarks.pages.tables import documents, frame, markdown, sources, text, times, value

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
HYBRIDS = """Qwen3.5-4B's layer shape, 8 of its 32 layers, with random weights: draftwood / llama.cpp; a forward pass of
a chain of several rows, and of a tree of 16 nodes, over that of one row, states of recurrent layers included. llama.cpp
keeps no state that it could go back to, so it computes no tree."""


def mixtures() -> str:
    """A row for each file of a mixture, as in `table`; empty where none was measured."""
    return random_models("mixtures", MIXTURES)


def hybrids() -> str:
    """The same of hybrids."""
    return random_models("hybrids", HYBRIDS)


def random_models(experiment: str, said: str) -> str:
    """The section about files with random weights, a row for each; empty where none was measured."""
    if not documents(experiment):
        return ""
    found, rows, speeds = frame(experiment, "files"), frame(experiment, "rows"), speed(experiment)
    lines = []
    for run, engines in found.groupby("run", sort=False):
        line: dict[str, Any] = {"file": run, "types": engines["types"].iloc[0]}
        for name in ("ms a token", "prompt, s", "memory, MB"):
            line[name] = both(engines, *COLUMNS[name])
        line["speed"] = times(speeds[run], True) if run in speeds else "-"
        of_run = rows[rows["run"] == run]
        trees = of_run[of_run["shape"] == "tree"] if "shape" in of_run else of_run[:0]
        for count in MANY_ROWS:
            of_count = of_run[(of_run["rows"] == count) & ~of_run.index.isin(trees.index)]
            read = of_count[of_count["engine"] == OURS].get("bytes_to_one")
            beside = "" if read is None or read.isna().all() else f" ({read.iloc[0]:.2f})"
            line[f"{count} rows"] = both(of_count, "to_one", ".2f", 1) + beside
        for count in trees["rows"].unique():
            line[f"tree of {count}"] = format(trees[trees["rows"] == count]["to_one"].map(value).iloc[0], ".2f")
        lines.append(line)
    return f"{said}\n\n{markdown(pd.DataFrame(lines))}\n\n{sources(experiment)}"


def speed(experiment: str) -> dict[str, Any]:
    """llama.cpp's time of a token over ours, of each run."""
    ratios = frame(experiment, "ratios", what="token")
    return {} if ratios.empty else dict(zip(ratios["run"], ratios["ratio"], strict=True))


def table() -> str:
    """A row for each file: ours / llama.cpp's; empty where none was measured."""
    measured = documents("files")
    if not measured:
        return ""
    prompts = {document["run"]: document["settings"]["prompt"] for document in measured}
    prompt = prompts[measured[0]["run"]]
    behind = frame("files", "contexts")
    found, rows, speeds = frame("files", "files"), frame("files", "rows"), speed("files")
    lines = []
    for run, engines in found.groupby("run", sort=False):
        if run in set(behind.get("run", ())):
            continue  # the same file once more
        line: dict[str, Any] = {"file": run, "types": engines["types"].iloc[0]}
        for name, (field, form, unit) in COLUMNS.items():
            line[name] = both(engines, field, form, unit)
        if prompts[str(run)] != prompt:
            line["prompt, s"] += f" ({prompts[str(run)]} tokens)"
        line["speed"] = times(speeds[run], True) if run in speeds else "-"
        for count in MANY_ROWS:
            line[f"{count} rows"] = both(rows[(rows["run"] == run) & (rows["rows"] == count)], "to_one", ".2f", 1)
        lines.append(line)
    return f"""draftwood / llama.cpp, in processes that take turns: a token; a prompt of {prompt} tokens to its first
token; loading; a whole command to its first token; memory above that of a process which has imported PyTorch, or
llama.cpp's binding; perplexity over that of the file in float32; how many times as fast a token of ours is; a forward
pass of several rows over that of one. Types but a model's first were written by llama.cpp's quantiser.

{markdown(pd.DataFrame(lines))}

{long_texts(behind)}{types_of_keys()}{requests_at_once()}{sources("files")}"""


def long_texts(behind: pd.DataFrame) -> str:
    """What a token takes behind long contexts, a sentence for each."""
    if behind.empty:
        return ""
    told = []
    for (run, context), rows in behind.groupby(["run", "context"], sort=False):
        ms = dict(zip(rows["engine"], (text(each, ".1f", "", True) for each in rows["ms"]), strict=True))
        told.append(f"Behind {context:,} tokens a token of `{run}` takes {ms[OURS]} / {ms[THEIRS]} ms.")
    return " ".join(told) + "\n\n"


def types_of_keys() -> str:
    """What a token takes behind long contexts by the type of keys and values, a sentence for each context."""
    measured = frame("contexts", "contexts")
    if measured.empty:
        return ""
    told = []
    for (run, context), rows in measured.groupby(["run", "context"], sort=False):
        types, ms = ", ".join(rows["kv_dtype"]), ", ".join(text(each, ".1f", "", True) for each in rows["ms"])
        told.append(f"A token of `{run}` in bfloat16 takes {ms} ms behind {context:,} with keys and values in {types}.")
    return f"{' '.join(told)} {sources('contexts')}\n\n"


def requests_at_once() -> str:
    """Tokens per second of plain requests at once, a sentence for each file."""
    plain = frame("real-serving", "serving", method="plain")
    if plain.empty:
        return ""
    told = [
        f"Of `{run}` in the bits of its file, {', '.join(map(str, rows['load']))} plain requests at once get together, "
        f"prompts included, {', '.join(text(each, '.0f', '', True) for each in rows['tokens_per_second'])} tokens per "
        "second."
        for run, rows in plain.groupby("run", sort=False)
    ]
    return f"{' '.join(told)} {sources('real-serving')}\n\n"


def both(rows: pd.DataFrame, field: str, form: str, unit: float) -> str:
    """Our number / llama.cpp's, of rows that have an engine each; a dash where one was not measured."""
    known = {row["engine"]: value(row.get(field)) / unit for row in rows.to_dict("records")}
    shown = (known.get(engine, float("nan")) for engine in (OURS, THEIRS))
    return " / ".join("-" if pd.isna(number) else format(number, form) for number in shown)
