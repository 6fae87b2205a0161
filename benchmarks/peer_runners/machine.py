"""The machine's memory bandwidth, in the process and threads that the engines get."""

from __future__ import annotations

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
