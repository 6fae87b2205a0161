"""The embedded pair's tables in its model card."""

from __future__ import annotations

from typing import Any

MEASURES = {
    "qa": "exact match",
    "sql": "execution accuracy",
    "math": "final number",
    "summaries": "F1 of words",
    "code": "exact body",
}


def acceptance_table(result: dict[str, Any]) -> str:
    """Markdown of the teacher-forced figures of recipes.embedded.evaluate, a row per domain."""
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
