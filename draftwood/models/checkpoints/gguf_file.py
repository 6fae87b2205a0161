"""GGUF files (llama.cpp's format): metadata and tensors, which may be quantised, in one file.

Types, block sizes and dequantisation come from the library `gguf` (extra gguf). Its reader is not used: it believes the
file's counts, and takes half a minute for the vocabulary of Llama 3. Here every size and count is compared with the
file's length before anything is made of it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import ConfigurationError, ModelError
from draftwood.util.safe_parsing import short_repr

PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SCALE_PLACES = {  # quantised types, and the places of the float16 scales and minima in a block of each
    **{"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2)},
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()},  # the last has an exponent of 8 bits as its first byte
}
QUANTISED_TYPES = tuple(SCALE_PLACES)
E8M0_NAN = 0xFF
SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING_TYPE, ARRAY_TYPE = 8, 9  # types of metadata, as the above
GGUF_VERSIONS = (2, 3)
GGUF_SUFFIX = ".gguf"
ALL_ROWS = slice(None)

Bytes: TypeAlias = np.ndarray[Any, Any]  # of type uint8


class MetadataArray(NamedTuple):
    """The place of an array of the metadata in the file; `File.array` reads it."""

    kind: int
    length: int
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"an array of {self.length} values"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: its shape as PyTorch has it, its type, its file, and the place of its bytes there."""

    shape: tuple[int, ...]
    kind: str
    file: Path
    start: int
    size: int


class DamagedFile(Exception):
    """The reason why a file is no complete GGUF file."""


