"""Writes README's table of measured figures from benchmarks/results, so that no figure is typed by hand.

Run: python benchmarks/readme.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- engine table -->", "<!-- end of engine table -->"
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


def rendered(readme: str) -> str:
    """README with its table made anew."""
    result = json.loads((ROOT / "benchmarks" / "results" / "engine.json").read_text("utf-8"))
    head, rest = readme.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return f"{head}{BEGIN}\n{engine_table(result)}\n{END}{tail}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(rendered(path.read_text("utf-8")), "utf-8")
