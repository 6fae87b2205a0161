"""Summaries of directories that `draftwood eval` wrote: of finished, running and killed evaluations alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.eval import summary
from draftwood.eval.store import CONFIGURATION, ITEMS
from draftwood.util.jsonl import Record, read_records


def directories(place: Path) -> list[Path]:
    """`place` itself, or the evaluations right below it; ConfigurationError where there are none."""
    if not place.is_dir():
        raise ConfigurationError(f"{place} is not a directory; give one that `draftwood eval --out` wrote")
    if (place / CONFIGURATION).is_file():
        return [place]
    found = sorted(path.parent for path in place.glob(f"*/{CONFIGURATION}"))
    if not found:
        raise ConfigurationError(
            f"{place} holds no results ({CONFIGURATION}); give a directory that `draftwood eval --out` wrote, or one "
            "that holds several of these"
        )
    return found


def summary_of(directory: Path) -> dict[str, Any]:
    """The summary of what a directory holds now, made anew from its runs."""
    records = records_of(directory)
    if not records:
        raise ConfigurationError(f"{directory} holds no run yet; wait for the first, or run `draftwood eval` again")
    return summary.summary_of(directory, records)


def records_of(directory: Path) -> dict[str, Record]:
    """The runs of an evaluation by key. Whole lines only: the last one may be under way."""
    path = directory / ITEMS
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return {record["key"]: record for record in read_records(file, path)}
