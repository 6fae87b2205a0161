"""Models that are split over several GGUF files, NAME-00001-of-00003.gguf and so on: all parts are read as one file.

The first part has the metadata; each says how many parts there are, which of them it is, and how many tensors the model
has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path

from draftwood.errors import ModelError
from draftwood.models.checkpoints.gguf_file import File, MetadataArray
from draftwood.util.safe_parsing import short_repr

PART_NUMBER, PART_COUNT, TENSOR_COUNT = "split.no", "split.count", "split.tensors.count"
PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
FILE_SETTINGS = (PART_NUMBER, "general.alignment")  # keys that differ from part to part


def opened(path: Path) -> File:
    """A model's file, or all files of one that is split, given any of them; a header is read once per process.

    The file of a split model has the first part's path and metadata, and the tensors of all parts. Raises ModelError
    where a part is missing, or does not belong to the others.
    """
    file = _opened(path)
    count = file.metadata.get(PART_COUNT, 1)
    if count == 1:
        return file
    parts = [_opened(part) for part in _paths(file, count)]
    _check_parts(parts)
    whole = copy(parts[0])
    whole.parts = tuple(part.path for part in parts)
    whole.tensors = {name: entry for part in parts for name, entry in part.tensors.items()}
    return whole


def _opened(path: Path) -> File:
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); check the file") from error
    return _cached(path, stat.st_mtime_ns, stat.st_size)


def first_part(path: Path) -> bool:
    """Whether a file has the name of a whole model or of the first part of one that is split."""
    named = PART_NAME.fullmatch(path.name)
    return named is None or int(named[2]) == 1


@lru_cache(64)
def _cached(path: Path, changed: int, size: int) -> File:
    return File(path)


def _paths(file: File, count: object) -> list[Path]:
    """The paths of all parts, in order, by the name of one."""
    number, named = file.metadata.get(PART_NUMBER), PART_NAME.fullmatch(file.path.name)
    if named is None or (number, count) != (int(named[2]) - 1, int(named[3])):
        which = f"part {number + 1 if type(number) is int else short_repr(number)} of {short_repr(count)}"
        raise ModelError(
            f"{file.path} is {which} of a model, which its name does not say; put all parts into one directory, with "
            "names such as model-00001-of-00003.gguf"
        )
    paths = [file.path.with_name(f"{named[1]}-{i:05}-of-{named[3]}.gguf") for i in range(1, int(named[3]) + 1)]
    if missing := [path for path in paths if not path.is_file()]:
        raise ModelError(
            f"{file.path} is one of {count} parts, but {', '.join(path.name for path in missing[:3])} "
            f"{'is' if len(missing) == 1 else 'are'} not beside it; fetch all parts into one directory"
        )
    return paths


def _check_parts(parts: Sequence[File]) -> None:
    """Raise ModelError where a part is of another model, or the parts do not have each tensor of the model once."""
    first, homes = parts[0], dict[str, Path]()
    for number, part in enumerate(parts):
        others = [
            key
            for key, value in part.metadata.items()
            if key not in FILE_SETTINGS and not isinstance(value, MetadataArray) and first.metadata.get(key) != value
        ]
        if part.metadata.get(PART_NUMBER) != number:
            others = [PART_NUMBER]
        if others:
            raise ModelError(
                f"{part.path} does not belong to {first.path.name} ({short_repr(others[0])} differs); fetch all parts "
                "again, from one place"
            )
        for name in part.tensors:
            if name in homes:
                raise ModelError(
                    f"{part.path} has tensor {short_repr(name)}, which {homes[name].name} has, too; fetch all parts "
                    "again, from one place"
                )
            homes[name] = part.path
    if len(homes) != (count := first.metadata.get(TENSOR_COUNT)):
        raise ModelError(
            f"{first.path} and the parts beside it have {len(homes)} tensors together, but {TENSOR_COUNT} is "
            f"{short_repr(count)}; fetch all parts again, from one place"
        )
