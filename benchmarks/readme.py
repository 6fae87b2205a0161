"""Writes the measured figures of README and of the model card from benchmarks/results: no figure is typed by hand.

Run: python benchmarks/readme.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
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


def batching_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/batching.py measured: tokens a second of all requests together."""
    env = results[0]["environment"]
    lines = [
        f"Tokens a second of requests with mixed methods together, {env['threads']} threads of {env['processor']}, "
        f"{env['date']}; in brackets the ratio to Hugging Face's batched greedy `generate` of plain decoding.",
        "",
        "| pair | type | one by one | " + " | ".join(f"{n} at once" for n in results[0]["same_bits_as_alone"]) + " |",
        "| --- | --- | --- | " + " | ".join("---" for _ in results[0]["same_bits_as_alone"]) + " |",
    ]
    for result in results:
        speed, ratio = result["tokens_per_second"], result["ratios"]
        cells = [
            f"{speed[f'{n} at once']['median']:.0f} ({ratio[f'{n} at once, to Hugging Face']['median']:.2f}x)"
            for n in result["same_bits_as_alone"]
        ]
        alone = f"{speed['one by one']['median']:.0f}"
        dtype = result["environment"]["dtype"]
        lines.append(f"| {result['pair']['name']} | {dtype} | {alone} | " + " | ".join(cells) + " |")
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


# where each table stands: document -> (marker, result files, how they are written)
TABLES: dict[str, list[tuple[str, str, Callable[[list[dict[str, Any]]], str]]]] = {
    "README.md": [
        ("engine table", "engine.json", lambda results: engine_table(*results)),
        ("pairs table", "engine-*x*-*.json", pairs_table),
        ("peers table", "peers-*.json", peers_table),
        ("batching table", "batching-*.json", batching_table),
    ],
    "draftwood/models/embedded/README.md": [
        ("acceptance", "embedded-pair.json", lambda results: acceptance_table(*results)),
        ("scores", "embedded-pair.json", lambda results: score_table(*results)),
    ],
}


def rendered(document: str) -> str:
    """A document with its tables made anew."""
    text = (ROOT / document).read_text("utf-8")
    for marker, pattern, table in TABLES[document]:
        begin, end = f"<!-- {marker} -->", f"<!-- end of {marker} -->"
        files = sorted((ROOT / "benchmarks" / "results").glob(pattern))
        head, rest = text.split(begin, 1)
        _, tail = rest.split(end, 1)
        text = f"{head}{begin}\n{table([json.loads(file.read_text('utf-8')) for file in files])}\n{end}{tail}"
    return text


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(rendered(document), "utf-8")
