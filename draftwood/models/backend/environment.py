"""Sets environment variables that libraries below PyTorch read when it is imported; this module imports no torch.

MKL_CBWR: the order of sums in MKL's products. The default kernels for float32 sum in an order that depends on the
number of rows (Intel's for all shapes, AMD's for some, as of heads of six components). In the strict mode of
conditional numerical reproducibility they do not, so that a row has the same bits in every batch (tested by
tests/models/test_bitwise.py and test_knobs.py). MKL reads the variable once, at its first product: programs that
compute with PyTorch before they import draftwood set it themselves.

GOMP_SPINCOUNT: how long PyTorch's OpenMP threads spin after their work. By default they spin for milliseconds, during
which the threads of the native kernels wait for a core.

Variables that are set already stay as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

MKL_MODE = "MKL_CBWR"  # https://www.intel.com/content/www/us/en/docs/onemkl, "Conditional Numerical Reproducibility"
VENDORS = (["GenuineIntel"], ["AuthenticAMD"])
STRICT_MODES = (("avx512f", "AVX512,STRICT"), ("avx2", "AVX2,STRICT"))  # (processor's flag, mode), best first
CPU_INFO = Path("/proc/cpuinfo")

OPENMP_SPIN = "GOMP_SPINCOUNT"
SPIN_COUNT = "10000"  # about a tenth of a millisecond: longer than the gaps between PyTorch's own operations


def strict_mode(processors: str) -> str | None:
    """The value of MKL_CBWR for the processor that the text of /proc/cpuinfo describes; None where none is needed."""
    first = processors.partition("\n\n")[0]
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in first.splitlines())}
    if facts.get("vendor_id") not in VENDORS:
        return None
    return next((mode for flag, mode in STRICT_MODES if flag in facts.get("flags", ())), None)


def prepare() -> None:
    """Set both variables for this process and its children, unless they, or OpenMP's waiting policy, are set."""
    if MKL_MODE not in os.environ and CPU_INFO.is_file() and (mode := strict_mode(CPU_INFO.read_text("utf-8"))):
        os.environ[MKL_MODE] = mode
    if not {OPENMP_SPIN, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[OPENMP_SPIN] = SPIN_COUNT
