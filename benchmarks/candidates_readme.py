"""README's tables of what benchmarks/candidates.py measured."""

from __future__ import annotations

from typing import Any

from beams_readme import type_of


def candidates_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/candidates.py measured: trees, target- over draft-initialised, and forks by width."""
    results = sorted(results, key=lambda r: (r["pair"]["target"]["parameters"], r["environment"]["dtype"]))
    intro = "Speed-ups over plain decoding in the same turns, prompt aside (95% interval); alpha as MCSD defines it. "
    intro += "Scores in points, and perplexity as a ratio, against plain decoding of the same documents."
    trees = ["| pair | type | T | method | rows | speed-up | alpha | tau | qa | sql | perplexity |", "|---" * 11 + "|"]
    pairs = ["| pair | type | T | target- over draft-initialised | speed | of sums |", "|---" * 6 + "|"]
    forks = ["| pair | type | draft of | T | chains | speed-up (alpha) by width |", "|---" * 6 + "|"]
    for result in results:
        name, part = [result["pair"]["name"], type_of(result)], result["parts"].get("static", {})
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
