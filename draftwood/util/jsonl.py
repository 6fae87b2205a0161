"""A file of JSON lines that survives a kill: one line a record, only ever appended, each flushed to the disk.

A last line that was cut is dropped when the file is opened again. One process at a time holds a file.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import IO, Any, Self

from draftwood.errors import ConfigurationError
from draftwood.util.files import writing
from draftwood.util.safe_parsing import parse_json

Record = dict[str, Any]
BLOCK = 1 << 16  # bytes that are searched for a line end at a time


class Journal:
    """Records by what their field `key` says. Use it in a `with` statement.

    Raises ConfigurationError where the file cannot be written, or another process that still runs holds it.
    """

    def __init__(self, path: Path, key: str = "key") -> None:
        self.path, self.key = path, key
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        try:
            self._hold()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def recovered(self, replaced: Callable[[Record], bool] = lambda record: False) -> Iterator[Record]:
        """The records that are there, as `read_records` has them. To be exhausted before `add`."""
        assert self._file is not None, "the journal is open"
        cut_torn_line(self._file)
        with self.path.open("rb") as file:
            yield from read_records(file, self.path, self.key, replaced)

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep a record; its line is on the disk when this returns."""
        assert self._file is not None, "the journal is open"
        data = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with writing(self.path):
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the part is cut off when it is opened again
            os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Drop all records."""
        assert self._file is not None, "the journal is open"
        self._file.truncate(0)

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
                f"another process writes to {self.path}; wait for it, or choose another --out"
            ) from None


def cut_torn_line(file: IO[bytes]) -> None:
    """Cut off what follows the last line end of an open file: a line whose writing was broken off."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        if place := file.read(end - start).rfind(b"\n") + 1:
            end = start + place
            break
        end = start
    file.truncate(end)


def read_records(
    file: IO[bytes], path: Path, key: str = "key", replaced: Callable[[Record], bool] = lambda record: False
) -> Iterator[Record]:
    """The records of a file; a last line without its end is left out: it was cut, or is under way.

    Raises ConfigurationError where a line is damaged or a record is there twice, unless the first may be `replaced`.
    """
    known: set[str] = set()
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = parse_json(line)
            name, final = record[key], not replaced(record)
        except (ValueError, KeyError, TypeError):
            name = None
        if not isinstance(name, str):
            raise ConfigurationError(f"line {number} of {path} is damaged; remove it, or choose another --out")
        if name in known:
            again = f"line {number} of {path} holds the {key} {name!r}, which is there already"
            raise ConfigurationError(f"{again}; remove one of them, or choose another --out")
        if final:
            known.add(name)
        yield record
