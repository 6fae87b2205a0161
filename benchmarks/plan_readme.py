"""README's table of what `draftwood plan` predicted and then measured. Knows results as they lie in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plan_table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each kind of method on each pair, at each temperature."""
    lines = [
        "Speed over the same method without drafts, the prompt counted; 95% bootstrap intervals over prompts.",
        "",
        "| pair | type | T | method | predicted | measured | off by | prompts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        models = result["models"]
        about = [models["target"].split("/")[0], models["dtype"], f"{result['sampling']['temperature']:g}"]
        for choice in result["choices"]:
            method = choice["method"]
            shape = ",".join(map(str, method.get("tree") or ())) or f"gamma {method['gamma']}"
            cells = [
                f"{method['name']}, {shape}",
                _with_interval(choice["predicted"], choice["predicted_interval"]),
                _with_interval(choice["measured"], choice["measured_interval"]),
                f"{choice['error']:+.0%}",
                str(result["checked_prompts"]),
            ]
            lines.append(f"| {' | '.join(about + cells)} |")
    return "\n".join(lines)


def _with_interval(value: float, ends: Sequence[float]) -> str:
    return f"{value:.2f}x ({ends[0]:.2f} to {ends[1]:.2f})"
