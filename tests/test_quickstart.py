"""examples/quickstart.py runs as printed, and what it prints is what it promises."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart.py"


@pytest.mark.slow
def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    greedy = dict(re.findall(r"^(\w+) +tau [\d.]+, \d+ tokens/s (.+)$", printed, re.MULTILINE))
    assert list(greedy) == ["autoregressive", "speculative", "mcsd"]
    assert len(set(greedy.values())) == 1
    assert re.search(r"^\[(length|eos): Counter\(.*'accepted': \d+", printed, re.MULTILINE)
    alone = re.search(r"^speculative (['\"].+)$", printed, re.MULTILINE)
    assert alone is not None
    assert greedy["speculative"][1:].startswith(alone[1][1:-1])  # 40 of the same 60 tokens
    off = dict(re.findall(r"^(\w+) +total variation from the exact distribution: ([\d.]+)$", printed, re.MULTILINE))
    assert list(off) == ["autoregressive", "speculative", "mcsd"]
    assert all(float(value) < 0.07 for value in off.values())  # 0.035 is expected of 1000 runs
