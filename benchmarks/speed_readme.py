"""README's one table: what draftwood gains and where it loses, from the other benchmarks' results."""

from __future__ import annotations

from typing import Any

PAIRS = {  # heading -> pair, type
    "embedded, 12x192": ("embedded", "float32"),
    "grown, 12x768": ("grown-12x768", "bfloat16"),
    "grown, 22x2048": ("grown-22x2048", "bfloat16"),
}


def speed_table(results: list[dict[str, Any]]) -> str:
    """A row for each comparison, a column for each pair; empty where it was not measured."""

    def times(part: str, wanted: Any) -> list[str]:
        """Medians of the part of a result of each pair that `wanted` finds."""
        cells = []
        for pair, dtype in PAIRS.values():
            ours = [r for r in results if r.get("pair", {}).get("name") == pair and part in r.get("parts", {})]
            ours = [r for r in ours if r["environment"]["dtype"] == dtype]
            found = wanted(ours[0]["parts"][part]) if ours else None
            cells.append(f"{found:.2f}x" if found else "")
        return cells

    def tree(family: str) -> Any:
        def wanted(part: dict[str, Any]) -> float:
            rows = [row for rows in part["speed"].values() for row in rows if row["family"] == family]
            return float(next(row["speed_up"]["median"] for row in rows if row["about"]["temperature"] == 1))

        return wanted

    def exit_(part: dict[str, Any]) -> float:
        rows = part["groups"]["1"]["tables"]
        return float(next(row["speed_up"]["median"] for row in rows if row["label"] == "eesd + confidence"))

    def beams(part: dict[str, Any]) -> float:
        return float(part["found"]["sql"]["at_equal_quality"]["score, decoding"]["median"])

    def search(part: dict[str, Any]) -> float:
        rows = [row for row in part["found"] if row["family"] == "speculative beam search"]
        return float(max(row["speed_up"]["median"] for row in rows if row["about"]["width"] == 4))

    def engine(peer: str, mode: str) -> list[str]:
        cells = []
        for pair, dtype in PAIRS.values():
            rows = [row for r in results if r.get("pair", {}).get("name") == pair for row in r.get("rows", ())]
            rows = [row for row in rows if (row["peer"], row["mode"], row["dtype"]) == (peer, mode, dtype)]
            cells.append(f"{rows[0]['ms_per_token']['median']:.3g} ms" if rows else "")
        return cells

    lines: list[tuple[str, list[str]]] = [
        ("a token, plain decoding", engine("draftwood", "plain")),
        ("a token, greedy chain of 4", engine("draftwood", "speculation")),
        ("the same, Hugging Face", engine("Hugging Face", "assisted")),
        ("the same, llama.cpp", engine("llama.cpp", "speculation")),
        ("the same, OpenVINO GenAI", engine("OpenVINO GenAI", "speculation")),
        ("`speculative`, chain of 4", times("static", tree("speculative"))),
        ("`mcsd`, tree 4,2,2,1", times("static", tree("mcsd 4,2,2,1"))),
        ("`eesd`, no draft model", times("tables", exit_)),
        ("`dsbd` over `beam-sampling`, equal score on SQL", times("pareto", beams)),
        ("`speculative-beam-search` over `beam-search`, 4 beams", times("search", search)),
    ]
    table = [("", list(PAIRS)), ("---", ["---"] * len(PAIRS)), *lines]
    return "\n".join(f"| {' | '.join([name, *cells])} |" for name, cells in table)
