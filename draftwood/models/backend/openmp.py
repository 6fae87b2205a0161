"""How long PyTorch's threads spin after their work, said before PyTorch is imported: others need the cores, too.

GNU's OpenMP spins for milliseconds by default, and the threads of native forwards would wait for a core that long. A
setting that is there already stays. Imports no torch.
"""

from __future__ import annotations

import os

SPINS = "GOMP_SPINCOUNT"
ENOUGH = "10000"  # about a tenth of a millisecond: longer than the gaps between PyTorch's own operations


def choose() -> None:
    """Set it for this process and its children, unless it or a waiting policy is set."""
    if not {SPINS, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPINS] = ENOUGH
