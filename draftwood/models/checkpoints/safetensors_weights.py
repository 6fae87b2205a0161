"""The weights of a checkpoint directory: safetensors files, mapped into memory; nothing is ever unpickled."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints.files import read_json
from draftwood.util.safe_parsing import short_repr

LARGE_TENSOR = 1 << 18  # elements of a tensor that is mapped apart
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")  # safetensors' names of the dtypes that hold plain weights


class Safetensors:
    """The tensors of a directory's safetensors files, mapped into memory and read when asked for."""

    config_source = "config.json"  # what tells the model's shape

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self.source = directory, directory / self.config_source
        self._place: dict[str, tuple[Any, Path]] = {}
        for path in weight_files(directory):
            try:
                handle = stack.enter_context(safe_open(str(path), "pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is damaged or truncated ({error}); fetch it again") from error
            for name in handle.keys():  # noqa: SIM118 - not a dictionary
                self._place[name] = (handle, path)

    def names(self) -> list[str]:
        return list(self._place)

    def has(self, name: str) -> bool:
        return sliced(name)[0] in self._place

    def dtype(self) -> str:
        """Safetensors' name of the first tensor's dtype, in PyTorch's words."""
        for name, (handle, _) in self._place.items():
            stored = str(handle.get_slice(name).get_dtype())
            return stored.replace("BF", "bfloat").replace("F", "float")
        return "float32"

    def shape(self, name: str) -> tuple[list[int], Path]:
        """Shape and file of a tensor that must be there and must hold plain weights."""
        name, number = sliced(name)
        if name not in self._place:
            raise ModelError(
                f"{self.directory}: tensor {name} is missing; fetch the checkpoint again, or correct config.json"
            )
        handle, path = self._place[name]
        stored = handle.get_slice(name)
        if stored.get_dtype() not in PLAIN_DTYPES:
            raise ModelError(
                f"{path}: tensor {name} is stored as {stored.get_dtype()}, but quantised weights are not read"
            )
        return list(stored.get_shape())[number is not None :] or [1], path

    def view(self, name: str) -> Tensor:
        """A view of the mapped file. A large tensor is mapped on its own, so that its memory is freed with the view."""
        name, number = sliced(name)
        handle, path = self._place[name]
        if math.prod(handle.get_slice(name).get_shape()) >= LARGE_TENSOR:
            handle = safe_open(str(path), "pt")
        tensor: Tensor = handle.get_tensor(name) if number is None else handle.get_slice(name)[number]
        return tensor if tensor.dim() else tensor[None]

    def read(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {name: self.view(name) for name in self._place}

    def fill(self, name: str, place: Tensor, rows: slice, columns: slice) -> None:
        """Copy some rows of a tensor, and of a matrix some columns, to `place`."""
        place.copy_(part_of(self.view(name), rows, columns))


def hub_id(directory: Path) -> str | None:
    """owner/name of a snapshot in the hub's cache (models--owner--name/snapshots/REVISION), else None."""
    kind, *names = directory.parent.parent.name.split("--") if directory.parent.name == "snapshots" else [""]
    return "/".join(names) if kind == "models" and names else None


def sliced(name: str) -> tuple[str, int | None]:
    """NAME[3]: the tensor NAME, and 3, the number of what is meant in a stack; None: all of it."""
    whole, _, number = name.removesuffix("]").partition("[")
    return whole, int(number) if number else None


def part_of(tensor: Tensor, rows: slice, columns: slice) -> Tensor:
    """A view of some rows of a tensor, and of a matrix some columns."""
    return tensor[rows] if tensor.dim() < 2 else tensor[rows, columns]


def weight_files(directory: Path) -> list[Path]:
    """model.safetensors, else the files that the index names, else all: Hugging Face's order, so the same weights."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelError(f"{index} has no weight_map from tensors to files; fetch it again")
        outside = next((name for name in weight_map.values() if not re.fullmatch(r"[^/\\]*\.safetensors", name)), None)
        if outside is not None:
            raise ModelError(
                f"{index} names {short_repr(outside)}, but weights lie in its own directory; fetch it again"
            )
        files = [directory / name for name in sorted(set(weight_map.values()))]
        for path in files:
            if not path.is_file():
                raise ModelError(
                    f"{directory}: the index names {path.name}, which is not there; fetch the missing file"
                )
        return files
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
        source = hub_id(directory) or (directory if pickled else None)  # pickled files of the hub were not fetched
        hint = (
            f"pickled weights are never loaded: convert them with `draftwood convert {source} --out DIR`"
            if source
            else "give a checkpoint with weights"
        )
        raise ModelError(f"{directory} has no .safetensors file; {hint}")
    return files
