"""MKL is asked for kernels that round a row alike in any company, where it has such a mode and nobody chose another."""

import os
import subprocess
import sys

import pytest

from draftwood.models.backend.environment import MKL_MODE, strict_mode

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some Xeon\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("processors", "mode"),
    [
        (INTEL.format("avx2 avx512f amx_tile"), "AVX512,STRICT"),
        (INTEL.format("avx2 avx512"), "AVX2,STRICT"),
        (INTEL.format("sse4_2"), None),
        (INTEL.format("avx2 avx512f").replace("GenuineIntel", "AuthenticAMD"), "AVX512,STRICT"),
        (INTEL.format("avx2 avx512f").replace("GenuineIntel", "CentaurHauls"), None),
        ("", None),
    ],
)
def test_the_strict_mode_is_of_the_processor(processors: str, mode: str | None) -> None:
    assert strict_mode(processors) == mode


def test_a_mode_that_was_chosen_stays() -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import draftwood, os; print(os.environ['{MKL_MODE}'])"],
        env={**os.environ, MKL_MODE: "COMPATIBLE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "COMPATIBLE"


@pytest.mark.parametrize(
    ("given", "found"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_that_wait_leave_the_cores_soon(given: dict[str, str], found: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    said = subprocess.run(
        [sys.executable, "-c", "import draftwood, os; print(os.environ.get('GOMP_SPINCOUNT'))"],
        capture_output=True,
        text=True,
        env=environment | given,
    )
    assert said.stdout.strip() == found
