"""Writes the measured figures of README and of the model card from benchmarks/results: no figure is typed by hand.

Run: python benchmarks/readme.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batching_readme import batching_table
from beams_readme import beams_table
from candidates_readme import candidates_table
from early_exit_readme import early_exit_details, early_exit_table
from embedded_readme import acceptance_table, score_table
from engine_readme import engine_table, pairs_table
from peers_readme import peers_table
from plan_readme import plan_table
from speed_readme import speed_table

ROOT = Path(__file__).parent.parent

# where each table stands: document -> (marker, result files, how they are written)
TABLES: dict[str, list[tuple[str, str, Callable[[list[dict[str, Any]]], str]]]] = {
    "README.md": [("speed table", "*.json", speed_table)],
    "docs/results.md": [
        ("engine table", "engine.json", lambda results: engine_table(*results)),
        ("pairs table", "engine-*x*-*.json", pairs_table),
        ("peers table", "peers-*.json", peers_table),
        ("batching table", "batching-*.json", batching_table),
        ("beams table", "beams-*.json", beams_table),
        ("candidates table", "candidates-*.json", candidates_table),
        ("early exit table", "early-exit-*.json", early_exit_table),
        ("plan table", "plan-*.json", plan_table),
        ("early exits", "early-exit-*.json", early_exit_details),
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
