"""The files of a checkpoint directory: JSON read with errors that say what is wrong, tensors written whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.util.files import replacing
from draftwood.util.safe_parsing import parse_json, read_text


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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a safetensors file in one move, as readable as any new file; what was there survives a failure."""
    with replacing(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode  # safetensors makes files that only their owner may read
        save_file({name: part.detach().cpu().contiguous() for name, part in tensors.items()}, partial, dict(header))
        partial.chmod(mode)
