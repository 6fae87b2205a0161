"""Memory of this process: room that takes none until it is written, and free pages that go back to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from platform import machine

import torch
from torch import Tensor

# The flag by which a system promises more memory than it has; Python knows it from version 3.13 on
LINUX_FLAG = 0x4000 if sys.platform == "linux" and machine() in ("x86_64", "aarch64") else None
UNTOUCHED: int | None = getattr(mmap, "MAP_NORESERVE", LINUX_FLAG)


def room_for(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new tensor [rows, width] of any content, which may be written in any mode.

    In main memory it takes none until it is written, where the system can do that, and does not count as memory that a
    process has when it is forked. Raises OSError, RuntimeError or MemoryError where there is no room.
    """
    count = rows * width * dtype.itemsize
    with torch.inference_mode(False):
        if device.type != "cpu" or UNTOUCHED is None or not count:
            return torch.empty(rows, width, dtype=dtype, device=device)
        pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNTOUCHED)
        return torch.frombuffer(pages, dtype=dtype).view(rows, width)


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
