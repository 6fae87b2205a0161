"""README's tables of speed: of the pairs, one experiment measured on one machine at one commit; of a real model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.kinds.chat_prompts import ALL
from benchmarks.kinds.files import THEIRS
from benchmarks.pages.tables import documents, frame, markdown, rate, source, sources, span, times, value
from draftwood.errors import ConfigurationError

EXPERIMENT = "headline"
COLUMNS = {  # (pair, type) -> head
    ("embedded", "float32"): "embedded, 12x192",
    ("grown-12x768", "bfloat16"): "grown, 12x768",
}
REAL = {  # pair -> model
    "smollm2": "the file",
    "smollm2-30x2048": "at the cost of 1.7 billion weights",
    "smollm2-32x4096": "at the cost of 7.2 billion, int8",
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
    "`eesd`, `depth=confidence`, no draft model": ("eesd", 1, "eesd + confidence"),
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


def real_table() -> str:
    """Tokens per second of a real model without drafts and by default, and those of llama.cpp; what measured them."""
    speed, rows = frame("chat-prompts", "speed"), []
    settings = {document["run"]: document["settings"] for document in documents("chat-prompts")}
    for (pair, run, temperature), some in speed.groupby(["pair", "run", "temperature"], sort=False):
        whole, kinds = some[some["kind"] == ALL].set_index("arm"), some[some["kind"] != ALL]
        other = whole.loc[f"{THEIRS}, plain"] if f"{THEIRS}, plain" in whole.index else None
        rows.append(
            {
                "model": REAL[pair],
                "messages a kind": settings[run]["per_kind"],
                "tokens": settings[run]["tokens"],
                "temperature": f"{temperature:g}",
                "plain decoding": f"{rate(whole.loc['plain', 'tokens_per_second'])}/s",
                "the default": f"{rate(whole.loc['default', 'tokens_per_second'])}/s, "
                f"{times(whole.loc['default', 'speed_up'])} "
                f"(by kind of text {span(kinds[kinds['arm'] == 'default']['speed_up'])}x)",
                f"{THEIRS}, plain": "" if other is None else f"{rate(other['tokens_per_second'])}/s",
            }
        )
    return f"{markdown(pd.DataFrame(rows))}\n\n{sources('chat-prompts')}"


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
