"""JSON files of a checkpoint directory, with errors that say which file is wrong and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood.errors import ModelError
from draftwood.reading import parse_json, read_text


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelError with one sentence."""
    try:
        values = parse_json(read_text(path), finite=False)
    except ValueError as error:  # bad UTF-8 is one too
        raise ModelError(f"{path} is not valid JSON ({error}); fetch or write it again") from error
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror or error}); check the file and its permissions"
        ) from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds a JSON {type(values).__name__}, not an object; fetch or write it again")
    return values