class File:
    """A file's metadata by key and its tensors by name; ModelError where it is damaged or holds what is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: tuple[Path, ...] = (path,)  # the files of a model that is split
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorEntry] = {}
        library()
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise DamagedFile("it does not begin as a GGUF file does")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read(_Header(data))
        except (DamagedFile, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is damaged or truncated ({error}); fetch it again") from error
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror or error}); check the file") from error

    def _read(self, header: _Header) -> None:
        header.take(4)
        version = header.number("I")
        if version and version & 0xFFFF == 0:
            raise ModelError(f"{self.path} is big-endian; give the little-endian file (gguf-convert-endian makes one)")
        if version not in GGUF_VERSIONS:
            raise ModelError(f"{self.path} is of GGUF version {version}, but 2 and 3 are read; convert the model again")
        tensors, values = header.number("Q"), header.number("Q")
        for _ in range(values):
            key = header.string()
            if key in self.metadata:
                raise DamagedFile(f"key {short_repr(key)} is there twice")
            self.metadata[key] = header.value(header.number("I"))
        entries = [self._entry(header) for _ in range(min(tensors, header.size))]
        step = self.metadata.get("general.alignment", 32)
        if type(step) is not int or step < 8 or step & (step - 1):
            raise DamagedFile(f"general.alignment is {short_repr(step)}, but must be a power of two from 8")
        first = -(-header.at // step) * step
        for name, entry in entries:
            if name in self.tensors:
                raise DamagedFile(f"tensor {short_repr(name)} is there twice")
            place = replace(entry, start=first + entry.start)
            if place.start + place.size > header.size:
                raise DamagedFile(
                    f"tensor {short_repr(name)} ends at byte {place.start + place.size:,} of {header.size:,}"
                )
            self.tensors[name] = place

    def _entry(self, header: _Header) -> tuple[str, TensorEntry]:
        """The next tensor's name and entry, whose start counts from that of the first tensor."""
        name, axes = header.string(), header.number("I")
        if not 1 <= axes <= 4:
            raise DamagedFile(f"tensor {short_repr(name)} has {axes} dimensions")
        shape = tuple(header.number("Q") for _ in range(axes))[::-1]
        number, start = header.number("I"), header.number("Q")
        kinds = library().GGMLQuantizationType
        kind = kinds(number).name if number in set(kinds) else f"type {number}"
        if kind not in PLAIN_TYPES and kind not in QUANTISED_TYPES:
            raise ModelError(
                f"{self.path}: tensor {short_repr(name)} is stored as {kind}, but read are "
                f"{', '.join((*PLAIN_TYPES, *QUANTISED_TYPES))}; "
                "give a file of the model in these types, such as Q4_K_M or Q8_0"
            )
        block, size = library().GGML_QUANT_SIZES[number]
        if not all(shape) or shape[-1] % block:
            raise DamagedFile(f"tensor {short_repr(name)} of type {kind} has the shape {list(shape)}")
        return name, TensorEntry(shape, kind, self.path, start, prod(shape) // block * size)

    def array(self, key: str) -> list[Any]:
        """The values of an array of the metadata; none where there is no such array."""
        array = self.metadata.get(key)
        if not isinstance(array, MetadataArray):
            return []
        with self.path.open("rb") as file:
            file.seek(array.start)
            data = file.read(array.stop - array.start)
        if array.kind != STRING_TYPE:
            return list(struct.unpack(f"<{array.length}{SCALAR_FORMATS[array.kind]}", data))
        texts, at = [], 0
        try:
            for _ in range(array.length):
                stop = at + 8 + int.from_bytes(data[at : at + 8], "little")
                texts.append(data[at + 8 : stop].decode("utf-8"))
                at = stop
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path} is damaged ({key}: {error}); fetch it again") from error
        return texts

    def rows(self, name: str, rows: slice = ALL_ROWS) -> Bytes:
        """Rows of a tensor [N, bytes of a row], mapped anew: pages that were read go when the view does.

        Raises ModelError where a block's scale is not finite.
        """
        entry = self.tensors[name]
        count = prod(entry.shape[:-1])
        try:
            mapped = np.memmap(entry.file, np.uint8, "c", entry.start, (count, entry.size // count))[rows]
        except (OSError, ValueError) as error:
            raise ModelError(f"{entry.file} has changed since it was opened ({error}); load it again") from error
        if entry.kind in SCALE_PLACES and (broken := broken_row(mapped, entry.kind)) is not None:
            raise ModelError(
                f"{entry.file} is damaged (row {broken + (rows.start or 0)} of tensor {short_repr(name)}, of type "
                f"{entry.kind}, has a scale that is no finite number); fetch it again"
            )
        return mapped


class _Header:
    """Reads values one after the other, within the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def take(self, count: int) -> int:
        """Place of the next `count` bytes, which are passed."""
        start, self.at = self.at, self.at + count
        if self.at > self.size:
            raise DamagedFile(f"its header goes beyond its {self.size:,} bytes")
        return start

    def number(self, code: str) -> Any:
        form = "<" + code
        (value,) = struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))
        return float(str(np.float32(value))) if code == "f" else value  # 1e-5, not float32's nearest number to it

    def string(self) -> str:
        start = self.take(self.number("Q"))
        return self.data[start : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind in SCALAR_FORMATS:
            return self.number(SCALAR_FORMATS[kind])
        if kind == STRING_TYPE:
            return self.string()
        part = self.number("I") if kind == ARRAY_TYPE else kind
        if part not in SCALAR_FORMATS and part != STRING_TYPE:
            raise DamagedFile(f"its metadata holds values of the unknown type {part}")
        count, start = self.number("Q"), self.at
        self.take(count * (8 if part == STRING_TYPE else struct.calcsize("<" + SCALAR_FORMATS[part])))
        if part == STRING_TYPE:
            self.at = self._behind(count, start)
        return MetadataArray(part, count, start, self.at)

    def _behind(self, count: int, at: int) -> int:
        """Place behind `count` strings from a place on: vocabularies have hundreds of thousands."""
        length = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + length(self.data, at)[0]
        except (struct.error, ValueError, OverflowError):  # of a place beyond the end
            at = self.size + 1
        self.at = at
        self.take(0)  # not beyond the end, either
        return at


def library() -> Any:
    """The package gguf, imported when it is needed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        raise ConfigurationError(f"{error}; reading GGUF files needs the extra draftwood[gguf]") from error


def weights(rows: Bytes, kind: str) -> Tensor:
    """Bytes of rows [N, bytes of a row] -> weights [N, K] in the stored dtype, float32 where they were quantised."""
    if kind in PLAIN_TYPES:
        return torch.from_numpy(np.ascontiguousarray(rows)).view(PLAIN_TYPES[kind])
    blocks = np.asarray(rows).reshape(1, -1)  # rows are dequantised sixteen at a time
    made: np.ndarray[Any, Any] = library().quants.dequantize(blocks, library().GGMLQuantizationType[kind])
    return torch.from_numpy(made.reshape(len(rows), -1))


def broken_row(rows: Bytes, kind: str) -> int | None:
    """The first of quantised rows [N, bytes of a row] that has a block whose scale is infinite or NaN, or None."""
    _, size = library().GGML_QUANT_SIZES[library().GGMLQuantizationType[kind]]
    blocks = rows.reshape(len(rows), -1, size)
    finite = [np.isfinite(blocks[..., at : at + 2].view(np.float16)[..., 0]) for at in SCALE_PLACES[kind]]
    if kind == "MXFP4":
        finite = [blocks[..., 0] != E8M0_NAN]
    if all(part.all() for part in finite):
        return None
    return int(np.argmin(np.logical_and.reduce(finite).all(1)))
