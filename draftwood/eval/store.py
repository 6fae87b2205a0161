"""A directory of results that survives a kill: what is measured (run.json), and a line for each run (items.jsonl).

Lines are only ever appended, each of them flushed to the disk; a last line
that was cut is dropped when the directory is opened again. One process at a time holds a directory.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks.base import digest
from draftwood.reading import parse_json, read_text

Record = dict[str, Any]

CONFIGURATION, ITEMS, SUMMARY = "run.json", "items.jsonl", "summary.json"


class Store:
    """The records of one configuration by key. Use it in a `with` statement.

    Raises ConfigurationError where the directory belongs to another configuration, to another process that still
    runs, or holds something else.
    """

    def __init__(self, directory: Path, configuration: Mapping[str, Any]) -> None:
        self.directory = directory
        self.configuration = json.loads(json.dumps(configuration))
        self.records: dict[str, Record] = {}
        self._file: FileIO | None = None

    def __enter__(self) -> Store:
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file = (self.directory / ITEMS).open("a+b", buffering=0)
        try:
            self._hold()
            self._claim()
            self._recover()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep a run; its line is on the disk when this returns."""
        if key in self.records:
            raise ValueError(f"run {key} is there already")
        line = {"key": key, **record}
        assert self._file is not None, "the store is open"
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with writing(self.directory):
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the part is cut off when it is opened again
            os.fsync(self._file.fileno())
        self.records[key] = line

    def note_session(self, session: Mapping[str, Any]) -> None:
        """Write down with which program and machine runs are made from here on."""
        path = self.directory / CONFIGURATION
        document = read_run(path)
        document["sessions"].append(dict(session))
        write_json(path, document)

    def _hold(self) -> None:
        """Keep other processes out until the file is closed or this process dies."""
        if sys.platform == "win32":
            return
        import fcntl

        assert self._file is not None
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another process writes to {self.directory}; wait for it, or choose another --out"
            ) from None

    def _claim(self) -> None:
        """Begin a new directory, or see that this one belongs to the same configuration."""
        path = self.directory / CONFIGURATION
        if not path.exists():
            if (self.directory / ITEMS).stat().st_size:
                raise ConfigurationError(f"{self.directory} has results without {CONFIGURATION}; choose another --out")
            write_json(path, {"schema": 1, "configuration": self.configuration, "sessions": []})
            return
        there = read_run(path)["configuration"]
        if there != self.configuration:
            keys = sorted(there.keys() | self.configuration.keys())
            other = [key for key in keys if there.get(key) != self.configuration.get(key)]
            raise ConfigurationError(
                f"{self.directory} holds results of another configuration (different: {', '.join(other)}); "
                "choose another --out, or repeat the first command to go on"
            )

    def _recover(self) -> None:
        """Read the lines that are whole, and cut off what is not."""
        assert self._file is not None
        self._file.seek(0)
        self.records, whole = read_records(self._file, self.directory / ITEMS)
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)


def read_run(path: Path) -> dict[str, Any]:
    """run.json: its configuration and sessions; ConfigurationError where it is not what an evaluation writes."""
    try:
        document = parse_json(read_text(path))
        parts = document["configuration"], document["sessions"]
    except (ValueError, KeyError, TypeError, OSError):
        parts = None, None
    if not isinstance(parts[0], dict) or not isinstance(parts[1], list):
        raise ConfigurationError(f"{path} is not what `draftwood eval` wrote; choose another --out")
    found: dict[str, Any] = document
    return found


def read_records(file: IO[bytes], path: Path) -> tuple[dict[str, Record], int]:
    """The runs in items.jsonl by key, and the bytes of its whole lines: the last one may be cut, or under way.

    Raises ConfigurationError where a line is damaged or a run is there twice.
    """
    records: dict[str, Record] = {}
    whole = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        try:
            record = parse_json(line)
            key = record["key"]
        except (ValueError, KeyError, TypeError):
            key = None
        if not isinstance(key, str):
            raise ConfigurationError(f"line {number} of {path} is damaged; remove it, or choose another --out")
        if key in records:
            again = f"line {number} of {path} holds a run that is there already"
            raise ConfigurationError(f"{again}; remove one of them, or choose another --out")
        records[key] = record
    return records, whole


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document so that readers see the old one or the new one, never a part."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    new = path.with_name(path.name + ".new")
    with writing(path.parent):
        new.write_text(text + "\n", "utf-8", errors="replace")
        os.replace(new, path)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Errors of the file system as ConfigurationError: which directory, why, and what can be done."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written ({error.strerror}); what was measured is kept: make room there and repeat "
            "the command, or choose another --out"
        ) from None


def check_writable(directory: Path) -> None:
    """Raise ConfigurationError now where results could not be written later. Leaves nothing behind."""
    there = next((each for each in (directory, *directory.parents) if each.exists()), directory)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a directory" if there.exists() and not there.is_dir() else "cannot be written"
        raise ConfigurationError(f"{there} {what}; choose another --out")


def key_of(*parts: Any) -> str:
    """The key of a run."""
    return digest(parts)
