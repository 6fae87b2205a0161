"""Answers in a directory of numbered files, JSON lines or Parquet, each of which appears as a whole.

What is not enough for a file yet is in a journal, so that a kill loses none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from draftwood.errors import ConfigurationError
from draftwood.util.files import replacing, writing
from draftwood.util.jsonl import Journal, Record, read_records

FileFormat = Literal["jsonl", "parquet"]
ID_FIELD = "custom_id"


def pyarrow() -> Any:
    """pyarrow with its reader and writer of Parquet; ConfigurationError where it is not installed."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ConfigurationError("Parquet needs pyarrow, which is missing; pip install 'draftwood[scale]'") from None
    import pyarrow

    return pyarrow


class NumberedOutput:
    """part-00000.jsonl, ... with `rows` answers each. Used as a `Journal` is."""

    def __init__(self, directory: Path, kind: FileFormat, rows: int = 1000) -> None:
        self.directory, self.kind, self.rows = directory, kind, rows
        self._journal = Journal(directory / "unfinished.jsonl", ID_FIELD)
        self._pending: list[Record] = []
        if kind == "parquet":
            pyarrow()

    def __enter__(self) -> Self:
        self._journal.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._journal.__exit__(*error)

    def recovered(self) -> Iterator[Record]:
        """The answers that are there; of those in files only the ids and errors. To be exhausted before `add`."""
        known = set()
        for path in self._parts():
            for record in self._read(path):
                known.add(record[ID_FIELD])
                yield record
        self._pending = list(self._journal.recovered())
        if self._pending and self._pending[0][ID_FIELD] in known:  # a kill came when they had just become a file
            self._restart()
        yield from self._pending

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep an answer; it is on the disk when this returns."""
        self._journal.add(record)
        self._pending.append(dict(record))
        if len(self._pending) >= self.rows:
            self.finish()

    def finish(self) -> None:
        """Write the answers that are in no numbered file yet to the next one."""
        if not self._pending:
            return
        last = max((int(path.stem.partition("-")[2]) for path in self._parts()), default=-1)
        path = self.directory / f"part-{last + 1:05d}.{self.kind}"
        with writing(path), replacing(path) as partial:
            if self.kind == "jsonl":
                lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in self._pending)
                partial.write_text("".join(lines), "utf-8", errors="replace")
            else:
                arrow = pyarrow()
                arrow.parquet.write_table(arrow.Table.from_pylist([_row(one) for one in self._pending]), partial)
        self._restart()

    def _parts(self) -> list[Path]:
        return sorted(self.directory.glob(f"part-[0-9]*.{self.kind}"))

    def _restart(self) -> None:
        self._journal.clear()
        self._pending = []

    def _read(self, path: Path) -> Iterator[Record]:
        if self.kind == "jsonl":
            with path.open("rb") as file:
                yield from read_records(file, path, ID_FIELD)
            return
        for batch in pyarrow().parquet.ParquetFile(path).iter_batches(columns=[ID_FIELD, "status_code", "error"]):
            yield from ({**row, "response": row["status_code"]} for row in batch.to_pylist())


def _row(record: Record) -> dict[str, Any]:
    """An answer as a row: the text of its first choice, the whole body and an error as JSON."""
    body, error = record["response"]["body"], record["error"]
    choice: dict[str, Any] = next(iter(body.get("choices", ())), {})
    return {
        ID_FIELD: record[ID_FIELD],
        "status_code": record["response"]["status_code"],
        "text": choice.get("text", choice.get("message", {}).get("content")),
        "body": json.dumps(body, ensure_ascii=False),
        "error": None if error is None else json.dumps(error, ensure_ascii=False),
    }
