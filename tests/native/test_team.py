"""Teams of threads: several callers at once, and what they do where the system has little to give."""

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from test_products import F32, lib, normal, packed

__all__ = ["lib"]

SHORT = """
import resource, sys
import numpy as np
from test_products import F32, _library, normal, packed
lib = _library()
product, x = packed(lib, F32, normal(400, 300)), normal(9, 300)
right = product(x)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 20), -1))  # less than the stack of one thread
print(np.array_equal(product(x, threads=5), right))
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(np.array_equal(product(x, threads=6), right))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_work_is_done_by_the_threads_that_can_be_had() -> None:
    pytest.importorskip("draftwood_native", reason="draftwood-native is not installed")
    run = subprocess.run([sys.executable, "-c", SHORT], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert run.stdout.split() == ["True", "True"], run.stderr


def test_several_callers_at_once(lib: ctypes.CDLL) -> None:
    """Each has threads of its own; teams of many sizes come and go."""
    product, x = packed(lib, F32, normal(400, 300)), normal(9, 300)
    right = product(x)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda i: product(x, threads=i % 7 + 1), range(200))
        assert all(np.array_equal(one, right) for one in found)
