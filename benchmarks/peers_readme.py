"""README's table of what benchmarks/peers.py measured."""

from __future__ import annotations

from typing import Any


def peers_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/peers.py measured: ms a token of each engine and mode, a column per pair and type."""
    results = sorted(results, key=lambda r: r["pair"]["target"]["parameters"])
    env, settings = results[0]["environment"], results[0]["settings"]
    columns = [
        (result, dtype)
        for result in results
        for dtype in dict.fromkeys(row["dtype"] for row in result["rows"] if "ms_per_token" in row)
    ]
    lines = [
        f"Milliseconds a token, greedy, batch 1, {settings['threads']} threads of {env['processor']}, {env['date']}; "
        f"{settings['gamma']} drafts where there are any; the same weights everywhere.",
        "",
        "| engine | mode | " + " | ".join(f"{r['pair']['name']}, {dtype}" for r, dtype in columns) + " |",
        "| --- | --- | " + " | ".join("---" for _ in columns) + " |",
    ]
    modes = dict.fromkeys((row["peer"], row["mode"]) for result in results for row in result["rows"])
    for peer, mode in modes:
        cells = []
        for result, dtype in columns:
            key = (peer, mode, dtype)
            row = next((r for r in result["rows"] if (r["peer"], r["mode"], r["dtype"]) == key), None)
            if row is None:
                cells.append("")
            elif "ms_per_token" not in row:
                cells.append("failed")
            else:
                taken = row["ms_per_token"]["median"]
                cells.append(f"{taken:.1f}" if taken >= 10 else f"{taken:.2f}")
        if any(cells):
            lines.append(f"| {peer} | {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
