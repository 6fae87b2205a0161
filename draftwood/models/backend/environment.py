"""What the libraries below PyTorch read from the environment, said before it is imported. Imports no torch.

MKL: which kernels it may use, such as round a row alike whatever the other rows are. On Intel's processors its default
kernels for float32 products differ in the order of their sums with the number of rows; in its strict mode of
conditional numerical reproducibility they do not (held by tests/models/test_bitwise.py). MKL reads its mode once, at
its first product: who computes with PyTorch before importing draftwood sets `MKL_CBWR` in the environment.

GNU's OpenMP: how long PyTorch's threads spin after their work. By default it is milliseconds, and the threads of native
forwards would wait for a core that long. A setting that is there already stays.
"""

from __future__ import annotations

import os
from pathlib import Path

MODE = "MKL_CBWR"  # https://www.intel.com/content/www/us/en/docs/onemkl, "Conditional Numerical Reproducibility"
INTEL = "GenuineIntel"
BRANCHES = (("avx512f", "AVX512,STRICT"), ("avx2", "AVX2,STRICT"))  # (processor's flag, mode), best first
PROCESSORS = Path("/proc/cpuinfo")

SPINS = "GOMP_SPINCOUNT"
ENOUGH = "10000"  # about a tenth of a millisecond: longer than the gaps between PyTorch's own operations


def strict_mode(processors: str) -> str | None:
    """The strict mode for a processor that /proc/cpuinfo describes; None where there is none, or none is needed."""
    first = processors.partition("\n\n")[0]
    said = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in first.splitlines())}
    if said.get("vendor_id") != [INTEL]:
        return None
    return next((mode for flag, mode in BRANCHES if flag in said.get("flags", ())), None)


def prepare() -> None:
    """Set both for this process and its children, unless they, or a waiting policy, are set."""
    if MODE not in os.environ and PROCESSORS.is_file() and (mode := strict_mode(PROCESSORS.read_text("utf-8"))):
        os.environ[MODE] = mode
    if not {SPINS, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPINS] = ENOUGH
