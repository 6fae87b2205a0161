"""Files written whole or not at all, and errors that say what can be done where they cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError


def partial_path(path: Path) -> Path:
    """The path to which a file's new content is written first; for a device or a pipe its own path."""
    return path if path.exists() and not path.is_file() else path.with_name(path.name + ".partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` in one move when the body succeeds.

    Readers see the old file or the new one, never a part. An error in the body leaves the old file as it was.
    """
    partial = partial_path(path)
    try:
        yield partial
        if partial != path:
            os.replace(partial, path)
    except BaseException:
        if partial != path:
            partial.unlink(missing_ok=True)
        raise


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


def write_json(path: Path, document: Any) -> None:
    """Write a document in one move; NaN and infinite numbers, which JSON does not know, raise ValueError."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    with writing(path), replacing(path) as partial:
        partial.write_text(text + "\n", "utf-8", errors="replace")
