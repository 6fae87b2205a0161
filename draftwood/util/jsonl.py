"""A file of JSON lines that survives a kill: one line a record, only ever appended, each flushed to the disk.

A last line that was cut is dropped when the file is opened again. One process at a time holds a file.
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
from typing import IO, Any, Self

from draftwood.errors import ConfigurationError
from draftwood.util.safe_parsing import parse_json

Record = dict[str, Any]


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def recovered(self) -> Iterator[Record]:
        """The records that are there; at the end what is no whole line is cut off. To be exhausted before `add`."""
        assert self._file is not None, "the journal is open"
        self._file.seek(0)
        whole = 0
        for record, whole in read_records(self._file, self.path, self.key):  # noqa: B007
            yield record
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)

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


def read_records(file: IO[bytes], path: Path, key: str = "key") -> Iterator[tuple[Record, int]]:
    """The records of a file, each with the bytes up to its end; the last line may be cut, or under way.

    Raises ConfigurationError where a line is damaged or a record is there twice.
    """
    known: set[str] = set()
    whole = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        try:
            record = parse_json(line)
            name = record[key]
        except (ValueError, KeyError, TypeError):
            name = None
        if not isinstance(name, str):
            raise ConfigurationError(f"line {number} of {path} is damaged; remove it, or choose another --out")
        if name in known:
            again = f"line {number} of {path} holds the {key} {name!r}, which is there already"
            raise ConfigurationError(f"{again}; remove one of them, or choose another --out")
        known.add(name)
        yield record, whole


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the file system as ConfigurationError: what cannot be written, why, and what can be done."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}); what was finished is kept: make room there and repeat "
            "the command, or choose another --out"
        ) from None
