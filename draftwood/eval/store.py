"""A directory of results that survives a kill: what is measured (run.json), and a line for each run (items.jsonl)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks.base import digest
from draftwood.util.files import write_json
from draftwood.util.jsonl import Journal, Record, read_records
from draftwood.util.safe_parsing import parse_json, read_text

CONFIGURATION, ITEMS, SUMMARY = "run.json", "items.jsonl", "summary.json"
CONTENTS = "contents"  # of a configuration: the fingerprints of models and learned files by path


class Store:
    """The records of one configuration by key; a later run takes the place of one that failed. Use it in `with`.

    `extends` says whether this configuration goes on from an earlier one, whose records then stay. Raises
    ConfigurationError where the directory belongs to another configuration, to another process that still runs, or
    holds something else.
    """

    def __init__(
        self,
        directory: Path,
        configuration: Mapping[str, Any],
        extends: Callable[[Mapping[str, Any]], bool] = lambda there: False,
    ) -> None:
        self.directory, self._extends = directory, extends
        self.configuration = plain(configuration)
        self.records: dict[str, Record] = {}
        self._journal = Journal(directory / ITEMS)

    def __enter__(self) -> Store:
        with ExitStack() as stack:
            stack.enter_context(self._journal)
            self._claim()
            self.records = {record["key"]: record for record in self._journal.recovered(failed)}
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep a run; its line is on the disk when this returns."""
        if key in self.records and not failed(self.records[key]):
            raise ValueError(f"run {key} is there already")
        line = {"key": key, **record}
        self._journal.add(line)
        self.records[key] = line

    def note_session(self, session: Mapping[str, Any]) -> None:
        """Write down with which program and machine runs are made from here on."""
        path = self.directory / CONFIGURATION
        document = read_run(path)
        document["sessions"].append(dict(session))
        write_json(path, document)

    def _claim(self) -> None:
        """Begin a new directory, or see that this one belongs to the same configuration."""
        path = self.directory / CONFIGURATION
        if not path.exists():
            if (self.directory / ITEMS).stat().st_size:
                raise ConfigurationError(f"{self.directory} has results without {CONFIGURATION}; choose another --out")
            write_json(path, {"schema": 1, "configuration": self.configuration, "sessions": []})
            return
        document = read_run(path)
        there = document["configuration"]
        if there == self.configuration:
            return
        if self._extends(there):
            write_json(path, {**document, "configuration": self.configuration})
        else:
            other = ", ".join(differences(there, self.configuration))
            raise ConfigurationError(
                f"{self.directory} holds results of another configuration (different: {other}); "
                "choose another --out, or repeat the command that made it, with more items or seeds if you like"
            )


def failed(record: Mapping[str, Any]) -> bool:
    """Whether a run failed."""
    return record.get("status") == "failed"


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The parts of two configurations that differ; of files with another content their paths."""
    keys = [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
    before, now = there.get(CONTENTS, {}), here.get(CONTENTS, {})
    changed = [f"what is in {path}" for path in sorted(before.keys() & now.keys()) if before[path] != now[path]]
    return [name for key in keys for name in (changed if key == CONTENTS and changed else [key])]


def plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as its file says it."""
    document: dict[str, Any] = json.loads(json.dumps(configuration))
    return document


def read_run(path: Path) -> dict[str, Any]:
    """run.json: its configuration and sessions; ConfigurationError where it is not what an evaluation writes."""
    try:
        document = parse_json(read_text(path))
        parts = document["configuration"], document["sessions"]
    except (ValueError, KeyError, TypeError, OSError):
        parts = None, None
    if not isinstance(parts[0], dict) or not isinstance(parts[1], list):
        raise ConfigurationError(f"{path} is not what `draftwood eval` wrote; choose another --out")
    run: dict[str, Any] = document
    return run


def records_of(directory: Path) -> dict[str, Record]:
    """The runs of an evaluation by key, also of one that is running: a last line that is under way does not count."""
    path = directory / ITEMS
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return {record["key"]: record for record in read_records(file, path, replaced=failed)}


def check_writable(directory: Path) -> None:
    """Raise ConfigurationError now where results could not be written later. Leaves nothing behind."""
    there = next((each for each in (directory, *directory.parents) if each.exists()), directory)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a directory" if there.exists() and not there.is_dir() else "cannot be written"
        raise ConfigurationError(f"{there} {what}; choose another --out")


def key_of(*parts: Any) -> str:
    """The key of a run."""
    return digest(parts)
