"""benchmarks/gpu.sh: what it asks of a machine, and the same commands on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def run(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": python, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(["sh", str(SCRIPT), *arguments], capture_output=True, text=True, env=environment)


def test_it_says_what_is_missing() -> None:
    result = run(python="/nowhere/python")
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "run scripts/setup" in result.stderr


@pytest.mark.slow
def test_it_needs_a_device_and_can_be_tried_without() -> None:
    result = run()
    assert result.returncode == 2 and "try benchmarks/gpu.sh --dry-run" in result.stderr
    tried = run("--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.count("| source | what | the paper |") == 3 and "test_cuda.py" in tried.stdout
