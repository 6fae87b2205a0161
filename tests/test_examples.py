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
