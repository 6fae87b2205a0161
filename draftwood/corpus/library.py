"""The natural source: the Python standard library that is on every machine."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from draftwood.corpus.document import Document, Split, split_of, stream

# Tests and generated tables are long and monotonous, and not on every machine.
_LEFT_OUT = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3",
    "pydoc_data", "encodings", "__pycache__", "turtledemo", "ensurepip",
}  # fmt: skip

# Characters in a document: about 260 tokens of code.
_SIZE = 700


def modules(split: Split) -> list[Path]:
    """Return the module files of a split, sorted; a file is in one split only."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths: list[Path] = []
    for place, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in _LEFT_OUT]
        paths += [Path(place, name) for name in names if name.endswith(".py")]
    return [path for path in sorted(paths) if split_of("library", path.relative_to(root).as_posix()) == split]


def _pieces(text: str) -> Iterator[list[str]]:
    """Cut a file at line ends into pieces of about ``_SIZE`` characters."""
    piece: list[str] = []
    size = 0
    for line in text.splitlines():
        if len(line) > 200:
            continue
        piece.append(line.rstrip())
        size += len(line) + 1
        if size >= _SIZE:
            yield piece
            piece, size = [], 0
    yield piece


@cache
def _library(split: Split) -> tuple[tuple[str, ...], ...]:
    """Return the lines of all pieces of a split, in the order of files; read once in a process."""
    pieces: dict[str, tuple[str, ...]] = {}
    for path in modules(split):
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        for piece in _pieces(text):
            whole = "\n".join(piece).strip("\n")
            # The same licence header or table stands in several modules.
            if piece[-1:] and len(piece) >= 4:
                pieces.setdefault(whole, tuple(whole.split("\n")))
    return tuple(pieces.values())


def library(split: Split, seed: int) -> Iterator[Document]:
    """Yield pieces of this Python's standard library in a seeded order, each once; a third of one is the prompt."""
    rng = stream("library", split, seed)
    pieces = list(_library(split))
    rng.shuffle(pieces)
    for lines in pieces:
        cut = max(1, len(lines) // 3)
        # The prompt must end in a character that is not white space.
        while cut < len(lines) - 1 and not lines[cut - 1]:
            cut += 1
        completion = "\n" + "\n".join(lines[cut:])
        yield Document("library", "\n".join(lines[:cut]), completion)
