"""Examples run as printed."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_beams(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "beams.py"))
    printed = capsys.readouterr().out
    forwards = {name: int(count) for name, count in re.findall(r"^([\w-]+) +(\d+) forwards", printed, re.MULTILINE)}
    assert list(forwards) == ["beam-sampling", "dsbd", "beam-search", "speculative-beam-search"]
    assert forwards["dsbd"] < forwards["beam-sampling"]
    assert forwards["speculative-beam-search"] < forwards["beam-search"]
    ranked = [float(value) for value in re.findall(r"^  perplexity +([\d.]+)", printed, re.MULTILINE)]
    assert len(ranked) == 4 and ranked == sorted(ranked)
    assert "the same beams: True" in printed


def test_requests_together(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "requests_together.py"))
    printed = capsys.readouterr().out
    assert printed.count("asyncio: ") == 3 and "threads say the same: True" in printed
    words = re.search(r"^left early: '(.{20,})'$", printed, re.MULTILINE)
    assert words is not None and words[1][:20] in printed.splitlines()[0]
    taken = re.search(r"taken over: (\d+) of (\d+)$", printed, re.MULTILINE)
    assert taken is not None and int(taken[2]) / 2 < int(taken[1]) < int(taken[2])
