"""README's tables of what benchmarks/beams.py measured."""

from __future__ import annotations

from typing import Any

from embedded_readme import MEASURES


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


def type_of(part: dict[str, Any]) -> str:
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
            cells = [result["pair"]["name"], type_of(part), f"{task}: {MEASURES[task]}", _cut(part)]
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
                cells = [result["pair"]["name"], type_of(part), task, _cut(part), row["label"]]
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
        cells = [result["pair"]["name"], type_of(part)]
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
        name = f"{result['pair']['name']}, {type_of(result)}"
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
