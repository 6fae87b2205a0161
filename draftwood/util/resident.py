"""Memory that nobody holds, back to the system: a load leaves the heap of the C library full of holes that it keeps."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def _trimmer() -> Callable[[int], object] | None:
    """glibc's `malloc_trim`; other C libraries (macOS, musl, Windows) have none."""
    with suppress(OSError, AttributeError, TypeError):
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
        return trim
    return None


def give_back() -> None:
    """Return free pages of the heap to the system, where it can be asked for; takes some milliseconds."""
    trim = _trimmer()
    if trim is not None:
        trim(0)


def resident() -> int | None:
    """Bytes of this process that are in memory; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * mmap.PAGESIZE
