"""The files of a checkpoint directory: JSON read with errors that say what is wrong, tensors written whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.util.files import replacing
from draftwood.util.safe_parsing import parse_json, read_text

FINGERPRINT_PIECES, PIECE_BYTES = 1024, 16384  # pieces of a file that a fingerprint is made of, and their bytes


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


def file_fingerprint(files: Iterable[Path]) -> str:
    """16 hexadecimal digits of what files hold: names, sizes and 1024 evenly spaced pieces of each."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(PIECE_BYTES, size // FINGERPRINT_PIECES)):
                file.seek(start)
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()[:16]
