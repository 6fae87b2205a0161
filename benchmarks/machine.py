"""The machine's memory bandwidth and arithmetic, and how much memory a process has held."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter

from draftwood.errors import ConfigurationError

BYTES = 2**28  # far beyond any cache
TIMES = 6
SIDE = 256  # of matrices that stay in the caches


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


def product_rates(types: Iterable[str]) -> dict[str, float]:
    """Operations per second, by type, of products of matrices in the caches: the fastest of PyTorch's and our own.

    `types` come from the longest to the shortest: what is fast in one can be had in those behind it, by widening.
    """
    import torch

    from draftwood.models.backend.matrix import holder

    weight, best, rates = torch.ones(SIDE, SIDE), 0.0, {}
    for kind in types:
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        x, quantize = weight.to(dtype), None if kind in ("float32", "bfloat16") else kind
        for backend in ("pytorch", "native"):
            with suppress(ConfigurationError), torch.inference_mode():  # where the backend or the type is not there
                hold = holder(dtype, weight.device, quantize, backend)
                held = hold(x, None) if hold else torch.nn.Linear(SIDE, SIDE, False, dtype=dtype)
                for _ in range(30):
                    began = perf_counter()
                    for _ in range(5):
                        held(x)
                    best = max(best, 5 * 2 * SIDE**3 / (perf_counter() - began))
        rates[kind] = best
    return rates


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
