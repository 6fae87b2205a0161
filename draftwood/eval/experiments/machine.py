"""The machine's memory bandwidth, and how much memory a process has held."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter

BYTES = 2**28  # far beyond any cache
TIMES = 6


def bandwidth() -> dict[str, float]:
    """Bytes per second of copying (read and written both counted) and of reading alone."""
    import torch

    source = torch.ones(BYTES // 4)
    goal = torch.empty_like(source)
    copying, reading = [], []
    for _ in range(TIMES):
        began = perf_counter()
        goal.copy_(source)
        between = perf_counter()
        source.sum()
        copying.append(between - began)
        reading.append(perf_counter() - between)
    return {"copy": 2 * BYTES / median(copying[1:]), "read": BYTES / median(reading[1:])}


def peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process has held; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        if process != "self" or sys.platform == "win32":
            return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
