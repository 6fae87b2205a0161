"""Sources of rows: the data set's own files in JSON or JSON lines, or the library `datasets` (extra `eval`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks.base import Item, Task
from draftwood.util.safe_parsing import parse_json, read_text

SourceRow = Mapping[str, Any]

LINE_SUFFIXES = (".jsonl", ".ndjson")  # one document a line
MAX_DATA_BYTES = 2 << 30  # bytes of a data file


class FileTask(Task):
    """A task whose rows are read from a file, or from the hub where no file is named."""

    hub: ClassVar[tuple[str, str | None, str]]  # of `datasets`: name, configuration, split
    shown: ClassVar[int] = 1

    path: str | None = Field(None, description="the data set's file (JSON, JSON lines); default: through `datasets`")
    shots: int | None = Field(None, ge=0, le=32, description="rows shown as examples; default: as in the papers")

    shots_from: str | None = Field(None, description="file of the examples; default: the first rows, then not asked")

    @property
    def example_count(self) -> int:
        return self.shown if self.shots is None else self.shots

    def examples(self, rows: Iterator[Item]) -> list[Item]:
        if self.shots_from is None:
            return super().examples(rows)
        items = list(islice(self.model_copy(update={"path": self.shots_from}).items(), self.example_count))
        if len(items) < self.example_count:
            raise ConfigurationError(
                f"{self.shots_from} has {len(items)} rows, but {self.example_count} are to be shown"
            )
        return items

    @abstractmethod
    def item(self, row: SourceRow, number: int) -> Item:
        """A row of the file; raises KeyError, TypeError or ValueError where it is none of this data set."""

    def rows(self) -> Iterator[SourceRow]:
        """Rows as plain mappings."""
        if self.path is None:
            yield from from_hub(*self.hub, self.name)
        else:
            yield from self.unpack(read(Path(self.path).expanduser()))

    def unpack(self, document: Any) -> Iterator[SourceRow]:
        """Rows of a file's document; by default it is a list, or has one under data."""
        rows = document.get("data", document) if isinstance(document, dict) else document
        if not isinstance(rows, list):
            raise ValueError("there is no list of rows")
        yield from rows

    def items(self) -> Iterator[Item]:
        number = 0
        try:
            for number, row in enumerate(self.rows(), 1):
                yield self.item(row, number - 1)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, ConfigurationError):
                raise
            why = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
            place = f"row {number}" if number else "its beginning"
            raise ConfigurationError(
                f"task {self.name} does not understand {self.path or 'the data set'} at {place}: {why}; "
                "give the data set's original file"
            ) from None


def read(path: Path) -> Any:
    """A JSON document; of JSON lines, the list of them."""
    if not path.exists():
        raise ConfigurationError(f"the data file {path} does not exist")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory; name the data set's file in it")
    try:
        text = read_text(path, MAX_DATA_BYTES)
        try:
            if path.suffix not in LINE_SUFFIXES:
                return parse_json(text, finite=False)
        except ValueError:  # lines under another name
            pass
        return [parse_json(line, finite=False) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ConfigurationError(f"{path} is neither JSON nor JSON lines in UTF-8: {error}") from None


def from_hub(dataset: str, configuration: str | None, split: str, task: str) -> Iterator[SourceRow]:
    """Rows through `datasets`, from its cache or the hub."""
    try:
        library = import_module("datasets")
    except ImportError:
        raise ConfigurationError(
            f"task {task} has no file; name it with '{task}:path=FILE', or install the extra draftwood[eval] "
            "to load it through datasets"
        ) from None
    yield from library.load_dataset(dataset, configuration, split=split)


def texts(value: Any) -> list[str]:
    """Gold answers however a file holds them: one text, a list of them, or of {"text": ...}."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return texts(value["text"])
    if not isinstance(value, Sequence):
        raise TypeError(f"{value!r} is no answer")
    return [text for entry in value for text in texts(entry)]
