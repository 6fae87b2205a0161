"""Summaries of directories that `draftwood eval` wrote: of finished, running and killed evaluations alike.

Only reads. Refuses to know what is made of a summary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.eval.store import CONFIGURATION, ITEMS, Record
from draftwood.eval.summary import summarise


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
    try:
        document = json.loads((directory / CONFIGURATION).read_text("utf-8"))
        configuration, sessions = document["configuration"], document["sessions"]
        idles = [session["idle_watts"] for session in sessions if session["idle_watts"]]
        records = records_of(directory)
        if not records:
            raise ConfigurationError(f"{directory} holds no run yet; wait for the first, or run `draftwood eval` again")
        return summarise(configuration, sessions, records, idles[-1] if idles else None)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError(
            f"{directory} does not hold what `draftwood eval` writes; run it again with another --out"
        ) from None


def records_of(directory: Path) -> dict[str, Record]:
    """The runs of an evaluation by key. Whole lines only: the last one may be under way."""
    path = directory / ITEMS
    found: dict[str, Record] = {}
    if path.is_file():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                record = json.loads(line)
                found[record["key"]] = record
    return found
