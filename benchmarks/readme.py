"""Writes the measured figures of README and of the model card from benchmarks/results: no figure is typed by hand.

Run: python benchmarks/readme.py
"""

from __future__ import annotations

import json
import runpy
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


def _type(part: dict[str, Any]) -> str:
    """Type of the weights, and the device where it is not a CPU."""
    env = part["environment"]
    return env["dtype"] if env["device"] == "cpu" else f"{env['dtype']}, {env['device']}"


def _equal(ratio: dict[str, Any]) -> str:
    """Speed at equal quality: on the fronts, with its interval, and cross-fitted."""
    if ratio["median"] is None:
        return "not reached"
    low, high = ratio["interval"]
    fitted = "" if ratio["cross_fitted"] is None else f"; {ratio['cross_fitted']:.2f}x"
    return f"{ratio['median']:.2f}x ({low:.2f} to {high:.2f}{fitted})"


def _drawn_beams(results: list[dict[str, Any]]) -> list[str]:
    """DSBD against beam sampling at equal quality."""
    lines = [
        "DSBD over beam sampling (width 1 to 4), tokens a second at equal quality, the prompt's forward not counted, "
        "median along the fronts (95% interval; last, where settings are chosen on half of the documents and judged on "
        "the other half):",
        "",
        "| pair | type | task | truncation | at equal score | within a point of score | at equal perplexity "
        "| within a point, prompt counted |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        part = result["parts"].get("pareto")
        for task, found in part["found"].items() if part else ():
            equal = found["at_equal_quality"]
            names = ("score, decoding", "score within a point, decoding", "perplexity, decoding")
            names += ("score within a point, with the prompt",)
            cells = [result["pair"]["name"], _type(part), f"{task}: {MEASURES[task]}", _cut(part)]
            lines.append("| " + " | ".join([*cells, *(_equal(equal[name]) for name in names)]) + " |")
    return lines


def _cut(part: dict[str, Any]) -> str:
    """Truncation of a part."""
    return f"top-k {part['sampling']['top_k']}, top-p {part['sampling']['top_p']:g}"


def _one_cache(results: list[dict[str, Any]]) -> list[str]:
    """Methods that keep the cache of one sequence, as the paper's Table 1."""
    lines = [
        "Methods that keep the cache of one sequence (DSBD Table 1):",
        "",
        "| pair | type | task | truncation | method | score | perplexity | tokens/s | most cache slots |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        part = result["parts"].get("table")
        for task, found in part["found"].items() if part else ():
            for row in found["settings"]:
                cells = [result["pair"]["name"], _type(part), task, _cut(part), row["label"]]
                cells += [f"{row['score']:.1%}", f"{row['perplexity']:.3f}", f"{row['tokens_per_second']:.1f}"]
                lines.append("| " + " | ".join([*cells, str(row["peak_slots"])]) + " |")
    return lines


def _searched_beams(results: list[dict[str, Any]]) -> list[str]:
    """Speculative beam search against beam search, the fastest setting of each width."""
    lines = [
        "Speculative beam search over beam search of the same width; the fastest of each width, the "
        "prompt's forward not counted. Hugging Face's `generate(num_beams=4)` takes so many times as long as ours "
        "(plain, speculative; prompt counted):",
        "",
        "| pair | type | width 2 | width 4 | width 8 | Hugging Face, width 4 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        part = result["parts"].get("search")
        if not part or not part["found"]:
            continue
        cells = [result["pair"]["name"], _type(part)]
        for width in (2, 4, 8):
            rows = [
                r for r in part["found"] if r["family"] == "speculative beam search" and r["about"]["width"] == width
            ]
            if not rows:
                cells.append("")
                continue
            best = max(rows, key=lambda row: row["speed_up"]["median"])
            same = f"{min(row['same_text'] for row in rows):.0%}"
            about = f"{best['about']['draft_width']} drafted, gamma {best['about']['gamma']}; same text {same}"
            cells.append(f"{best['speed_up']['median']:.2f}x ({about})")
        theirs = next((row for row in part["found"] if row["family"] == "Hugging Face"), {"unavailable": ""})
        if "unavailable" in theirs:
            cells.append("not measured")
        else:
            pair = (theirs[f"theirs_over_{name}"]["median"] for name in ("plain", "speculative"))
            cells.append(", ".join(f"{ratio:.2f}x" for ratio in pair) + f"; same text {theirs['same_text']:.0%}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _beam_costs(results: list[dict[str, Any]]) -> list[str]:
    """What is not a model forward, and cache slots."""
    lines = []
    for result in results:
        name = f"{result['pair']['name']}, {_type(result)}"
        if part := result["parts"].get("overhead"):
            shares = {row["label"]: row["not_a_forward"]["median"] for row in part["found"]}
            lines.append(
                f"- {name}: not a model forward, of a round of `dsbd` with 6 drafted beams and gamma 3: "
                f"{shares['dsbd, top-k 10']:.1%} with top-k 10, {shares['dsbd, no truncation']:.1%} without truncation."
            )
        if part := result["parts"].get("memory"):
            slots = {row["label"]: row for row in part["found"]}
            wide, one = slots["dsbd, width 4"], slots["dsbd, one cache"]
            lines.append(
                f"- {name}: peak cache slots, against multinomial decoding: `dsbd` with width 4 "
                f"{wide['to_multinomial']['median']:.2f}x (a row per beam would take "
                f"{wide['row_per_beam_slots'] / slots['multinomial']['slots']:.1f}x), with one cache "
                f"{one['to_multinomial']['median']:.2f}x."
            )
    return lines


def beams_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/beams.py measured."""
    results = sorted(results, key=lambda r: (r["pair"]["target"]["parameters"], r["environment"]["dtype"]))
    env = results[0]["environment"]
    scored = [
        f"{found['quality_documents']} documents ({found['quality_items']} runs) of {task}"
        for task, found in results[0]["parts"].get("pareto", {"found": {}})["found"].items()
    ]
    lines = [f"{env['processor']}, torch {env['torch']}, {env['date']}; what is drawn, at temperature 1."]
    if scored:
        lines[0] += f" Scores and perplexity are of {' and '.join(scored)}, held out, on the embedded pair."
    blocks = [lines]
    for part, block in (("pareto", _drawn_beams), ("table", _one_cache), ("search", _searched_beams)):
        if any(result["parts"].get(part, {}).get("found") for result in results):
            blocks.append(block(results))
    costs = _beam_costs(results)
    return "\n\n".join("\n".join(block) for block in ([*blocks, costs] if costs else blocks))


def candidates_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/candidates.py measured: trees, target- over draft-initialised, and forks by width."""
    results = sorted(results, key=lambda r: (r["pair"]["target"]["parameters"], r["environment"]["dtype"]))
    intro = "Speed-ups over plain decoding in the same turns, prompt aside (95% interval); alpha as MCSD defines it. "
    intro += "Scores in points, and perplexity as a ratio, against plain decoding of the same documents."
    trees = ["| pair | type | T | method | rows | speed-up | alpha | tau | qa | sql | perplexity |", "|---" * 11 + "|"]
    pairs = ["| pair | type | T | target- over draft-initialised | speed | of sums |", "|---" * 6 + "|"]
    forks = ["| pair | type | draft of | T | chains | speed-up (alpha) by width |", "|---" * 6 + "|"]
    for result in results:
        name, part = [result["pair"]["name"], _type(result)], result["parts"].get("static", {})
        quality = {row["label"]: row["domains"] for row in part.get("quality", ())}
        for row in (row for rows in part.get("speed", {}).values() for row in rows if row["alpha"] is not None):
            good, about = quality.get(row["label"], {}), row["about"]
            cells = [*name, f"{about['temperature']:g}", row["family"] + (" (lossy)" if about["lossy"] else "")]
            cells += [str(about["rows"]), _times(row["speed_up"]), f"{row['alpha']:.2f}", f"{row['tau']:.2f}"]
            cells += [_points(good[task]) if task in good else "" for task in ("qa", "sql")]
            ratio = good.get("all", {}).get("perplexity_ratio")
            trees.append(f"| {' | '.join([*cells, _within(ratio, '.3f') if ratio else ''])} |")
        for row in part.get("headline", ()):
            cells = [*name, f"{row['temperature']:g}", f"{row['over']} over {row['under']}", _times(row["speed_up"])]
            sums = "{ratio:.2f}x ({low:.2f} to {high:.2f})".format(**row["pooled"])
            pairs.append(f"| {' | '.join([*cells, sums])} |")
        for draft, rows in result["parts"].get("widths", {}).get("speed", {}).items():
            lines: dict[tuple[str, str], list[str]] = {}
            for row in (row for row in rows if "width" in row["about"]):
                about = row["about"]
                kind = "lossless" if about["verify"] == "rejection" else "longest wins, lossy"
                key = f"{about['temperature']:g}", kind + (", decision model" if about["decision"] else "")
                figure = f"{about['width']}: {row['speed_up']['median']:.2f}x ({row['alpha']:.2f})"
                lines.setdefault(key, []).append(figure)
            forks += [f"| {' | '.join([*name, draft, *key, ', '.join(found)])} |" for key, found in lines.items()]
    return "\n\n".join([intro, *("\n".join(block) for block in (trees, pairs, forks) if len(block) > 2)])


def _times(ratio: dict[str, Any]) -> str:
    return "{median:.2f}x ({low:.2f} to {high:.2f})".format(**ratio)


def _within(found: dict[str, Any], form: str, unit: float = 1) -> str:
    low, high = (format(unit * end, form) for end in found["interval"])
    return f"{unit * found['to_plain']:{form}} ({low} to {high})"


def _points(found: dict[str, Any]) -> str:
    """A score, and how far it is from plain decoding's."""
    return f"{found['score']:.1%}: {_within(found['score_difference'], '+.1f', 100)}"


early_exit_table = runpy.run_path(str(Path(__file__).with_name("early_exit_readme.py")))["early_exit_table"]

# where each table stands: document -> (marker, result files, how they are written)
TABLES: dict[str, list[tuple[str, str, Callable[[list[dict[str, Any]]], str]]]] = {
    "README.md": [
        ("engine table", "engine.json", lambda results: engine_table(*results)),
        ("pairs table", "engine-*x*-*.json", pairs_table),
        ("peers table", "peers-*.json", peers_table),
        ("batching table", "batching-*.json", batching_table),
        ("beams table", "beams-*.json", beams_table),
        ("candidates table", "candidates-*.json", candidates_table),
        ("early exit table", "early-exit-*.json", early_exit_table),
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
        if not files:  # not measured yet
            continue
        head, rest = text.split(begin, 1)
        _, tail = rest.split(end, 1)
        text = f"{head}{begin}\n{table([json.loads(file.read_text('utf-8')) for file in files])}\n{end}{tail}"
    return text


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(rendered(document), "utf-8")
