"""Writes the measured figures of README and of the model card from benchmarks/results: no figure is typed by hand.

Run: python benchmarks/readme.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SHOWN = ("speculative", "specinfer", "mcsd", "lookup", "coupled")


def engine_table(result: dict[str, Any]) -> str:
    """Markdown of what benchmarks/engine.py measured."""
    env, plain, share = result["environment"], result["plain_loop"], result["round_share"]
    ratio = plain["ratio"]
    lines = [
        f"Embedded pair, {env['dtype']}, {env['threads']} thread of {env['processor']}, torch {env['torch']}, "
        f"{env['date']}; medians, ratios inside one run, held-out prompts.",
        "",
        f"- Plain decoding through the loop takes {ratio['median']:.3f}x the time of a bare hand-written loop over "
        f"the same decoder (95% interval {ratio['low']:.3f} to {ratio['high']:.3f}).",
        f"- What is not a model forward takes {share['speculative T=0']['median']:.1%} (greedy) and "
        f"{share['speculative T=1']['median']:.1%} (temperature 1) of a round for a chain of 4, "
        f"{share['mcsd T=1']['median']:.1%} for the tree 3,2,1,1.",
        "",
        "Speed-up over plain decoding (tau in brackets):",
        "",
        "| temperature | domain | " + " | ".join(f"`{name}`" for name in SHOWN) + " |",
        "| --- | --- | " + " | ".join("---" for _ in SHOWN) + " |",
    ]
    rows = result["methods"]
    for temperature in sorted({row["temperature"] for row in rows}):
        for domain in dict.fromkeys(row["domain"] for row in rows):
            cells = []
            for name in SHOWN:
                row = next(
                    r for r in rows if (r["temperature"], r["domain"], r["method"]) == (temperature, domain, name)
                )
                cells.append(f"{row['speed_up']['median']:.2f}x ({row['tau']:.2f})")
            lines.append(f"| {temperature:g} | {domain} | " + " | ".join(cells) + " |")
    lines += ["", "`coupled` is `speculative` with `verify=coupled`; the others verify by rejection."]
    return "\n".join(lines)


def acceptance_table(result: dict[str, Any]) -> str:
    """Markdown of the teacher-forced figures of draftwood.train.evaluate, a row per domain."""
    names = ("perplexity_target", "perplexity_draft", "acceptance", "agreement")
    names += ("acceptance_completion", "agreement_completion")
    lines = [
        "| domain | target perplexity | draft perplexity | acceptance | agreement | acceptance, completions "
        "| agreement, completions |",
        "|---|---|---|---|---|---|---|",
    ]
    for domain, row in result["domains"].items():
        cells = [f"{row[name]:.2f}" if name.startswith("perplexity") else f"{row[name]:.3f}" for name in names]
        lines.append(f"| {domain} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


MEASURES = {
    "qa": "exact match",
    "sql": "execution accuracy",
    "math": "final number",
    "summaries": "F1 of words",
    "code": "exact body",
}


def score_table(result: dict[str, Any]) -> str:
    """Markdown of the scores of what the models write, a row per domain."""
    lines = [
        "| | items | target, greedy | target, T = 1 | draft, greedy | draft, T = 1 |",
        "|---|---|---|---|---|---|",
    ]
    for domain, row in result["scores"].items():
        cells = [f"{row[name]:.1%}" for name in ("target_t0", "target_t1", "draft_t0", "draft_t1")]
        lines.append(f"| {domain}: {MEASURES[domain]} | {row['items']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# where each table stands: document -> (marker, result file, how it is written)
TABLES: dict[str, list[tuple[str, str, Callable[[dict[str, Any]], str]]]] = {
    "README.md": [("engine table", "engine.json", engine_table)],
    "draftwood/models/embedded/README.md": [
        ("acceptance", "embedded-pair.json", acceptance_table),
        ("scores", "embedded-pair.json", score_table),
    ],
}


def rendered(document: str) -> str:
    """A document with its tables made anew."""
    text = (ROOT / document).read_text("utf-8")
    for marker, file, table in TABLES[document]:
        begin, end = f"<!-- {marker} -->", f"<!-- end of {marker} -->"
        result = json.loads((ROOT / "benchmarks" / "results" / file).read_text("utf-8"))
        head, rest = text.split(begin, 1)
        _, tail = rest.split(end, 1)
        text = f"{head}{begin}\n{table(result)}\n{end}{tail}"
    return text


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(rendered(document), "utf-8")
