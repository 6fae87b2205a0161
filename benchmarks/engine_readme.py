"""README's tables of what benchmarks/engine.py measured: the embedded pair, and grown ones."""

from __future__ import annotations

from statistics import median
from typing import Any

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


def domains_of(rows: list[dict[str, Any]], method: str, temperature: float) -> str:
    """Median and range over domains of a method's speed-up."""
    found = [r["speed_up"]["median"] for r in rows if (r["method"], r["temperature"]) == (method, temperature)]
    return f"{median(found):.2f}x ({min(found):.2f} to {max(found):.2f})"


def pairs_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/engine.py measured on the grown pairs, a row per pair and type."""
    env = results[0]["environment"]
    lines = [
        f"Pairs grown from the embedded one, {env['threads']} threads of {env['processor']}, torch {env['torch']}, "
        f"{env['date']}. Speed-ups over plain decoding: median over the domains (lowest to highest).",
        "",
        "| target, draft | type | plain, ms a token | of copy bandwidth | chain of 4, greedy | chain of 4, T=1 "
        "| tree 3,2,1,1, greedy | not a forward | perplexity |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    order = ("float32", "bfloat16", "int8")
    for result in sorted(
        results, key=lambda r: (r["models"]["target"]["parameters"], order.index(r["environment"]["dtype"]))
    ):
        target, draft, rows = result["models"]["target"], result["models"]["draft"], result["methods"]
        cells = [
            f"{target['layers']}x{target['width']}, {draft['layers']}x{draft['width']}",
            result["environment"]["dtype"],
            f"{result['plain_loop']['loop_ms_per_token']['median']:.1f}",
            f"{result['memory']['share_of_copy_bandwidth']:.0%}",
            domains_of(rows, "speculative", 0),
            domains_of(rows, "speculative", 1),
            domains_of(rows, "mcsd", 0),
            f"{result['round_share']['speculative T=0']['median']:.1%}",
            f"{result['perplexity']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
