"""The tables of the embedded models' card, of what `python -m recipes.evaluate` measured."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmarks.execute import read
from benchmarks.pages.tables import RESULTS, markdown

RATES = {  # head of a column -> field and format
    "acceptance": ("acceptance", ".3f"),
    "agreement": ("agreement", ".3f"),
    "acceptance, completions": ("acceptance_completion", ".3f"),
    "agreement, completions": ("agreement_completion", ".3f"),
}
SCORES = {
    "items": ("items", "d"),
    "target, greedy": ("target_t0", ".1%"),
    "target, T = 1": ("target_t1", ".1%"),
    "draft, greedy": ("draft_t0", ".1%"),
    "draft, T = 1": ("draft_t1", ".1%"),
}


def tables() -> dict[str, str]:
    """The tables by the markers between which they stand."""
    pair, exit = (read(RESULTS / "embedded" / f"{name}.json") for name in ("pair", "exit"))
    perplexity = {"target's perplexity": ("perplexity_target", ".2f"), "draft's": ("perplexity_draft", ".2f")}
    return {
        "acceptance": table("text", pair["domains"], perplexity | RATES),
        "scores": table("task", pair["scores"], SCORES),
        "exit": table("text", exit["domains"], {"exit's perplexity": ("perplexity_draft", ".2f")} | RATES),
    }


def table(what: str, rows: dict[str, dict[str, Any]], columns: dict[str, tuple[str, str]]) -> str:
    """A row for each entry, a column for each field."""
    made = [
        {what: name, **{head: format(row[field], form) for head, (field, form) in columns.items()}}
        for name, row in rows.items()
    ]
    return markdown(pd.DataFrame(made))
